"""What a bucketed call costs beside the compiled function it runs, and compiled steady state beside the CPU.

    python benchmarks/bucketed_calls.py [--executor inductor] [--runs 5] [--json]

Host time: the same bucketed call with a compiled function that does the work, minus that function called bare on the
same tensors; measured in turns within one process, medians over all turns. Speed: the bucketed call over the plain CPU
model on the same inputs, in turns, as a ratio.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModel, AutoModelForCausalLM

import optimum_neuron_torch as ont


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.packaged_models import minilm, smollm2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", choices=["aten", "inductor"], default="inductor")
    parser.add_argument("--runs", type=int, default=20, help="turns of each measurement")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    options = {"executor": arguments.executor}
    rows = [*measure_minilm(options, arguments.runs), *measure_smollm2(options, arguments.runs)]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"bucketed calls, executor {arguments.executor}, medians of {arguments.runs} turns")
    for column in ("call", "bucketed ms", "bare ms", "host us", "CPU eager ms", "bucketed / CPU"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for row in rows:
        table.add_row(
            row["call"],
            *(f"{row[key]:.2f}" for key in ("bucketed_ms", "bare_ms")),
            f"{row['host_us']:.0f}",
            f"{row['cpu_ms']:.2f}",
            f"{row['ratio']:.2f}",
        )
    Console().print(table)


def measure_minilm(options: dict, runs: int):
    """MiniLM at full buckets, so that both sides compute the same positions."""
    config = ont.NeuronConfig(buckets=ont.Buckets(batch=[1, 8], sequence=[32, 128]), options=options)
    model = AutoModel.from_pretrained(minilm(), device_map="neuron", neuron_config=config)
    plain = AutoModel.from_pretrained(minilm())
    for batch, sequence in ((1, 32), (8, 128)):
        ids = torch.randint(1000, 20000, (batch, sequence))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        yield compare(f"MiniLM {batch} x {sequence}", model, lambda: model(**inputs), lambda: plain(**inputs), runs)  # noqa: B023


def measure_smollm2(options: dict, runs: int):
    """SmolLM2: a prefill of 128 tokens and a decode step, bfloat16, against a static cache's worth of CPU work."""
    buckets = ont.Buckets(batch=[1], sequence=[128], cache=[256])
    model = AutoModelForCausalLM.from_pretrained(
        smollm2(),
        dtype=torch.bfloat16,
        device_map="neuron",
        neuron_config=ont.NeuronConfig(buckets=buckets, options=options),
    )
    plain = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.bfloat16)
    ids = torch.randint(1000, 20000, (1, 128))
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "logits_to_keep": 1}
    yield compare("SmolLM2 prefill 1 x 128", model, lambda: model(**prompt), lambda: plain(**prompt), runs)

    caches = {id(each): each(**prompt).cache for each in (model, plain)}

    def decode(each: torch.nn.Module) -> None:
        """One token; the cache forgets it again, so that every turn does the same work."""
        cache = caches[id(each)]
        each(input_ids=ids[:, :1], attention_mask=torch.ones(1, 129, dtype=torch.long), cache=cache)
        cache.crop(-1)

    yield compare("SmolLM2 decode 1", model, lambda: decode(model), lambda: decode(plain), runs)


def compare(name: str, model: torch.nn.Module, bucketed: Callable, plain: Callable, runs: int) -> dict:
    """Medians of the bucketed call, of the compiled function under it, and of the CPU's eager call, taken in turns."""
    graphs = model.__dict__["_neuron_prepared"].module.graphs
    inside: list[float] = []
    stock_call = graphs.call

    def timed_call(*args):
        start = time.perf_counter()
        result = stock_call(*args)
        inside.append(time.perf_counter() - start)
        return result

    graphs.call = timed_call
    times: dict[str, list[float]] = {"bucketed": [], "plain": []}
    with torch.no_grad():
        for _ in range(3):
            bucketed(), plain()
        inside.clear()
        for _ in range(runs):
            for key, function in (("bucketed", bucketed), ("plain", plain)):
                start = time.perf_counter()
                function()
                times[key].append(time.perf_counter() - start)
    del graphs.call
    outside = [whole - bare for whole, bare in zip(times["bucketed"], inside, strict=True)]
    bucketed_s, plain_s = statistics.median(times["bucketed"]), statistics.median(times["plain"])
    return {
        "call": name,
        "bucketed_ms": bucketed_s * 1e3,
        "bare_ms": statistics.median(inside) * 1e3,
        "host_us": statistics.median(outside) * 1e6,
        "cpu_ms": plain_s * 1e3,
        "ratio": statistics.median(b / p for b, p in zip(times["bucketed"], times["plain"], strict=True)),
    }


if __name__ == "__main__":
    main()
