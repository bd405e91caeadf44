"""Make a host graph return what the device graph promised.

Some kernels answer differently on the CPU than on an accelerator (layer norm's statistics in bfloat16, the layout of
a log-sum-exp). AOTAutograd has planned the backward, and the user's eager strides, from the device's answer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._prims_common import is_non_overlapping_and_dense_or_false

from optimum_neuron_torch.emulator.compiler.graph import value_of
from optimum_neuron_torch.emulator.compiler.passes.complex_pairs import real_view
from optimum_neuron_torch.emulator.compiler.passes.editing import add_call


def match_outputs(traced: fx.GraphModule, *, like: fx.GraphModule) -> None:
    """Convert dtypes and dense strides of the outputs of `traced` to those of `like`, in place."""
    output = traced.graph.output_node()
    promised = list(like.graph.output_node().args[0])  # type: ignore[arg-type]
    actual = list(output.args[0])  # type: ignore[arg-type]
    if len(promised) != len(actual):
        raise AssertionError(f"the host trace has {len(actual)} outputs, the device graph {len(promised)}")
    with traced.graph.inserting_before(output):
        matched = [_match(traced.graph, node, value_of(want)) for node, want in zip(actual, promised, strict=True)]
    if matched != actual:
        output.args = (tuple(matched),)
        traced.recompile()


def _match(graph: fx.Graph, node: Any, promised: Any) -> Any:
    if not isinstance(node, fx.Node) or not isinstance(promised, torch.Tensor):
        return node
    if promised.is_complex() and not node.meta["val"].is_complex():
        promised = real_view(promised)
    if node.meta["val"].dtype != promised.dtype:
        node = add_call(graph, torch.ops.aten._to_copy.default, node, dtype=promised.dtype)
    if not has_known_layout(promised):
        return node
    if node.meta["val"].stride() != promised.stride() and _is_dense(promised):
        order = sorted(range(promised.dim()), key=lambda axis: -promised.stride(axis))
        node = add_call(graph, torch.ops.aten.permute.default, node, order)
        node = add_call(graph, torch.ops.aten.clone.default, node, memory_format=torch.contiguous_format)
        node = add_call(graph, torch.ops.aten.permute.default, node, [order.index(axis) for axis in range(len(order))])
    return node


def has_known_layout(value: torch.Tensor) -> bool:
    """Whether sizes and strides are numbers. AOTAutograd has symbols where only `known_scalars` knew the number."""
    return not any(isinstance(number, torch.SymInt) for number in (*value.size(), *value.stride()))


def _is_dense(value: torch.Tensor) -> bool:
    return is_non_overlapping_and_dense_or_false(value)
