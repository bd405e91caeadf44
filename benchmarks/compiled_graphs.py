"""What compilation for neuron costs and gives, beside plain Inductor and CPU eager.

    python benchmarks/compiled_graphs.py steady [--cases minilm-float32 ...] [--runs 15] [--json]
    python benchmarks/compiled_graphs.py starts [--cases ...] [--repeat 1] [--json]

`steady` compares the medians of calls made in turns within one process. `starts` starts a new process for each
measurement, with new directories for every cache and for Inductor's precompiled headers, and takes the time from the
first call to its result: cold, then warm with the directories that the cold process left behind.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.packaged_models import minilm, smollm2


@dataclass
class Work:
    """
    One function and its arguments, on the CPU.

    Args:
        function: takes the module, then the tensors.
        module: moves to the device.
        tensors: move to the device.
        trains: whether a call is a training step.
    """

    function: Callable[..., Any]
    module: torch.nn.Module
    tensors: tuple[torch.Tensor, ...]
    trains: bool = False

    def to(self, device: str) -> "Work":
        module = self.module.to(device)
        return Work(self.function, module, tuple(tensor.to(device) for tensor in self.tensors), self.trains)

    def call(self, function: Callable[..., Any]) -> Any:
        """Run `function` in this one's place; a training step returns its gradients' owner."""
        if not self.trains:
            with torch.no_grad():
                return function(self.module, *self.tensors)
        self.module.zero_grad(set_to_none=True)
        loss = function(self.module, *self.tensors)
        loss.backward()
        return loss


# ---- the cases ------------------------------------------------------------------------------------------------------


def encode(module: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return module(input_ids=ids, attention_mask=mask).last_hidden_state


def prefill(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return module(input_ids=ids, use_cache=False, logits_to_keep=1).logits


def decode(module: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    """One token over a key-value store of 256 positions that is written in place."""
    from optimum_neuron_torch.generation.layers.kinds import layer_kinds
    from optimum_neuron_torch.generation.steps import StepSpec, step

    slots, offset, keep, *store = rest
    held = (True,) * len(store)
    spec = StepSpec(256, False, layer_kinds(module.config), held, ("input_ids", "attention_mask"), (), takes_keep=True)
    return step(module, spec, slots, offset, keep, ids, mask, *store)[0]


def denoise(module: torch.nn.Module, sample: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    return module(sample, step, text, return_dict=False)[0]


def language_loss(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return module(input_ids=ids, labels=ids, use_cache=False).loss


def _minilm(dtype: torch.dtype) -> Work:
    from transformers import AutoModel

    ids = torch.randint(1000, 20000, (8, 128))
    return Work(encode, AutoModel.from_pretrained(minilm(), dtype=dtype).eval(), (ids, torch.ones_like(ids)))


def _smollm2(dtype: torch.dtype) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2(), dtype=dtype).eval()


def _prefill(dtype: torch.dtype) -> Work:
    return Work(prefill, _smollm2(dtype), (torch.randint(1000, 20000, (1, 128)),))


def _decode(dtype: torch.dtype) -> Work:
    """The token behind a prompt of 200, whose keys and values are in the store."""
    from optimum_neuron_torch.generation.layers.kinds import layer_kinds
    from optimum_neuron_torch.generation.steps import StepSpec, step

    model, length = _smollm2(dtype), 200
    spec = StepSpec(256, True, layer_kinds(model.config), (), ("input_ids", "attention_mask"), (), takes_keep=True)
    ids = torch.randint(1000, 20000, (1, length))
    last = torch.tensor([length - 1])
    with torch.no_grad():
        _, *store = step(model, spec, torch.arange(length), torch.tensor(0), last, ids, torch.ones_like(ids))
    mask = torch.zeros(1, 256, dtype=torch.long)
    mask[:, : length + 1] = 1
    at = (torch.tensor([length]), torch.tensor(length), torch.tensor([0]))
    return Work(decode, model, (torch.tensor([[7]]), mask, *at, *store))


def _unet(dtype: torch.dtype) -> Work:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=32, block_out_channels=(64, 128, 256), layers_per_block=2, cross_attention_dim=256,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8,
    )  # fmt: skip
    inputs = (torch.randn(2, 4, 32, 32, dtype=dtype), torch.tensor(500), torch.randn(2, 77, 256, dtype=dtype))
    return Work(denoise, model.to(dtype).eval(), inputs)


def _training(dtype: torch.dtype) -> Work:
    """Six layers of SmolLM2's width."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(smollm2(), num_hidden_layers=6)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    return Work(language_loss, model, (torch.randint(1000, 20000, (2, 128)),), trains=True)


_MAKERS = {"minilm": _minilm, "prefill": _prefill, "decode": _decode, "unet": _unet, "training": _training}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CASES = {
    f"{name}-{dtype}": functools.partial(make, _DTYPES[dtype]) for name, make in _MAKERS.items() for dtype in _DTYPES
}


# ---- steady state ---------------------------------------------------------------------------------------------------


def measure_steady(case: str, runs: int) -> dict[str, Any]:
    """Medians of calls in turns: CPU eager, plain Inductor on the CPU, the whole graph on neuron."""
    torch.manual_seed(0)
    host, device = CASES[case](), None
    plain = torch.compile(host.function, backend="inductor", dynamic=False, fullgraph=True)
    torch.manual_seed(0)
    device = CASES[case]().to("neuron")
    ours = torch.compile(
        device.function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "inductor"}
    )
    ways = {
        "eager": lambda: host.call(host.function),
        "inductor": lambda: host.call(plain),
        "neuron": lambda: device.call(ours),
    }
    results = {name: way() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    expected = results["eager"].float()
    difference = (results["neuron"].cpu().float() - expected).abs().max() / expected.abs().max()
    return {
        "case": case,
        **{f"{name}_ms": value * 1e3 for name, value in medians.items()},
        "over_eager": medians["neuron"] / medians["eager"],
        "over_inductor": medians["neuron"] / medians["inductor"],
        "difference": difference.item(),
    }


# ---- first results --------------------------------------------------------------------------------------------------

# name: backend, options, whether the caches are those that the way before left behind
WAYS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "inductor cold": ("inductor", {}, None),
    "inductor warm": ("inductor", {}, "inductor cold"),
    "checked cold": ("neuron", {}, None),
    "checked warm": ("neuron", {}, "checked cold"),
    "unchecked cold": ("neuron", {"lowering": "off"}, None),
    "stored cold": ("stored", {}, None),
    "stored warm": ("stored", {}, "stored cold"),
}


def measure_starts(case: str, repeat: int) -> Iterator[dict[str, Any]]:
    """Seconds to the first result in new processes, and what they were spent on."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as root:
            for name, (_, _, previous) in WAYS.items():
                if name.startswith("stored") and case.startswith("training"):
                    continue  # the plugin leaves training to the user's torch.compile
                runs[name].append(_start(case, name, Path(root) / (previous or name).replace(" ", "-")))
    cold = statistics.median(run["first"] for run in runs["inductor cold"])
    for name, made in runs.items():
        if made:
            row = {key: statistics.median(run[key] for run in made) for key in made[0]}
            yield {"case": case, "way": name, **row, "over_inductor_cold": row["first"] / cold}


def _start(case: str, way: str, directory: Path) -> dict[str, Any]:
    directory.mkdir(exist_ok=True, mode=0o700)
    # Inductor keeps its precompiled headers in the directory for temporary files, whatever its cache.
    environment = {
        **os.environ,
        "TMPDIR": str(directory),
        "OPTIMUM_NEURON_CACHE": str(directory / "neuron"),
        "NEURON_EMULATOR_BACKGROUND": "0",
        "PYTHONHASHSEED": str(time.time_ns() % 1000),
    }
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    command = [sys.executable, __file__, "child", "--cases", case, "--way", way]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=directory)
    if done.returncode:
        raise SystemExit(f"{case}, {way}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def run_child(case: str, way: str) -> dict[str, Any]:
    """In a process of its own: the first call, then what the backend and `warmup()` spend."""
    backend, options, _ = WAYS[way]
    work = CASES[case]()
    if backend == "inductor":
        return {"first": _timed(lambda: work.call(torch.compile(work.function, dynamic=False, fullgraph=True)))}
    import torch_neuronx

    dynamo = torch_neuronx.neuron_dynamo_backend
    work = work.to("neuron")
    if backend == "stored":
        compiled = _stored(work)
    else:
        settings = {"backend": "neuron", "dynamic": False, "fullgraph": True, "options": options or None}
        compiled = torch.compile(work.function, **settings)
    first = _timed(lambda: work.call(compiled))
    phases = ("trace", "fx_passes", "lower", "compile", "load")
    records = dynamo.get_dynamo_metrics()
    times = {phase: sum(record[f"torch_neuronx_{phase}_us"] for record in records) / 1e6 for phase in phases}
    fast = _timed(dynamo.finish_compilations)
    return {"first": first, **times, "fast": fast, "graphs": sum(not record["cached"] for record in records)}


def _stored(work: Work) -> Callable[..., Any]:
    """The function as the plugin calls its own: stored by bucket."""
    from optimum_neuron_torch import NeuronConfig
    from optimum_neuron_torch.buckets.graphs import Graphs
    from optimum_neuron_torch.report import Ledger

    graphs = Graphs(Ledger("benchmark"), NeuronConfig())
    return lambda *args: graphs.call("benchmark", (), work.function, *args)


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# ---- the program ----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steady", "starts", "child"])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--runs", type=int, default=15, help="turns of each steady measurement")
    parser.add_argument("--repeat", type=int, default=1, help="times that all starts are made")
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    if arguments.what == "child":
        # Imported, since what is stored names its function by module, and a program has none.
        import compiled_graphs

        print(json.dumps(compiled_graphs.run_child(arguments.cases[0], arguments.way)))
        return
    rows = []
    console = Console(stderr=True)
    for case in arguments.cases:
        with console.status(f"{arguments.what}: {case}") if console.is_terminal else nullcontext():
            if arguments.what == "steady":
                torch._dynamo.reset()
                rows.append(measure_steady(case, arguments.runs))
            else:
                rows.extend(measure_starts(case, arguments.repeat))
    print(json.dumps(rows, indent=2)) if arguments.json else Console().print(_table(arguments.what, rows))


def _table(what: str, rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=f"{what}, {torch.get_num_threads()} threads")
    for name in names:
        is_name = name in ("case", "way")
        table.add_column(name.replace("_", " "), justify="left" if is_name else "right", no_wrap=is_name)
    for row in rows:
        table.add_row(*(_cell(row.get(name, "")) for name in names))
    return table


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
