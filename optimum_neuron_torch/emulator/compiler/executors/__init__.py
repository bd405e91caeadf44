"""Executors: what runs a host graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from optimum_neuron_torch.emulator.compiler.graph import HostGraph
from optimum_neuron_torch.emulator.compiler.metrics import GraphRecord
from optimum_neuron_torch.emulator.compiler.stablehlo import StableHlo
from optimum_neuron_torch.emulator.compiler.tracing import Decompositions


class Program(Protocol):
    """A compiled graph: host tensors in, host tensors out, input mutations done in place."""

    takes_device_tensors: bool

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        """Run on `args`; the list may be emptied."""

    def prepare_for_storage(self) -> Program:
        """A copy that pickles; this one stays usable."""

    def revive(self, record: GraphRecord) -> None:
        """Make an unpickled program callable; `record` is its graph's in this process."""


class Executor(Protocol):
    """One way to run host graphs."""

    name: str
    runs_stablehlo: bool

    def decompositions(self) -> Decompositions:
        """The decompositions under which the graph is traced for this executor."""

    def compile(self, graph: HostGraph, record: GraphRecord) -> Program:
        """Compile `graph`, which may be consumed; `record` is kept up to date with what runs it."""

    def compile_stablehlo(self, lowered: StableHlo, record: GraphRecord) -> Program:
        """Compile a lowered graph; only where `runs_stablehlo`."""


_MODULES = {"aten": "host", "inductor": "host", "tiered": "host", "xla": "xla"}


def executor_named(name: str) -> Executor:
    """The executor called `name`; its dependencies are imported here and no earlier."""
    module = import_module(f"{__name__}.{_MODULES[name]}")
    make: Callable[[], Executor] = getattr(module, name)
    return make()
