"""From one Dynamo graph to a callable: the story of a compilation."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.compiler import metrics
from optimum_neuron_torch.emulator.compiler.compiled import CompiledGraph, OutputPlan
from optimum_neuron_torch.emulator.compiler.errors import RecompileError
from optimum_neuron_torch.emulator.compiler.executors import executor_named
from optimum_neuron_torch.emulator.compiler.graph import Kind
from optimum_neuron_torch.emulator.compiler.options import CompileOptions
from optimum_neuron_torch.emulator.compiler.tracing import trace_on_host


def compile_dynamo_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend proper: what Dynamo calls with each graph it captured."""
    chosen = CompileOptions.parse(options, mode)
    compiler = functools.partial(_compile_aot_graph, options=chosen)
    return aot_module_simplified(
        gm,
        example_inputs,
        fw_compiler=functools.partial(compiler, kind="forward"),
        bw_compiler=torch._dynamo.disable(functools.partial(compiler, kind="backward")),
        inference_compiler=functools.partial(compiler, kind="inference"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )


def _compile_aot_graph(
    gm: fx.GraphModule, inputs: Sequence[Any], *, options: CompileOptions, kind: Kind
) -> CompiledGraph:
    record = metrics.GraphRecord(executor=options.executor, lowering="off")
    executor = executor_named(options.executor)
    with record.timed("fx_passes"):
        host = trace_on_host(gm, inputs, executor.decompositions(), kind=kind)
    with record.timed("compile"):
        program = executor.compile(host)
    metrics.add(record)
    return CompiledGraph(program, _plan_outputs(gm, inputs), record, host.constants)


def _plan_outputs(gm: fx.GraphModule, inputs: Sequence[Any]) -> OutputPlan:
    values = fx.node.map_aggregate(
        gm.graph.output_node().args[0], lambda a: a.meta.get("val") if isinstance(a, fx.Node) else a
    )
    tensors = [value for value in (*inputs, *values) if isinstance(value, torch.Tensor)]
    index = next((value.device.index or 0 for value in tensors if value.device.type == "neuron"), None)
    return OutputPlan(
        device_index=index,
        on_host=tuple(
            position
            for position, value in enumerate(values)
            if isinstance(value, torch.Tensor) and value.device.type == "cpu"
        ),
        strides=tuple(tuple(value.stride()) if isinstance(value, torch.Tensor) else None for value in values),
    )
