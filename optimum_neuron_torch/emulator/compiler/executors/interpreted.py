"""A graph that runs its operators one by one, and how it is stored."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

from torch import fx
from torch.fx.graph import _BoxedCodeGen


class InterpretedProgram:
    """A graph module behind the boxed calling convention; subclasses say whose tensors it takes."""

    takes_device_tensors: bool

    def __init__(self, module: fx.GraphModule) -> None:
        module.graph.set_codegen(_BoxedCodeGen())
        module.recompile()
        self._module: fx.GraphModule | None = module
        self._pickled: bytes | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._module.forward(args)  # type: ignore[union-attr]

    def prepare_for_storage(self) -> Self:
        from optimum_neuron_torch.emulator.compiler.cache import pickle_graph

        stored = copy.copy(self)
        stored._pickled, stored._module = pickle_graph(self._module), None
        return stored

    def revive(self) -> None:
        from optimum_neuron_torch.emulator.compiler.cache import unpickle_graph

        self.__init__(unpickle_graph(self._pickled))  # type: ignore[misc]
