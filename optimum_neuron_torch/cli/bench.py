"""`optimum-cli neuron bench`: time a model in its buckets, beside the same model on the CPU."""

import json
import random
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from optimum.commands.base import CommandInfo

from .model import add_model, load
from .verb import NeuronVerb


class BenchCommand(NeuronVerb):
    COMMAND = CommandInfo(name="bench", help="Time a text model: compilation, steady state, padding.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        add_model(parser)
        parser.add_argument("--batch", type=int, default=1, help="Rows of a call (default: 1).")
        parser.add_argument("--sequence", type=int, default=128, help="Longest input in tokens (default: 128).")
        parser.add_argument("--new-tokens", type=int, default=32, help="Tokens that generate() adds (default: 32).")
        parser.add_argument("--calls", type=int, default=8, help="Calls that are timed (default: 8).")
        parser.add_argument("--json", action="store_true", help="Print the figures as JSON.")

    def execute(self) -> int:
        sizes = {name: getattr(self.args, name) for name in ("batch", "sequence", "new_tokens", "calls")}
        if wrong := [f"--{name.replace('_', '-')} {size}" for name, size in sizes.items() if size < 1]:
            raise ValueError(f"{', '.join(wrong)}: expected positive numbers")
        figures = _measure(load(self.args), **sizes)
        print(json.dumps(figures, indent=2)) if self.args.json else _print(figures)
        return 0


def _measure(model: Any, *, batch: int, sequence: int, new_tokens: int, calls: int) -> dict[str, Any]:
    """Seconds of a first round of calls and of a second one, of lengths between half of `sequence` and all of it."""
    import torch

    import optimum_neuron_torch as ont

    if model.main_input_name != "input_ids":
        raise ValueError(f"{type(model).__name__} takes {model.main_input_name}: only models of text are timed")
    chance = random.Random(0)
    lengths = [sequence, *(chance.randint((sequence + 1) // 2, sequence) for _ in range(calls - 1))]
    inputs = [torch.full((batch, length), 5) for length in lengths]
    generates = model.can_generate()

    def run(target: Any) -> list[float]:
        return [_seconds(_call(target, ids, new_tokens if generates else None)) for ids in inputs]

    first = run(model)
    before = ont.report(model)
    steady, after = run(model), ont.report(model)
    on_cpu = run(ont.unprepare(model).to("cpu"))
    tokens = batch * (new_tokens * calls if generates else sum(lengths))
    return {
        "call": f"generate(), {new_tokens} new tokens" if generates else "forward()",
        "batch": batch,
        "lengths": lengths,
        "graphs_compiled": before.graphs,
        "graphs_cached": before.cached,
        "graphs_after_the_first_round": after.graphs + after.cached - before.graphs - before.cached,
        "seconds_first_round": sum(first),
        "seconds_by_phase": before.times,
        "seconds_per_call": statistics.median(steady),
        "tokens_per_second": tokens / sum(steady),
        "cpu_tokens_per_second": tokens / sum(on_cpu),
        "over_cpu": sum(on_cpu) / sum(steady),
        "padded_share": after.padded_share,
        "departures": after.departures,
    }


def _call(model: Any, ids: Any, new_tokens: int | None) -> Callable[[], Any]:
    import torch

    arguments = {"input_ids": ids.to(model.device), "attention_mask": torch.ones_like(ids).to(model.device)}
    if new_tokens is None:
        return lambda: model(**arguments)
    return lambda: model.generate(
        **arguments, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, num_beams=1
    )


def _seconds(call: Callable[[], Any]) -> float:
    import torch

    with torch.no_grad():
        start = time.perf_counter()
        call()
        torch.accelerator.synchronize()
        return time.perf_counter() - start


def _print(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in figures["seconds_by_phase"].items())
    rows = {
        "call": f"{figures['call']}, batch {figures['batch']}, {len(figures['lengths'])} lengths up to "
        f"{max(figures['lengths'])}",
        "first round": f"{figures['seconds_first_round']:.2f} s ({phases})",
        "graphs": f"{figures['graphs_compiled']} compiled, {figures['graphs_cached']} from the cache, "
        f"{figures['graphs_after_the_first_round']} in the second round",
        "per call": f"{figures['seconds_per_call'] * 1e3:.1f} ms (median of the second round)",
        "tokens/s": f"{figures['tokens_per_second']:.1f}; the CPU {figures['cpu_tokens_per_second']:.1f}: "
        f"{figures['over_cpu']:.2f}x",
        "padding": f"{figures['padded_share']:.0%} of the positions",
        **{f"left buckets: {d['where']}": d["reason"] for d in figures["departures"]},
    }
    table = Table(box=None, show_header=False)
    for row in rows.items():
        table.add_row(*row)
    Console(soft_wrap=True, highlight=False, markup=False).print(table)
