"""Whether an answer of the device is the CPU's: its values bit for bit, its geometry, and the errors raised."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.conformance.outcome import Mismatch, named
from tests.conformance.rules import EXACT, Rule


@dataclass(frozen=True)
class Answer:
    """What a call returned, or what it raised."""

    value: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, call: Callable[[], Any]) -> "Answer":
        # Not torch.manual_seed(), which records the stack for devices that are not there.
        torch.default_generator.manual_seed(0)
        torch.neuron.manual_seed(0)
        try:
            return cls(value=call())
        except Exception as error:
            return cls(error=error)


def check_answers(actual: Answer, expected: Answer, device: torch.device, rule: Rule = EXACT) -> None:
    """Raises the device's error where the CPU has a value or the device refuses, else Mismatch where they differ."""
    if expected.error is not None:
        if actual.error is None:
            raise Mismatch(f"no error, the CPU raises {named(expected.error)}")
        if isinstance(actual.error, NotImplementedError) and not isinstance(expected.error, NotImplementedError):
            raise actual.error
        if type(actual.error) is not type(expected.error):
            raise Mismatch(f"raises {named(actual.error)}, the CPU {named(expected.error)}")
    elif actual.error is not None:
        raise actual.error
    else:
        check_same(actual.value, expected.value, device, rule)


def check_same(actual: Any, expected: Any, device: torch.device, rule: Rule = EXACT) -> None:
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    if actual_spec != expected_spec:
        raise Mismatch(f"structure {actual_spec}, the CPU's {expected_spec}")
    for one, other in zip(actual_leaves, expected_leaves, strict=True):
        if isinstance(other, torch.Tensor):
            _check_tensor(one, other, device, rule)
        elif isinstance(other, torch.device):
            if one.type != device.type:
                raise Mismatch(f"names the device {one}")
        elif type(one) is not type(other):
            raise Mismatch(f"a {type(one).__name__}, the CPU's {type(other).__name__}")
        elif one != other and not (one != one and other != other) and rule.values:
            raise Mismatch(f"{one!r:.60}, the CPU's {other!r:.60}")


def _check_tensor(actual: Any, expected: torch.Tensor, device: torch.device, rule: Rule) -> None:
    if not isinstance(actual, torch.Tensor):
        raise Mismatch(f"a {type(actual).__name__}, the CPU's a tensor")
    if actual.device != device:
        raise Mismatch(f"a result on {actual.device}")
    for name in ("dtype", "layout", "shape", "requires_grad"):
        if getattr(actual, name) != getattr(expected, name):
            raise Mismatch(f"{name} {getattr(actual, name)}, the CPU's {getattr(expected, name)}")
    actual, expected = actual.detach(), expected.detach()
    if expected.layout != torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    elif expected.numel() > 0 and actual.stride() != expected.stride():
        raise Mismatch(f"strides {actual.stride()}, the CPU's {expected.stride()}")
    if rule.values:
        _check_values(actual.cpu(), expected, rule)


def _check_values(actual: torch.Tensor, expected: torch.Tensor, rule: Rule) -> None:
    if expected.dtype == torch.complex32:  # neither equal() nor assert_close() has it
        actual, expected = torch.view_as_real(actual.resolve_conj()), torch.view_as_real(expected.resolve_conj())
    if torch.equal(actual, expected):
        return
    try:
        torch.testing.assert_close(actual, expected, rtol=rule.rtol, atol=rule.atol, equal_nan=True)
    except AssertionError as error:
        raise Mismatch(" ".join(str(error).split())[:200]) from None
