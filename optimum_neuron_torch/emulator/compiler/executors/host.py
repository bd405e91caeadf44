"""Executors on the host's memory: `aten` interprets a graph, `inductor` compiles it, `tiered` does both in turn.

A tiered graph gives its first result at once, operator by operator, and runs Inductor's program as soon as there is
one: from the store, from a child that compiles in the background, or from `finish_compilations()`.
"""

from __future__ import annotations

import copy
import functools
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Self

from torch import fx

from optimum_neuron_torch.emulator.compiler.executors.inductor import Call, has_compiler
from optimum_neuron_torch.emulator.compiler.executors.interpreted import boxed
from optimum_neuron_torch.emulator.compiler.graph import GraphSource, HostGraph, unpickle_graph
from optimum_neuron_torch.emulator.compiler.metrics import GraphRecord
from optimum_neuron_torch.emulator.compiler.passes.layouts import accept_any_layout
from optimum_neuron_torch.emulator.compiler.passes.reinplace import find_input_writes, write_in_place
from optimum_neuron_torch.emulator.compiler.stablehlo import StableHlo
from optimum_neuron_torch.emulator.compiler.tracing import Decompositions


ATEN, INDUCTOR, TIERED = "aten", "inductor", "tiered"
# The graphs of this process that have, or may get, a compiled program, by their digests.
_live: weakref.WeakValueDictionary[str, HostProgram] = weakref.WeakValueDictionary()


class HostExecutor:
    """Runs graphs on the host; `name` says by which tiers."""

    runs_stablehlo = False

    def __init__(self, name: str) -> None:
        self.name = name

    def decompositions(self) -> Decompositions:
        """None: the stored graph serves every tier, and Inductor traces it again under its own."""
        return {}

    def compile(self, graph: HostGraph, record: GraphRecord) -> HostProgram:
        """A program of `graph`, ready to run."""
        return HostProgram(graph, record, self.name)

    def compile_stablehlo(self, lowered: StableHlo, record: GraphRecord) -> HostProgram:
        raise NotImplementedError(f"executor {self.name!r} runs FX graphs, not StableHLO")


class HostProgram:
    """A host graph, interpreted or compiled; calls always go to the faster of what there is."""

    takes_device_tensors = False

    def __init__(self, graph: HostGraph, record: GraphRecord, tier: str) -> None:
        self.tier = tier
        self.digest = graph.digest()
        self.nodes = len(graph.calls)
        self.record = record
        self.slow_seconds = 0.0
        self._graph: HostGraph | None = graph
        self._source: GraphSource | None = None
        self._in_place = find_input_writes(graph.module)
        self._lock = threading.Lock()
        self._start()

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._run(args)

    def source(self) -> GraphSource:
        """The graph as another process can compile it."""
        with self._lock:
            if self._source is None:
                self._source, self._graph = GraphSource.of(self._graph), None  # type: ignore[arg-type]
            return self._source

    def use(self, call: Call, *, seconds: float = 0.0) -> None:
        """From now on run `call`, Inductor's program, which took `seconds` to compile."""
        self._run = call
        self._interpreted = None
        self.record.executor = INDUCTOR
        self.record.torch_neuronx_compile_us += int(seconds * 1e6)

    def compile_now(self) -> None:
        """Compile in this process, and use the result."""
        from optimum_neuron_torch.emulator.compiler import programs

        start = time.perf_counter()
        call = programs.build(programs.key_of(self.digest), self._host_graph())
        self.use(call, seconds=time.perf_counter() - start)

    def prepare_for_storage(self) -> Self:
        self.source()
        stored = copy.copy(self)
        stored._graph = stored._lock = stored._run = stored._interpreted = stored.record = None
        return stored

    def revive(self, record: GraphRecord) -> None:
        """Make an unpickled program callable."""
        self.record, self.slow_seconds, self._lock = record, 0.0, threading.Lock()
        self._start()

    def _start(self) -> None:
        self.record.executor = ATEN
        if self.tier == ATEN or not self.nodes:
            self._interpret()
            return
        self.record.program = self.digest
        _live[self.digest] = self
        from optimum_neuron_torch.emulator.compiler import background, programs

        if call := programs.load(programs.key_of(self.digest)):
            self.use(call)
        elif not has_compiler():
            self._interpret()
            warnings.warn(
                "No working C++ compiler: graphs for neuron are interpreted (executor 'aten') instead of compiled. "
                "Install one, or name it in CXX.",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self.tier == INDUCTOR:
            self.use(programs.build(programs.key_of(self.digest), self._host_graph()))
        else:
            self._interpret()
            background.submit(self)

    def _host_graph(self) -> HostGraph:
        return self._graph or self._source.graph()  # type: ignore[union-attr]

    def _interpret(self) -> None:
        module = _copy(self._graph.module) if self._graph else unpickle_graph(self._source.module)  # type: ignore[union-attr]
        write_in_place(module, self._in_place)
        accept_any_layout(module)
        self._interpreted = boxed(module)
        self._run = self._run_timed if self.tier == TIERED else self._run_interpreted

    def _run_interpreted(self, args: list[Any]) -> Sequence[Any]:
        return self._interpreted.forward(args)  # type: ignore[union-attr]

    def _run_timed(self, args: list[Any]) -> Sequence[Any]:
        module = self._interpreted
        if module is None:  # the fast program came in between
            return self._run(args)
        start = time.perf_counter()
        try:
            return module.forward(args)
        finally:
            self.slow_seconds += time.perf_counter() - start


def live_graph(digest: str) -> HostGraph | None:
    """The graph with a digest, if it is in use in this process, in a copy that may be consumed."""
    program = _live.get(digest)
    return None if program is None else program.source().graph()


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


aten, inductor, tiered = (functools.partial(HostExecutor, name) for name in (ATEN, INDUCTOR, TIERED))
