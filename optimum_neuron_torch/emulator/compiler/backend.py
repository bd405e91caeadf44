"""From one Dynamo graph to a callable: the story of a compilation."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from optimum_neuron_torch.emulator import device, logs
from optimum_neuron_torch.emulator.compiler import (
    artifacts,
    cache,
    dynamo_watch,
    dynamo_wiring,
    metrics,
    recompiles,
    stablehlo,
)
from optimum_neuron_torch.emulator.compiler.announcing import announce, announce_recompile
from optimum_neuron_torch.emulator.compiler.compiled import CompiledGraph, OutputPlan
from optimum_neuron_torch.emulator.compiler.errors import LoweringError, NeuronCompilerError, RecompileError
from optimum_neuron_torch.emulator.compiler.executors import Executor, Program, executor_named
from optimum_neuron_torch.emulator.compiler.executors.eager import EagerProgram
from optimum_neuron_torch.emulator.compiler.graph import Kind, TensorLayout, value_of
from optimum_neuron_torch.emulator.compiler.options import CompileOptions
from optimum_neuron_torch.emulator.compiler.passes.outputs import has_known_layout
from optimum_neuron_torch.emulator.compiler.passes.randomness import DrawnGraph, make_draws_inputs
from optimum_neuron_torch.emulator.compiler.session import Session
from optimum_neuron_torch.emulator.compiler.shapes import refuse_dynamic, specialise
from optimum_neuron_torch.emulator.compiler.source import describe_inputs, first_user_line
from optimum_neuron_torch.emulator.compiler.strict_types import TypeUse, refuse_types, types_used
from optimum_neuron_torch.emulator.compiler.tracing import trace_on_host


dynamo_watch.install()
dynamo_wiring.install()


def compile_dynamo_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend proper: what Dynamo calls with each graph it captured."""
    chosen = CompileOptions.parse(options, mode)
    refuse_dynamic()
    static_inputs = specialise(gm, example_inputs)
    inputs = recompiles.user_inputs(gm, static_inputs)
    reason = _explain_recompile(gm, inputs, chosen)
    _refuse_recompile(gm, inputs, reason)
    _refuse_cpu_inputs(static_inputs)
    recompiles.remember(inputs, first_user_line(gm))

    def compiler(kind: Kind) -> Callable[..., Any]:
        return cache.cacheable(functools.partial(_compile_aot_graph, kind=kind, session=session))

    session = Session.start(chosen, inputs=recompiles.describe(inputs), recompile_reason=reason)
    with session, cache.enabled(gm, static_inputs, chosen):
        # No decompositions here: each executor, and the lowering, traces AOTAutograd's graph again under its own.
        return aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )(gm, static_inputs)


def _compile_aot_graph(gm: fx.GraphModule, inputs: Sequence[Any], *, kind: Kind, session: Session) -> CompiledGraph:
    options = session.options
    if kind == "backward":
        _donate_no_buffers()
    record = metrics.GraphRecord(executor=options.executor, torch_neuronx_trace_us=session.trace_us())
    session.name_graph(record, kind)
    _describe(gm, record)
    if kind != "backward":  # what a forward graph saves for it is no input of the user's
        record.cpu_inputs = sum(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in inputs)
    logs.emit(logs.GRAPHS, lambda: _titled(record, gm.print_readable(print_output=False)))
    types = _note_types(gm, record)
    outputs = _plan_outputs(gm, inputs)
    drawn = _take_out_draws(gm, inputs, options=options, record=record)
    lowered = _check_lowering(drawn, kind=kind, options=options, record=record)
    artifacts.keep(gm, lowered, record)
    if lowered is not None:
        logs.emit(logs.STABLEHLO, lambda: _titled(record, lowered.module))
    if record.lowering == "fallback":
        program, constants = EagerProgram(drawn.module), []
    else:
        program, constants = _compile_for_host(drawn, kind=kind, record=record, lowered=lowered)
    metrics.add(record)
    announce(record)
    session.resume_tracing()
    return CompiledGraph(program, outputs, record, kind=kind, constants=constants, draws=drawn.draws, types=types)


def _note_types(gm: fx.GraphModule, record: metrics.GraphRecord) -> tuple[TypeUse, ...]:
    types = types_used(gm)
    refuse_types(types, device.strict_kinds())
    for use in types:
        setattr(record, f"{use.kind}_nodes", use.count)
    return types


def _donate_no_buffers() -> None:
    """A backward graph may run twice (`retain_graph`): it must not write into what its forward graph saved."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _take_out_draws(
    gm: fx.GraphModule, inputs: Sequence[Any], *, options: CompileOptions, record: metrics.GraphRecord
) -> DrawnGraph:
    try:
        return make_draws_inputs(gm, inputs)
    except LoweringError:
        if not options.fallback_execution:
            raise
        _fall_back(record)
        return DrawnGraph(gm, list(inputs))


def _fall_back(record: metrics.GraphRecord) -> None:
    record.lowering, record.executor = "fallback", "eager"
    metrics.warn_fallback(record)


def _check_lowering(
    drawn: DrawnGraph, *, kind: Kind, options: CompileOptions, record: metrics.GraphRecord
) -> stablehlo.StableHlo | None:
    """Lower the graph if that is wanted and possible; note in the record what came of it."""
    if record.lowering == "fallback":
        return None
    if options.lowering == "off" and options.executor != "xla":
        record.lowering = "off"
        return None
    if not stablehlo.is_available():
        if options.executor == "xla":
            raise NeuronCompilerError("executor='xla' needs torch-mlir, which is not installed.")
        record.lowering = "unavailable"
        return None
    try:
        with record.timed("lower"):
            lowered = stablehlo.lower(drawn.module, drawn.inputs, kind=kind)
        _refuse_kernels(lowered, options)
    except LoweringError:
        if not options.fallback_execution:
            raise
        _fall_back(record)
        return None
    record.lowering = "checked"
    return lowered


def _refuse_kernels(lowered: stablehlo.StableHlo, options: CompileOptions) -> None:
    if lowered.kernels and executor_named(options.executor).runs_stablehlo:
        raise LoweringError(
            f"executor={options.executor!r} computes StableHLO, and the NKI kernels {', '.join(lowered.kernels)} have "
            "none: to it they are calls of something unknown. Take executor 'aten', 'inductor' or 'tiered', which run "
            'kernels in the simulator, or let such graphs run eagerly with options={"fallback_execution": True}.',
            op=lowered.kernels[0],
        )


def _compile_for_host(
    drawn: DrawnGraph,
    *,
    kind: Kind,
    record: metrics.GraphRecord,
    lowered: stablehlo.StableHlo | None,
) -> tuple[Program, list[torch.Tensor]]:
    executor: Executor = executor_named(record.executor)
    if executor.runs_stablehlo:
        with record.timed("compile"):
            return executor.compile_stablehlo(lowered, record), []
    with record.timed("fx_passes"):
        host = trace_on_host(drawn.module, drawn.inputs, executor.decompositions(), kind=kind)
    logs.emit(logs.HOST_GRAPHS, lambda: _titled(record, host.module.print_readable(print_output=False)))
    with record.timed("compile"):
        return executor.compile(host, record), host.constants


def _titled(record: metrics.GraphRecord, text: str) -> str:
    return f"{record.graph_name}\n{text}"


def _plan_outputs(gm: fx.GraphModule, inputs: Sequence[Any]) -> OutputPlan:
    values = [value_of(result) for result in gm.graph.output_node().args[0]]  # type: ignore[union-attr]
    tensors = [value for value in (*inputs, *values) if isinstance(value, torch.Tensor)]
    index = next((value.device.index or 0 for value in tensors if value.device.type == "neuron"), None)
    return OutputPlan(
        device_index=index,
        on_host=tuple(
            position
            for position, value in enumerate(values)
            if isinstance(value, torch.Tensor) and value.device.type == "cpu"
        ),
        results=tuple(_without_data(value) for value in values),
    )


def _without_data(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return TensorLayout.of(value) if has_known_layout(value) else None


def _describe(gm: fx.GraphModule, record: metrics.GraphRecord) -> None:
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    record.graph_node_count = len(calls)
    record.has_collectives = any("c10d" in str(node.target) for node in calls)
    placeholders = [describe_inputs([node.meta.get("val")]) for node in gm.graph.find_nodes(op="placeholder")]
    record.graph_id = hashlib.sha256("\n".join([*placeholders, gm.code]).encode()).hexdigest()


def _explain_recompile(gm: fx.GraphModule, inputs: recompiles.Inputs, options: CompileOptions) -> str:
    """Why this function is compiled again, said in the log; empty for a first compilation."""
    reason = recompiles.current_reason()
    if reason is None:
        return ""
    explanation = recompiles.explain(reason, inputs)
    name = options.model_name or metrics.get_model_name()
    announce_recompile(f"{name} ({first_user_line(gm)})", explanation, reason)
    return explanation


def _refuse_recompile(gm: fx.GraphModule, inputs: recompiles.Inputs, reason: str) -> None:
    if recompiles.are_refused():
        raise RecompileError(
            f"A new graph after warm-up, under strict 'recompile': {first_user_line(gm)}; "
            f"inputs {recompiles.describe(inputs)}. {f'Changed: {reason}. ' if reason else ''}"
            "Warm up this shape too, or pad its inputs to one that is warm."
        )


def _refuse_cpu_inputs(inputs: Sequence[Any]) -> None:
    """TorchNeuron copies a CPU tensor that enters a graph; here it is read where it lies, unless that is forbidden."""
    if os.environ.get("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "").lower() not in ("1", "true"):
        return
    kinds = {value.device.type for value in inputs if isinstance(value, torch.Tensor)}
    if {"cpu", "neuron"} <= kinds:
        raise NeuronCompilerError(
            f"A CPU tensor enters a compiled neuron graph ({describe_inputs(inputs)}) and "
            "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY forbids the copy. Move it to neuron first."
        )
