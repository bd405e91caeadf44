"""What runs a graph that does not lower, under `fallback_execution`: the device's own eager operators, one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import fx
from torch.fx.graph import _BoxedCodeGen


class EagerProgram:
    """The device's graph as it is. It takes neuron tensors, and its operators count as eager signatures."""

    takes_device_tensors = True

    def __init__(self, module: fx.GraphModule) -> None:
        module.graph.set_codegen(_BoxedCodeGen())
        module.recompile()
        self._module: fx.GraphModule | None = module
        self._pickled: bytes | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._module.forward(args)  # type: ignore[union-attr]

    def prepare_for_storage(self) -> EagerProgram:
        from optimum_neuron_torch.emulator.compiler.cache import pickle_graph

        stored = copy.copy(self)
        stored._pickled, stored._module = pickle_graph(self._module), None
        return stored

    def revive(self) -> None:
        from optimum_neuron_torch.emulator.compiler.cache import unpickle_graph

        self.__init__(unpickle_graph(self._pickled))  # type: ignore[misc]
