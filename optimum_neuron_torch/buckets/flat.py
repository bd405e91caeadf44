"""Structured arguments as flat tensors and a hashable form: how they enter a compiled function."""

from collections import OrderedDict, UserDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
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
    """A container of forms: a dict or model output (with keys), list, tuple or named tuple."""

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
    if isinstance(value, CONSTANTS):
        return value
    kind = type(value)
    if kind in (dict, OrderedDict) or isinstance(value, UserDict) or _is_model_output(value):
        return Container(kind, tuple(value), tuple(flatten(part, tensors) for part in value.values()))
    if kind in (list, tuple) or _is_named_tuple(kind) or _is_result_of_torch(kind):
        return Container(kind, (), tuple(flatten(part, tensors) for part in value))
    raise NotFlatError(f"a {kind.__name__} is neither a tensor nor a constant of a graph")


def rebuild(form: Form, tensors: Sequence[torch.Tensor]) -> Any:
    """The value that `flatten` took apart, on other tensors."""
    if isinstance(form, Slot):
        return tensors[form.index]
    if not isinstance(form, Container):
        return form
    parts = [rebuild(part, tensors) for part in form.forms]
    if form.kind in (list, tuple) or _is_result_of_torch(form.kind):
        return form.kind(parts)
    if issubclass(form.kind, tuple):
        return form.kind(*parts)
    named = dict(zip(form.keys, parts, strict=True))
    return form.kind(**named) if is_dataclass(form.kind) else named if form.kind is dict else form.kind(named)


def paths(form: Form, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where the tensors are, in their order: keys and positions, outermost first."""
    if isinstance(form, Slot):
        yield path
    elif isinstance(form, Container):
        keys = form.keys or map(str, range(len(form.forms)))
        for key, part in zip(keys, form.forms, strict=True):
            yield from paths(part, (*path, str(key)))


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors that `flatten` finds, in its order. It can be traced into a graph."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in tensors_of(part)]
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return []


def _is_model_output(value: Any) -> bool:
    """Whether `value` is an output of Transformers or Diffusers: an ordered dict that is a dataclass."""
    return isinstance(value, OrderedDict) and is_dataclass(value)


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_result_of_torch(kind: type) -> bool:
    """Whether `kind` is a named result of a torch function (torch.return_types)."""
    return issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields")
