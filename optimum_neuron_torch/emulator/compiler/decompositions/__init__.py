"""Decompositions: operators of accelerators that the host lacks, and operators that torch-mlir lacks.

Each module closes one gap and holds a table `DECOMPOSITIONS`. A gap closed upstream is a module to delete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch


HOST_GAPS = ("histogram",)
LOWERING_GAPS = (
    *HOST_GAPS,
    "any_dims",
    "as_strided",
    "attention",
    "batch_norm",
    "bitwise_scalars",
    "convolution_backward",
    "cumulative",
    "diagonal",
    "distance",
    "empty",
    "empty_slice",
    "extremes",
    "floor_division",
    "grouped_mm",
    "hypot",
    "masked_assignment",
    "masked_scatter_backward",
    "matrix_vector",
    "max_pool_backward",
    "number_reductions",
    "pooling",
    "remainder",
    "slice_scatter",
    "solve_triangular",
    "sort",
    "squeeze",
    "unfold",
    "unsigned_comparison",
    "variance",
    "weight_norm",
)


@functools.cache
def host_decompositions() -> dict[Any, Callable[..., Any]]:
    """What every trace on the host needs: operators of accelerators that the CPU has no kernel for."""
    from optimum_neuron_torch.emulator.compiler.passes.attention import HOST_ATTENTION

    table = dict(HOST_ATTENTION)
    for gap in HOST_GAPS:
        table.update(import_module(f"{__name__}.{gap}").DECOMPOSITIONS)
    return table


def lowering_decompositions() -> dict[Any, Callable[..., Any]]:
    """The table under which a graph is traced for the lowering."""
    table = dict(_aten_decompositions())
    for name, decomposition in import_module(f"{__name__}.grouped_mm").BY_NAME.items():
        if operator := _operator_named(name):
            table[operator] = decomposition
    return table


@functools.cache
def _aten_decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions

    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    for gap in LOWERING_GAPS:
        table.update(import_module(f"{__name__}.{gap}").DECOMPOSITIONS)
    return table


def _operator_named(name: str) -> Any:
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    return getattr(packet, "default", None)
