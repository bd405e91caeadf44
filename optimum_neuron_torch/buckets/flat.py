"""Structured arguments as flat tensors and a hashable form: how they enter a compiled function."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


class NotFlatError(TypeError):
    """A value that is no tensor, no constant of a graph, and no container of such."""


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in the flat list."""

    index: int


@dataclass(frozen=True)
class Container:
    """A container of forms: a dict (with keys), list or tuple."""

    kind: type
    keys: tuple[str, ...]
    forms: tuple[Any, ...]


Form = Slot | Container | bool | int | float | str | None | torch.dtype | torch.device
CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)


def flatten(value: Any, tensors: list[torch.Tensor]) -> Form:
    """The form of `value`, hashable; its tensors are appended to `tensors`.

    Raises NotFlatError for what can be neither an input of a graph nor a constant in it.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Slot(len(tensors) - 1)
    if type(value) is dict:
        return Container(dict, tuple(value), tuple(flatten(part, tensors) for part in value.values()))
    if type(value) in (list, tuple):
        return Container(type(value), (), tuple(flatten(part, tensors) for part in value))
    if isinstance(value, CONSTANTS):
        return value
    raise NotFlatError(f"a {type(value).__name__} is neither a tensor nor a constant of a graph")


def rebuild(form: Form, tensors: Sequence[torch.Tensor]) -> Any:
    """The value that `flatten` took apart, on other tensors."""
    if isinstance(form, Slot):
        return tensors[form.index]
    if not isinstance(form, Container):
        return form
    parts = [rebuild(part, tensors) for part in form.forms]
    return dict(zip(form.keys, parts, strict=True)) if form.kind is dict else form.kind(parts)
