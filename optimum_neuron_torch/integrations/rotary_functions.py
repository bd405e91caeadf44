"""Rotary embeddings, which Transformers' models compute by functions of their files, as layers that can be exchanged.

Transformers makes layers of them itself, where it takes the version of `kernels` that is there; elsewhere they are
layers from the first model that kernels serve until the last is taken back.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch


# As Transformers calls these functions, and the layers that it makes of them.
NAME = "apply_rotary_pos_emb"
LAYER = "rotary_pos_emb"

# Sets an attribute of a file and returns what takes that back; None while nothing is wired.
put: Callable[[ModuleType, str, Callable[[Any], Any]], Callable[[], None]] | None = None


@dataclass(frozen=True)
class Place:
    """Where code of a model finds its function."""

    file: ModuleType
    name: str

    def __str__(self) -> str:
        return f"{self.name} of {self.file.__name__}"

    @property
    def function(self) -> Any:
        return getattr(self.file, self.name, None)

    def take(self, layer: torch.nn.Module) -> None:
        """Let code find `layer` here, until `leave()`."""
        if self.function is not layer:
            assert put is not None
            _undos[layer] = (self, put(self.file, self.name, lambda _: layer))


_undos: dict[torch.nn.Module, tuple[Place, Callable[[], None]]] = {}


def leave(layer: torch.nn.Module) -> None:
    """Let code find the function again that `layer` was made of, unless something else took its place meanwhile."""
    place, undo = _undos.pop(layer, (None, None))
    if place is not None and place.function is layer:
        undo()


def leave_all() -> None:
    for layer in list(_undos):
        leave(layer)


def rotary_places(model: torch.nn.Module) -> Iterator[Place]:
    """The functions in the files of the classes of `model`.

    What a module says it calls may be a copy, if the module is: so they are found where its code finds them.
    """
    for name in sorted({type(layer).__module__ for layer in model.modules()} & sys.modules.keys()):
        file = sys.modules[name]
        for attribute, value in list(vars(file).items()):
            is_layer = getattr(type(value), "kernel_layer_name", None) == LAYER
            if is_layer or attribute == NAME and inspect.isfunction(value) and put is not None:
                yield Place(file, attribute)


def as_layer(function: Any) -> torch.nn.Module:
    """A layer that calls `function`, as Transformers makes it."""
    import kernels

    return function if isinstance(function, torch.nn.Module) else kernels.use_kernel_forward_from_hub(LAYER)(function)
