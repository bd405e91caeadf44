"""Executor `aten`: run the graph's ATen operators one by one on the host."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import fx
from torch.fx.graph import _BoxedCodeGen

from optimum_neuron_torch.emulator.compiler.graph import HostGraph
from optimum_neuron_torch.emulator.compiler.passes.layouts import accept_any_layout
from optimum_neuron_torch.emulator.compiler.passes.reinplace import reinplace_input_writes
from optimum_neuron_torch.emulator.compiler.tracing import Decompositions


class AtenProgram:
    """A graph module behind the boxed calling convention."""

    takes_device_tensors = False

    def __init__(self, module: fx.GraphModule) -> None:
        module.graph.set_codegen(_BoxedCodeGen())
        module.recompile()
        self._module: fx.GraphModule | None = module
        self._pickled: bytes | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._module.forward(args)  # type: ignore[union-attr]

    def prepare_for_storage(self) -> AtenProgram:
        from optimum_neuron_torch.emulator.compiler.cache import pickle_graph

        stored = copy.copy(self)
        stored._pickled, stored._module = pickle_graph(self._module), None
        return stored

    def revive(self) -> None:
        from optimum_neuron_torch.emulator.compiler.cache import unpickle_graph

        self.__init__(unpickle_graph(self._pickled))  # type: ignore[misc]


class AtenExecutor:
    """Nothing is compiled: the first result is there at once, at eager speed."""

    name = "aten"
    runs_stablehlo = False

    def decompositions(self) -> Decompositions:
        return {}

    def compile(self, graph: HostGraph) -> AtenProgram:
        reinplace_input_writes(graph.module)
        accept_any_layout(graph.module)
        return AtenProgram(graph.module)
