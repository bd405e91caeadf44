"""One model with its kernels in the simulator, beside the same model with PyTorch's attention on the CPU.

At float32 and at bfloat16: outputs of a prepared model in evaluation, as one graph, and gradients of one training
step, eagerly.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import optimum_neuron_torch as ont
from model_tests.architectures.architecture import Architecture
from model_tests.architectures.cached_step import CachedStep
from model_tests.architectures.check import SMALLEST_GRADIENT, TOLERANCE, describe, largest_difference, stirred
from model_tests.kernels.outcome import DIFFERS, EQUAL, FAILED, PLAIN, Cell, Outcome


# Mean distance from float32 over that of the CPU's bfloat16: both round, not alike.
MOST_ROUNDING = 1.5
OPTIONS = {"executor": "aten"}
BUCKETS = ont.Buckets(batch=[4], sequence=[16, 32], encoder_sequence=[16, 32], cache=[32])


def check(architecture: Architecture) -> Outcome:
    """All cells of an architecture."""
    start = time.perf_counter()
    torch.manual_seed(0)
    host = stirred(architecture.make())
    inputs = dict(architecture.inputs())
    cells = {"float32": _compare(architecture, host.eval(), inputs, _outputs)}
    trains = not isinstance(host, CachedStep)
    if trains:
        cells["float32 gradients"] = _compare(architecture, host.train(), inputs, _gradients)
    cells["bfloat16"] = _compare_rounded(architecture, host.eval(), inputs, _outputs)
    if trains:
        cells["bfloat16 gradients"] = _compare_rounded(architecture, host.train(), inputs, _gradients)
    return Outcome(cells=cells, seconds=round(time.perf_counter() - start, 1))


Run = Callable[[Architecture, nn.Module, Mapping[str, Any]], list[torch.Tensor]]


def _compare(architecture: Architecture, host: nn.Module, inputs: Mapping[str, Any], run: Run) -> Cell:
    expected = run(architecture, _plain(host), inputs)
    seen = _Seen()
    try:
        found = seen.run(run, architecture, host, inputs)
    except Exception as error:  # whatever a model meets is its outcome
        return Cell(state=FAILED, reason=describe(error))
    difference = largest_difference(found, expected, smallest=SMALLEST_GRADIENT if host.training else 0.0)
    return seen.cell(difference, difference <= TOLERANCE)


def _compare_rounded(architecture: Architecture, host: nn.Module, inputs: Mapping[str, Any], run: Run) -> Cell:
    """With weights and inputs at bfloat16; exact is the same model with these weights at float32."""
    rounded = copy.deepcopy(host).to(torch.bfloat16)
    inputs = pytree.tree_map_only(torch.Tensor, _rounded, dict(inputs))
    widened = pytree.tree_map_only(torch.Tensor, _widened, inputs)
    seen = _Seen()
    try:
        plain = run(architecture, _plain(rounded), inputs)
        exact = run(architecture, _plain(copy.deepcopy(rounded).float()), widened)
    except Exception as error:  # some models compute a part in float32 and refuse bfloat16
        return Cell(state=PLAIN, reason=f"on the CPU: {describe(error)}")
    try:
        found = seen.run(run, architecture, rounded, inputs)
    except Exception as error:
        return Cell(state=FAILED, reason=describe(error))
    ours, theirs = _distance(found, exact), _distance(plain, exact)
    ratio = ours / theirs if theirs else (float("inf") if ours else 1.0)
    return seen.cell(ratio, ratio <= MOST_ROUNDING)


def _rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The mean over all tensors of their mean distances, each relative to its largest magnitude; a single number, as a
    loss, has none. Magnitudes count as a share of the largest at least: a key's bias has gradients of rounding alone.
    """
    real = [(one, other) for one, other in zip(found, exact, strict=True) if other.is_floating_point() and other.dim()]
    magnitudes = [other.abs().max().item() for _, other in real]
    floor = SMALLEST_GRADIENT * max(magnitudes, default=0.0) or 1.0
    distances = [
        ((one.double() - other.double()).abs().mean() / max(magnitude, floor)).item()
        for (one, other), magnitude in zip(real, magnitudes, strict=True)
    ]
    return sum(distances) / max(len(distances), 1)


def _plain(host: nn.Module) -> nn.Module:
    """A copy that computes attention as PyTorch does, where the model lets that be chosen."""
    copied = copy.deepcopy(host)
    for part in copied.modules():
        if hasattr(part, "set_attn_implementation"):
            with contextlib.suppress(ValueError):  # a model that has only its own
                part.set_attn_implementation("sdpa")
            break
    return copied


class _Seen:
    """What a run on the device did beside computing: kernels, graphs, paths of attention."""

    def __init__(self) -> None:
        self.kernels: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.graphs = self.breaks = 0
        self.reasons: list[str] = []

    def run(
        self, run: Run, architecture: Architecture, host: nn.Module, inputs: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        torch._dynamo.reset()
        device = copy.deepcopy(host).to("neuron")
        with _collected(self):
            config = ont.NeuronConfig(nki="simulate", buckets=BUCKETS, options=OPTIONS)
            device = ont.prepare(device, config) if _can_be_prepared(device) else device
            on_device = pytree.tree_map_only(torch.Tensor, lambda value: value.to("neuron"), dict(inputs))
            found = [tensor.cpu() for tensor in run(architecture, device, on_device)]
        self.reasons = sorted({entry["reason"] for entry in ont.report().departures if entry["kind"] == "attention"})
        return found

    def cell(self, difference: float, is_right: bool) -> Cell:
        ran = any("attention" in kernel for kernel in self.kernels)
        reason = "" if ran else "; ".join([*self.reasons, *sorted(self.paths)]) or "attention never reached the device"
        return Cell(
            state=DIFFERS if not is_right else EQUAL if ran else PLAIN,
            difference=float(f"{difference:.1e}"),
            kernels=dict(sorted(self.kernels.items())),
            graphs=self.graphs,
            breaks=self.breaks,
            reason=reason,
        )


@contextlib.contextmanager
def _collected(seen: _Seen) -> Iterator[None]:
    before = ont.report()
    with ont.nki.simulation() as runs:
        yield
    after = ont.report()
    seen.kernels = Counter(run.kernel for run in runs)
    seen.paths = Counter(after.attention) - Counter(before.attention)
    seen.graphs = after.graphs - before.graphs
    seen.breaks = len(after.graph_breaks) - len(before.graph_breaks)


def _can_be_prepared(module: nn.Module) -> bool:
    """A model of a library; a step over a cache of its own is called as it is, with attention of ours."""
    inner = getattr(module, "model", None)
    if hasattr(module, "config") or inner is None or not hasattr(inner, "set_attn_implementation"):
        return True
    inner.set_attn_implementation("nki")
    return False


@torch.no_grad()
def _outputs(architecture: Architecture, module: nn.Module, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    results = architecture.results(module(**inputs))
    mask = inputs.get("attention_mask")
    if mask is None or mask.dim() != 2:
        return results
    # What comes out where a row is padded means nothing.
    return [result[mask.bool()] if result.shape[:2] == mask.shape else result for result in results]


def _gradients(architecture: Architecture, module: nn.Module, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    architecture.loss(module(**inputs)).backward()
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in module.parameters()
    ]
