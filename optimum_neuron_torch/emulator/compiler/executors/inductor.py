"""Executor `inductor`: compile the graph to C++ with Inductor."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.output_code import CompiledFxGraph

from optimum_neuron_torch.emulator.compiler.executors.aten import AtenExecutor
from optimum_neuron_torch.emulator.compiler.graph import HostGraph
from optimum_neuron_torch.emulator.compiler.passes.attention import FLASH, single_query_as_math
from optimum_neuron_torch.emulator.compiler.tracing import Decompositions


# `vec_isa_ok` skips up to ten trial compilations (14 s of a cold start); the ISA is still read from cpuid.
_CONFIG = {"cpp.vec_isa_ok": True}


class InductorProgram:
    """Inductor's compiled graph."""

    takes_device_tensors = False

    def __init__(self, code: CompiledFxGraph) -> None:
        self._code = code

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._code(args)

    def prepare_for_storage(self) -> InductorProgram:
        stored = copy.copy(self)
        stored._code = copy.copy(self._code)
        stored._code.prepare_for_serialization()
        return stored

    def revive(self) -> None:
        from optimum_neuron_torch.emulator.compiler.cache import revive_inductor_code

        with inductor_config.patch(_CONFIG):
            self._code = revive_inductor_code(self._code)


class InductorExecutor:
    """The default: compiles for seconds to a minute, then runs at Inductor's speed."""

    name = "inductor"
    runs_stablehlo = False

    def decompositions(self) -> Decompositions:
        with inductor_config.patch(_CONFIG):
            table = select_decomp_table()
        # Inductor writes KV caches in place for `index_put` only, hence `index_copy` in terms of it.
        return {**table, FLASH: single_query_as_math, torch.ops.aten.index_copy.default: _index_copy_as_index_put}

    def compile(self, graph: HostGraph) -> Any:
        if not graph.calls:
            return AtenExecutor().compile(graph)
        if not _has_cpp_compiler():
            warnings.warn(
                "No working C++ compiler: graphs for neuron are interpreted (executor 'aten') instead of compiled. "
                "Install one, or name it in CXX.",
                RuntimeWarning,
                stacklevel=2,
            )
            return AtenExecutor().compile(graph)
        from optimum_neuron_torch.emulator.compiler.cache import discard_kernels, holds_kernels

        had_kernels = holds_kernels()
        try:
            return InductorProgram(_compile(graph))
        except Exception as error:  # a damaged module or kernel fails in any way Python and the linker know
            if not had_kernels:
                raise
            error = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(f"A cached kernel is compiled anew: {error}.", RuntimeWarning, stacklevel=2)
            discard_kernels()
            return InductorProgram(_compile(graph))


def _compile(graph: HostGraph) -> CompiledFxGraph:
    # With bundling on, Inductor would skip its own cache, which serves where AOTAutograd's result does not.
    with inductor_config.patch(_CONFIG), torch._functorch.config.patch(bundled_autograd_cache=False):
        return compile_fx.compile_fx_inner(
            graph.module,
            graph.inputs,
            is_inference=graph.kind == "inference",
            is_backward=graph.kind == "backward",
        )


@functools.cache
def _has_cpp_compiler() -> bool:
    try:
        return bool(get_cpp_compiler())
    except (InvalidCxxCompiler, OSError):
        return False


def _index_copy_as_index_put(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    indices: list[torch.Tensor | None] = [None] * (dim % x.dim()) + [index]
    return torch.ops.aten.index_put(x, indices, source)
