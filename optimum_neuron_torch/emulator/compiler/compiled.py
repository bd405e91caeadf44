"""What AOTAutograd calls for each graph: aliases in, program, wrapped results out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.compiler import compile_only
from optimum_neuron_torch.emulator.compiler.executors import Program
from optimum_neuron_torch.emulator.compiler.graph import Kind, TensorLayout
from optimum_neuron_torch.emulator.compiler.metrics import GraphRecord, count_cpu_autocopies
from optimum_neuron_torch.emulator.compiler.passes.randomness import Draw, draw
from optimum_neuron_torch.emulator.compiler.strict_types import TypeUse, refuse_types, refuse_values
from optimum_neuron_torch.emulator.device import extension


_exchange_allocating_core = extension.load().exchange_allocating_core
_is_profiling = extension.load().is_profiling
_strict_kinds = extension.load().strict_kinds
_IS_COMPILE_ONLY = compile_only.is_on()


@dataclass(frozen=True)
class OutputPlan:
    """
    Where and how results leave a graph.

    Args:
        device_index: neuron device of the results; None for a graph without neuron tensors.
        on_host: positions of results that the program left on the CPU.
        results: the layouts that eager execution gives; None for one that is not known; what is no tensor is itself.
    """

    device_index: int | None
    on_host: tuple[int, ...]
    results: tuple[TensorLayout | Any, ...]


class CompiledGraph:
    """A program over host memory, callable with neuron tensors (boxed: the argument list is emptied)."""

    _boxed_call = True

    def __init__(
        self,
        program: Program,
        outputs: OutputPlan,
        record: GraphRecord,
        *,
        kind: Kind,
        constants: Sequence[torch.Tensor] = (),
        draws: Sequence[Draw] = (),
        types: Sequence[TypeUse] = (),
    ) -> None:
        self.program = program
        self.outputs = outputs
        self.record = record
        self.kind = kind
        self.constants = list(constants)
        self.draws = tuple(draws)
        self.types = tuple(types)
        # Results whose strides the executor gets wrong; shapes are static, so the first call shows all of them.
        self._restrided: tuple[int, ...] | None = None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if _IS_COMPILE_ONLY:
            args.clear()
            return self._on_core(self._zeros, args)
        if self.types and (kinds := _strict_kinds()):
            return self._call_strictly(args, kinds)
        if _is_profiling():
            return self._call_profiled(args)
        return self._call(args)

    def _call_strictly(self, args: list[Any], kinds: Sequence[str]) -> Sequence[Any]:
        refuse_types(self.types, kinds)
        refuse_values((*args, *self.constants), kinds, f"graph {self.record.graph_name} takes")
        results = self._call_profiled(args) if _is_profiling() else self._call(args)
        refuse_values(results, kinds, f"graph {self.record.graph_name} gives")
        return results

    def _call_profiled(self, args: list[Any]) -> Sequence[Any]:
        """The call as one range of the device in `torch.profiler`, as a compiled graph is one on Trainium."""
        module = extension.load()
        start = module.profiler_clock()
        try:
            return self._call(args)
        finally:
            module.record_graph(f"graph {self.record.graph_name}", self.outputs.device_index or 0, start)

    def _call(self, args: list[Any]) -> Sequence[Any]:
        if self.record.cpu_inputs:
            count_cpu_autocopies(self.record.cpu_inputs)
        if self.program.takes_device_tensors:
            return self._call_on_device(args)
        host_args = device.host_aliases(args)
        args.clear()
        return self._on_core(self._run, host_args)

    def _on_core(self, run: Callable[[list[Any]], Sequence[Any]], host_args: list[Any]) -> Sequence[Any]:
        """What `run` returns, as tensors of the graph's core, in whose memory they are made."""
        index = self.outputs.device_index
        if index is None:
            return run(host_args)
        # `device.allocating_on(index)` without its generator, which costs as much as the rest of this call.
        previous = _exchange_allocating_core(index)
        try:
            results = run(host_args)
        finally:
            _exchange_allocating_core(previous)
        wrapped = device.device_aliases(list(results), index)
        for position in self.outputs.on_host:
            wrapped[position] = results[position]
        return wrapped

    def _zeros(self, host_args: list[Any]) -> list[Any]:
        return [result.zeros() if isinstance(result, TensorLayout) else result for result in self.outputs.results]

    def _call_on_device(self, args: list[Any]) -> Sequence[Any]:
        for step, drawn in zip(self.draws, draw(self.draws, args), strict=True):
            on_device = step.core is not None and step.method != "state"
            args.append(device.device_alias(drawn, step.core) if on_device else drawn)
        return self.program(args)

    def _run(self, host_args: list[Any]) -> Sequence[Any]:
        if self.draws:
            host_args.extend(draw(self.draws, host_args))
        host_args.extend(self.constants)
        results = self.program(host_args)
        return results if self._restrided == () else self._with_eager_strides(list(results))

    def _with_eager_strides(self, results: list[Any]) -> list[Any]:
        if self._restrided is None:
            self._restrided = tuple(
                position
                for position, (result, layout) in enumerate(zip(results, self.outputs.results, strict=True))
                if isinstance(layout, TensorLayout) and not _has_layout(result, layout.stride)
            )
        for position in self._restrided:
            results[position] = _restride(results[position], self.outputs.results[position].stride)
        return results


def _has_layout(result: torch.Tensor, strides: tuple[int, ...]) -> bool:
    # The stride of an axis with one element addresses nothing.
    return result.numel() == 0 or all(
        size == 1 or have == want for size, have, want in zip(result.size(), result.stride(), strides, strict=True)
    )


def _restride(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    wanted = torch.empty_strided(result.size(), strides, dtype=result.dtype)
    if torch._debug_has_internal_overlap(wanted) == 1:
        return result  # expanded in eager: the compact form reads the same
    return wanted.copy_(result)
