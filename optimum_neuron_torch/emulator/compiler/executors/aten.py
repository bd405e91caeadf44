"""Executor `aten`: run the graph's ATen operators one by one on the host."""

from __future__ import annotations

from optimum_neuron_torch.emulator.compiler.executors.interpreted import InterpretedProgram
from optimum_neuron_torch.emulator.compiler.graph import HostGraph
from optimum_neuron_torch.emulator.compiler.passes.layouts import accept_any_layout
from optimum_neuron_torch.emulator.compiler.passes.reinplace import reinplace_input_writes
from optimum_neuron_torch.emulator.compiler.tracing import Decompositions


class AtenProgram(InterpretedProgram):
    """The host's graph, on aliases of the device's memory."""

    takes_device_tensors = False


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
