"""What runs a graph that does not lower, under `fallback_execution`: the device's own eager operators, one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

from torch import fx

from optimum_neuron_torch.emulator.compiler.executors.interpreted import boxed
from optimum_neuron_torch.emulator.compiler.graph import pickle_graph, unpickle_graph
from optimum_neuron_torch.emulator.compiler.metrics import GraphRecord


class EagerProgram:
    """The device's graph as it is. It takes neuron tensors, and its operators count as eager signatures."""

    takes_device_tensors = True

    def __init__(self, module: fx.GraphModule) -> None:
        self._module: fx.GraphModule | None = boxed(module)
        self._pickled = b""

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._module.forward(args)  # type: ignore[union-attr]

    def prepare_for_storage(self) -> Self:
        stored = copy.copy(self)
        stored._pickled, stored._module = pickle_graph(self._module), None  # type: ignore[arg-type]
        return stored

    def revive(self, record: GraphRecord) -> None:
        """Make an unpickled program callable."""
        self._module = boxed(unpickle_graph(self._pickled))
