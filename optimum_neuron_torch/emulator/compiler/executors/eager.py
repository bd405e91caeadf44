"""What runs a graph that does not lower, under `fallback_execution`: the device's own eager operators, one by one."""

from __future__ import annotations

from optimum_neuron_torch.emulator.compiler.executors.interpreted import InterpretedProgram


class EagerProgram(InterpretedProgram):
    """The device's graph as it is. It takes neuron tensors, and its operators count as eager signatures."""

    takes_device_tensors = True
