"""Compiles one architecture for the device, lowered and run by the oracle, and compares it with the CPU."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import optimum_neuron_torch  # noqa: F401  its entries for Transformers are in force, as they are for users
from model_tests.architectures.architecture import Architecture
from model_tests.architectures.outcome import Outcome, Step


# Of the largest magnitude of the tensor that is compared.
TOLERANCE = 1e-5
# A gradient that is zero but for rounding (that of a key's bias, which softmax cancels) has no magnitude of its own:
# below this share of the model's largest gradient, differences are relative to that share.
SMALLEST_GRADIENT = 1e-2


def check(architecture: Architecture) -> Outcome:
    """Check inference and, where the table asks for it, a training step."""
    start = time.perf_counter()
    torch.manual_seed(0)
    host = stirred(architecture.make())
    inputs = dict(architecture.inputs())
    inference = _step(architecture, host.eval(), inputs, _run_inference)
    training = _step(architecture, host.train(), inputs, _run_training) if architecture.training else None
    return Outcome(inference=inference, training=training, seconds=round(time.perf_counter() - start, 1))


def stirred(module: nn.Module) -> nn.Module:
    """The module with every parameter moved, and without dropout."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return module


Run = Callable[[Architecture, Callable[..., Any], nn.Module, dict[str, Any]], list[torch.Tensor]]


def _step(architecture: Architecture, host: nn.Module, inputs: dict[str, Any], run: Run) -> Step:
    """One step on the device, compared with the CPU's."""
    from optimum_neuron_torch.emulator.compiler import metrics

    torch._dynamo.reset()
    metrics.reset_dynamo_metrics()
    reference = copy.deepcopy(host)
    expected = run(architecture, reference, reference, copy.deepcopy(inputs))
    device = copy.deepcopy(host).to("neuron")
    compiled = torch.compile(device, backend="neuron", fullgraph=True, dynamic=False, options={"executor": "xla"})
    found, reason = None, ""
    try:
        found = [value.cpu() for value in run(architecture, compiled, device, _on_neuron(inputs))]
    except Exception as error:  # whatever an architecture meets is its outcome
        reason = architecture.known or describe(error)
    records = metrics.get_dynamo_metrics()
    shape = {
        "lowered": found is not None and {record["lowering"] for record in records} == {"checked"},
        "graphs": len(records),
        "nodes": sum(record["graph_node_count"] for record in records),
    }
    if found is None:
        return Step(reason=reason, **shape)
    difference = largest_difference(found, expected, smallest=SMALLEST_GRADIENT if host.training else 0.0)
    equal = difference <= TOLERANCE
    if not equal:
        reason = architecture.known or "differs"
    return Step(equal=equal, difference=float(f"{difference:.1e}"), reason=reason, **shape)


def _run_inference(
    architecture: Architecture, call: Callable[..., Any], module: nn.Module, inputs: dict[str, Any]
) -> list[torch.Tensor]:
    with torch.no_grad():
        results = architecture.results(call(**inputs))
    return [*results, *module.buffers()]


def _run_training(
    architecture: Architecture, call: Callable[..., Any], module: nn.Module, inputs: dict[str, Any]
) -> list[torch.Tensor]:
    architecture.loss(call(**inputs)).backward()
    # AOTAutograd gives zeros to parameters that only unused results depend on, and eager execution nothing.
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in module.parameters()
    ]


def _on_neuron(inputs: dict[str, Any]) -> dict[str, Any]:
    return pytree.tree_map_only(torch.Tensor, lambda value: value.to("neuron"), inputs)


def largest_difference(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], *, smallest: float = 0.0
) -> float:
    """
    The largest difference between tensors, relative to the largest magnitude of the one it is in.

    Infinite where shapes, dtypes, integers, or the places of NaN and infinities differ. `smallest`: magnitudes count
    as at least this share of the largest magnitude of all.
    """
    if len(found) != len(expected):
        return float("inf")
    magnitudes = [_magnitude(tensor) for tensor in expected]
    floor = smallest * max(magnitudes, default=0.0)
    return max(
        (
            _difference(one, other, max(magnitude, floor))
            for one, other, magnitude in zip(found, expected, magnitudes, strict=True)
        ),
        default=0.0,
    )


def _magnitude(tensor: torch.Tensor) -> float:
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor.detach()[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def _difference(found: torch.Tensor, expected: torch.Tensor, magnitude: float) -> float:
    found, expected = found.detach(), expected.detach()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if torch.equal(found, expected):
        return 0.0
    finite = expected.isfinite()
    if not expected.is_floating_point() or not torch.equal(found.isfinite(), finite):
        return float("inf")
    if not torch.equal(found[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return float("inf")
    largest = (found.double() - expected.double())[finite].abs().max().item() if finite.any() else 0.0
    return largest / magnitude if magnitude else (float("inf") if largest else 0.0)


def describe(error: BaseException) -> str:
    """The first line of what the compiler, or else the model, said."""
    cause = getattr(error, "inner_exception", None) or error
    # Where libraries are installed is this machine's business.
    text = re.sub(r"/\S*/site-packages/", "", str(cause))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if hasattr(cause, "op"):  # a LoweringError: the operator, the user's line and torch-mlir's reason
        return " | ".join(lines[:3])
    return f"{type(cause).__name__}: {' '.join(lines[:2])}"[:400]
