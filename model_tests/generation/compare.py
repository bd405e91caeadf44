"""One generate() call on the device in buckets, compared with the same call on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from model_tests.architectures.architecture import all_tensors
from model_tests.architectures.check import TOLERANCE, describe, largest_difference
from model_tests.generation.outcome import DIFFERS, EQUAL, FAILED, STOCK, UNSUPPORTED, Cell
from optimum_neuron_torch import report


SEED = 3


def compare(host: nn.Module, device: nn.Module, calls: list[Mapping[str, Any]]) -> Cell:
    """
    The same generate() calls of both models: the first makes graphs, those behind it should make none.

    `device` is the prepared twin of `host`.
    """
    return _compare(host, device, calls, generate, differences)


def compare_forward(host: nn.Module, device: nn.Module, call: Mapping[str, Any]) -> Cell:
    """The same forward of both models: all tensors of the output."""
    return _compare(host, device, [call], _forward, _forward_differences)


def _compare(
    host: nn.Module,
    device: nn.Module,
    calls: list[Mapping[str, Any]],
    run: Callable[[nn.Module, Mapping[str, Any]], Any],
    differ: Callable[[Any, Any], tuple[float, str]],
) -> Cell:
    graphs, worst, distinct = [], 0.0, 0
    reasons: dict[str, None] = {}
    notes: dict[str, None] = {}
    for call in calls:
        try:
            expected = run(host, call)
        except Exception as error:  # whatever a model cannot do is the outcome
            return Cell(state=UNSUPPORTED, reason=f"on the CPU: {describe(error)}")
        before = _Counts(device)
        try:
            found = run(device, call)
        except Exception as error:
            return Cell(state=FAILED, reason=describe(error))
        after = _Counts(device)
        graphs.append(after.graphs - before.graphs)
        reasons |= dict.fromkeys(after.departures_since(before))
        if after.steps == before.steps and not reasons:
            reasons["no step in buckets, and no reason in the report"] = None
        difference, problem = differ(found, expected)
        worst = max(worst, difference)
        if problem and (rounding := _rounding(host, call, found, expected)):
            notes[rounding] = None
        elif problem:
            return Cell(state=DIFFERS, difference=_short(worst), reason="; ".join([problem, *reasons]))
        if "sequences" in expected:
            distinct = max(distinct, len(expected.sequences[:, -len(expected.scores) :].unique()))
    return Cell(
        state=STOCK if reasons else EQUAL,
        difference=_short(worst),
        distinct=distinct,
        graphs=graphs[0],
        grown=sum(graphs[1:]),
        reason="; ".join(reasons | notes),
    )


# How much further from the float64 result than the CPU's float32 result a larger difference may be.
ROUNDING = 2.0


def _rounding(host: nn.Module, call: Mapping[str, Any], found: Any, expected: Any) -> str:
    """Why a difference above the tolerance is rounding, or nothing: the CPU's own float32 result is as far off."""
    if "sequences" not in found or not torch.equal(found.sequences.cpu(), expected.sequences):
        return ""
    try:
        exact = generate(copy.deepcopy(host).double(), call)
    except Exception:  # a part of some models is float32 in any case
        return ""
    ours, theirs = (differences(result, exact)[0] for result in (found, expected))
    if not torch.equal(exact.sequences, expected.sequences) or not ours <= max(TOLERANCE, ROUNDING * theirs):
        return ""
    return f"rounding: {ours:.0e} from the result at float64, where plain float32 is {theirs:.0e}"


def _forward(model: nn.Module, call: Mapping[str, Any]) -> Any:
    with torch.no_grad():
        return model(**call)


def _forward_differences(found: Any, expected: Any) -> tuple[float, str]:
    difference = largest_difference([tensor.cpu() for tensor in all_tensors(found)], all_tensors(expected))
    return difference, "" if difference <= TOLERANCE else f"outputs differ by {difference:.1e}"


def generate(model: nn.Module, call: Mapping[str, Any]) -> Any:
    """The output of generate() with tokens, scores and logits of every step."""
    torch.manual_seed(SEED)
    return model.generate(**call, return_dict_in_generate=True, output_scores=True, output_logits=True)


def differences(found: Any, expected: Any) -> tuple[float, str]:
    """The largest difference of the steps' logits and scores up to where tokens differ, and what is wrong."""
    steps = len(expected.scores)
    if found.sequences.shape != expected.sequences.shape or len(found.scores) != steps:
        return 0.0, f"sequences of shape {tuple(found.sequences.shape)}, not {tuple(expected.sequences.shape)}"
    unequal = (found.sequences.cpu() != expected.sequences).any(0).nonzero()
    first = int(unequal[0]) - (expected.sequences.shape[1] - steps) if len(unequal) else steps
    # A step's logits follow from the tokens before it: behind the first other token they are of another text.
    compared = max(0, min(first + 1, steps))
    pairs = [(found.logits, expected.logits), (found.scores, expected.scores)]
    tensors = [[step.float().cpu() for step in steps[:compared]] for pair in pairs for steps in pair]
    difference = max(largest_difference(tensors[0], tensors[1]), largest_difference(tensors[2], tensors[3]))
    if not difference <= TOLERANCE:
        return difference, f"step logits differ by {difference:.1e}"
    if first < steps and not _is_near_tie(expected.scores[first]):
        return difference, f"token {first} differs"
    return difference, ""


def _is_near_tie(scores_BV: torch.Tensor) -> bool:
    """Whether some row has two best tokens that rounding may swap."""
    best = scores_BV.float().topk(2, dim=-1).values
    return bool(((best[:, 0] - best[:, 1]) <= 2 * TOLERANCE * best.abs().amax(-1)).any())


def _short(value: float) -> float:
    return float(f"{value:.1e}")


class _Counts:
    """What the report of a prepared model says so far."""

    def __init__(self, model: nn.Module) -> None:
        found = report(model)
        self.graphs = found.graphs + found.cached
        self.steps = sum(use.calls for use in found.buckets)
        self.departures = {(entry["kind"], entry["reason"]): entry["calls"] for entry in found.departures}

    def departures_since(self, before: _Counts) -> list[str]:
        return [
            reason
            for (kind, reason), calls in self.departures.items()
            if kind != "attention" and calls > before.departures.get((kind, reason), 0)
        ]
