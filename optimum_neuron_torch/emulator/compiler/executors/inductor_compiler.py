"""Compile a host graph to C++ with Inductor."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._inductor import codecache, compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import make_fallback
from torch._inductor.output_code import CompiledFxGraph

from optimum_neuron_torch.emulator.compiler.executors.inductor import CONFIG, recording_kernels
from optimum_neuron_torch.emulator.compiler.graph import HostGraph
from optimum_neuron_torch.emulator.compiler.passes.attention import FLASH, single_query_as_math
from optimum_neuron_torch.emulator.compiler.passes.narrow_products import with_narrow_products
from optimum_neuron_torch.emulator.compiler.tracing import Decompositions, trace_on_host


def compile_graph(
    graph: HostGraph, *, threads: int | None = None, settings: Mapping[str, Any] | None = None
) -> tuple[CompiledFxGraph, dict[str, Path]]:
    """
    Compile a host graph, which is consumed; returns its code and its kernels.

    Args:
        threads: how many threads its loops are split for; None takes PyTorch's present number.
        settings: further settings of Inductor.
    """
    config = {**CONFIG, "cpp.threads": threads or torch.get_num_threads(), **(settings or {})}
    if shutil.which("openssl") is None:  # which names the precompiled headers
        config["cpp_cache_precompile_headers"] = False
    _forget_kernels()
    _call_kernels_of_matrix_and_vector()
    with (
        inductor_config.patch(config),
        torch._functorch.config.patch(bundled_autograd_cache=True),
        recording_kernels() as kernels,
    ):
        traced = trace_on_host(graph.module, graph.inputs, decompositions(), kind=graph.kind)
        code = compile_fx.compile_fx_inner(
            traced.module,
            traced.inputs,
            is_inference=graph.kind == "inference",
            is_backward=graph.kind == "backward",
        )
        return code, kernels()


def decompositions() -> Decompositions:
    """The decompositions under which a graph is traced for Inductor."""
    # Inductor writes KV caches in place for `index_put` only, hence `index_copy` in terms of it.
    return {
        **with_narrow_products(select_decomp_table()),
        FLASH: single_query_as_math,
        torch.ops.aten.index_copy.default: _index_copy_as_index_put,
    }


@functools.cache
def _call_kernels_of_matrix_and_vector() -> None:
    """Inductor has no lowering of them, since its own table leaves none in a graph."""
    for operator in (torch.ops.aten.mv.default, torch.ops.aten.addmv.default):
        make_fallback(operator, warn=False, override_decomp=True)


def _forget_kernels() -> None:
    """Inductor compiles a kernel once per process; a program is stored with all of its kernels."""
    for library in (codecache.CppCodeCache, codecache.CppPythonBindingsCodeCache):
        library.cache_clear()


def _index_copy_as_index_put(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    indices: list[torch.Tensor | None] = [None] * (dim % x.dim()) + [index]
    return torch.ops.aten.index_put(x, indices, source)
