"""The names that code may look for on the neuron device, where each is known from, and what calling it must give.

Provenance: D = documentation of the current release; S = source of the beta (April 2026), so possibly gone since;
H = Hugging Face libraries call it; U = seen in users' code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


CORE = torch.device("neuron", 0)


@dataclass(frozen=True)
class Name:
    """`path` as written in code; `takes` are parameters that a call may name; `check` is true of the object."""

    path: str
    provenance: str
    check: Callable[[Any], bool]
    takes: tuple[str, ...] = ()


def _gives(kind: type | tuple[type, ...], *arguments: Any) -> Callable[[Any], bool]:
    return lambda function: isinstance(function(*arguments), kind)


def _is(expected: Any, *arguments: Any) -> Callable[[Any], bool]:
    return lambda function: function(*arguments) == expected


def _does_nothing(*arguments: Any) -> Callable[[Any], bool]:
    return lambda function: function(*arguments) is None


def _restores_state(set_rng_state: Any) -> bool:
    state = torch.neuron.get_rng_state()
    first = torch.rand(3, device=CORE).cpu()
    set_rng_state(state)
    return torch.equal(first, torch.rand(3, device=CORE).cpu())


def _restores_all(set_rng_state_all: Any) -> bool:
    states = torch.neuron.get_rng_state_all()
    first = torch.rand(3, device="neuron:1").cpu()
    set_rng_state_all(states)
    return torch.equal(first, torch.rand(3, device="neuron:1").cpu())


def _seeds(function: Any) -> bool:
    function(7)
    first = torch.rand(3, device=CORE).cpu()
    function(7)
    return torch.equal(first, torch.rand(3, device=CORE).cpu()) and torch.neuron.initial_seed() == 7


def _switches_core(device: Any) -> bool:
    with device(1):
        inside = torch.neuron.current_device()
    return (inside, torch.neuron.current_device()) == (1, 0)


def _sets_core(set_device: Any) -> bool:
    set_device(1)
    moved = torch.neuron.current_device() == 1
    set_device(0)
    return moved


def _switches_stream(stream: Any) -> bool:
    mine = torch.neuron.Stream()
    with stream(mine):
        inside = torch.neuron.current_stream()
    return inside == mine and torch.neuron.current_stream() != mine


def _sets_stream(set_stream: Any) -> bool:
    before, mine = torch.neuron.current_stream(), torch.neuron.Stream()
    set_stream(mine)
    moved = torch.neuron.current_stream() == mine
    set_stream(before)
    return moved


def _memory_grows(memory_allocated: Any) -> bool:
    before = memory_allocated()
    kept = torch.empty(1 << 16, device=CORE)
    return memory_allocated() >= before + kept.nbytes


def _peak_stays(max_memory_allocated: Any) -> bool:
    torch.neuron.reset_peak_memory_stats()
    before = torch.neuron.memory_allocated()
    kept = torch.empty(1 << 16, device=CORE)
    nbytes = kept.nbytes
    del kept
    return max_memory_allocated() >= before + nbytes


def _has_memory(get_device_properties: Any) -> bool:
    properties = get_device_properties(0)
    return isinstance(properties.name, str) and properties.total_memory > 2**30


DEVICE = [
    Name("is_available", "SDHU", _is(True)),
    Name("is_initialized", "SH", _gives(bool)),
    Name("init", "S", _does_nothing()),
    Name("_lazy_init", "SH", _does_nothing()),
    Name("_is_in_bad_fork", "SH", _is(False)),
    Name("device_count", "SDHU", _is(4)),
    Name("current_device", "SDHU", _is(0)),
    Name("set_device", "SH", _sets_core, ("device",)),
    Name("device", "SH", _switches_core),
    Name("get_device_name", "SDH", _gives(str, 0), ("device",)),
    Name("get_device_properties", "SH", _has_memory, ("device",)),
    Name("synchronize", "SDHU", _does_nothing(0), ("device",)),
    Name("Stream", "SH", _gives(torch.Stream)),
    Name("Event", "SH", lambda event: isinstance(event(enable_timing=True), torch.Event)),
    Name("stream", "SH", _switches_stream),
    Name("current_stream", "SH", _gives(torch.Stream, 0), ("device",)),
    Name("default_stream", "S", _gives(torch.Stream, 0), ("device",)),
    Name("set_stream", "S", _sets_stream),
    Name("wait_stream", "S", lambda wait: wait(torch.neuron.Stream()) is None),
    Name("record_event", "S", _gives(torch.Event)),
    Name("wait_event", "S", lambda wait: wait(torch.neuron.record_event()) is None),
    Name("query", "S", _is(True)),
    Name("manual_seed", "SH", _seeds),
    Name("manual_seed_all", "SH", _seeds),
    Name("seed", "S", lambda seed: seed() is None or torch.neuron.initial_seed() != 7),
    Name("seed_all", "S", lambda seed: seed() is None or torch.neuron.initial_seed() != 7),
    Name("initial_seed", "S", _gives(int)),
    Name("get_rng_state", "SH", lambda get: get().dtype == torch.uint8 and get(0).is_cpu, ("device",)),
    Name("set_rng_state", "SH", _restores_state, ("device",)),
    Name("get_rng_state_all", "H", lambda get: len(get()) == torch.neuron.device_count()),
    Name("set_rng_state_all", "H", _restores_all),
    Name("get_amp_supported_dtype", "SH", lambda get: torch.bfloat16 in get()),
    Name("is_bf16_supported", "SH", _is(True)),
    Name("memory_stats", "S", lambda stats: "allocated_bytes.all.current" in stats(), ("device",)),
    Name("memory_allocated", "SDH", _memory_grows, ("device",)),
    Name("max_memory_allocated", "SDH", _peak_stays, ("device",)),
    Name("memory_reserved", "SD", _gives(int, 0), ("device",)),
    Name("max_memory_reserved", "SD", _gives(int, 0), ("device",)),
    Name("memory_summary", "S", _gives(str, None, True), ("device", "abbreviated")),
    Name("reset_peak_memory_stats", "SDH", _does_nothing(0), ("device",)),
    Name("reset_accumulated_memory_stats", "S", _does_nothing(0), ("device",)),
    Name("empty_cache", "SDH", _does_nothing()),
    Name("mem_get_info", "H", lambda info: 0 < info()[0] <= info()[1], ("device",)),
    Name("get_dynamo_metrics", "S", _gives(list)),
    Name("reset_dynamo_metrics", "S", _does_nothing()),
    Name("_sleep", "S", _does_nothing(10)),
]


def _tracks(get_executed_ops: Any) -> bool:
    torch.ones(5, device=CORE) + 1
    return "aten::add.Tensor" in get_executed_ops()


def _tracks_fallbacks(get_fallback_ops: Any) -> bool:
    torch.linalg.qr(torch.ones(2, 2, device=CORE))
    return "aten::linalg_qr" in get_fallback_ops()


def _forgets(clear: Any) -> bool:
    import torch_neuronx

    torch.ones(5, device=CORE) + 1
    return clear() is None and torch_neuronx.get_executed_ops() == []


def _makes_an_operator(nki_op: Any) -> bool:
    @nki_op("surface_of_neuron::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return torch.equal(torch.ops.surface_of_neuron.twice(torch.ones(2)), torch.full((2,), 2.0))


def _wraps_kernels(wrap_nki: Any) -> bool:
    import nki.isa as nisa
    import nki.language as nl

    def copied(x: Any) -> Any:
        result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=x)
        return result

    x = torch.arange(6.0, device="neuron").reshape(2, 3)
    return torch.equal(wrap_nki(copied)[1](x).cpu(), x.cpu())


PACKAGE = [
    Name("get_executed_ops", "SU", _tracks),
    Name("get_fallback_ops", "SU", _tracks_fallbacks),
    Name("clear_op_tracking", "SU", _forgets),
    Name("nki_op", "SD", _makes_an_operator, ("mutates_args",)),
    Name("wrap_nki", "S", _wraps_kernels),
    Name("memory_stats", "SD", _gives(dict), ("device",)),
    Name("memory_allocated", "SD", _memory_grows, ("device",)),
    Name("max_memory_allocated", "SD", _peak_stays, ("device",)),
    Name("memory_reserved", "SD", _gives(int), ("device",)),
    Name("max_memory_reserved", "SD", _gives(int), ("device",)),
    Name("memory_summary", "SD", _gives(str), ("device", "abbreviated")),
    Name("reset_peak_memory_stats", "SD", _does_nothing(), ("device",)),
    Name("reset_accumulated_memory_stats", "SD", _does_nothing(), ("device",)),
    Name("empty_cache", "S", _does_nothing()),
    Name("device_count", "S", _is(4)),
    Name("current_device", "S", _is(0)),
    Name("set_device", "S", _sets_core, ("device",)),
    Name("device", "S", _switches_core),
    Name("get_device_properties", "S", _has_memory, ("device",)),
    Name("synchronize", "S", _does_nothing(), ("device",)),
    Name("current_stream", "S", _gives(torch.Stream), ("device",)),
    Name("default_stream", "S", _gives(torch.Stream), ("device",)),
    Name("set_stream", "S", _sets_stream),
    Name("stream", "S", _switches_stream),
    Name("Stream", "S", _gives(torch.Stream)),
    Name("Event", "S", _gives(torch.Event)),
    Name("is_neuron_runtime_initialized", "S", _gives(bool)),
    Name("get_dynamo_metrics", "S", _gives(list)),
    Name("reset_dynamo_metrics", "S", _does_nothing()),
]


def _counts(get_counter_value: Any) -> bool:
    before = get_counter_value("eager_calls")
    torch.ones(5, device=CORE) + 1
    return get_counter_value("eager_calls") > before and get_counter_value("no such counter") is None


def _selects(report_filtered: Any) -> bool:
    return report_filtered(["copies"], []).startswith("copies: ") and report_filtered() == ""


def _clears(clear: Any) -> bool:
    from torch_neuronx import metrics

    torch.ones(5, device=CORE) + 1
    return clear() is None and metrics.get_counter_value("eager_calls") == 0


METRICS = [
    Name("is_enabled", "S", _is(True)),
    Name("set_enabled", "S", _does_nothing(True)),
    Name("get_counter_names", "S", lambda names: {"eager_signatures", "copies"} <= set(names())),
    Name("get_counter_value", "S", _counts),
    Name("get_metric_names", "S", _gives(list)),
    Name("get_metric_data", "S", _is(None, "no such metric")),
    Name("report", "S", lambda report: "eager_signatures" in report()),
    Name("report_filtered", "S", _selects, ("counter_names", "metric_names")),
    Name("clear_counters", "S", _clears),
    Name("clear_metrics", "S", _does_nothing()),
    Name("clear_all", "S", _clears),
    Name("get_compilation_metrics", "S", _gives(dict)),
]


def _lists(get_neuron_registered_ops: Any) -> bool:
    ordered = get_neuron_registered_ops(as_sorted=True)
    return ordered == sorted(get_neuron_registered_ops()) and {"add", "mm", "_log_softmax"} <= set(ordered)


UTILS = [
    Name("get_platform_target", "S", _is("trn2")),
    Name("get_lnc_setting", "S", _is("2")),
    Name("get_logical_neuron_cores", "S", _is("2")),
    Name("is_float8_e4m3_supported", "S", _is(True)),
    Name("is_float8_e4m3fn_supported", "S", _is(False)),
    Name("is_mxocp_supported", "S", _is(False)),
    Name("get_neuron_registered_ops", "S", _lists, ("as_sorted", "keep_variant")),
]


def _names_models(set_model_name: Any) -> bool:
    from torch_neuronx import neuron_dynamo_backend

    set_model_name("surface")
    named = neuron_dynamo_backend.get_model_name() == "surface"
    set_model_name(None)
    return named


def _compiles(backend: Any) -> bool:
    x = torch.ones(3, device=CORE)
    compiled = torch.compile(lambda x: x + 1, backend=backend, options={"executor": "aten", "lowering": "off"})
    return torch.equal(compiled(x).cpu(), torch.full((3,), 2.0))


def _is_an_error(kind: Any) -> bool:
    return issubclass(kind, Exception)


# The functions that write and read graphs are called in test_surface.py, with a graph.
DYNAMO_BACKEND = [
    Name("set_model_name", "SD", _names_models),
    Name("get_model_name", "S", _is("model_default")),
    Name("get_rank", "S", _is(0)),
    Name("get_dynamo_metrics", "SD", _gives(list)),
    Name("reset_dynamo_metrics", "SD", _does_nothing()),
    Name("create_neuron_backend", "S", lambda create: _compiles(create())),
    Name("neuron_backend", "S", _compiles),
    Name("NEFFExecutionError", "S", _is_an_error),
    Name("NEFFCompilationError", "S", _is_an_error),
    Name("save_fx_graph_txt", "S", callable, ("gm", "path")),
    Name("save_fx_as_mlir", "S", callable, ("gm", "path", "output_type")),
    Name("fx_to_mlir_string", "S", callable, ("gm", "output_type", "verbose", "enable_ir_printing")),
    Name("save_mlir", "S", callable, ("mlir_str", "path")),
    Name("load_mlir", "S", callable, ("path", "context")),
    Name("save_fx_graph_all_formats", "S", callable, ("gm", "base_path", "save_txt", "save_raw_mlir")),
]

MODULES = {
    "torch.neuron": DEVICE,
    "torch_neuronx": PACKAGE,
    "torch_neuronx.metrics": METRICS,
    "torch_neuronx.utils": UTILS,
    "torch_neuronx.neuron_dynamo_backend": DYNAMO_BACKEND,
}

# Environment variables of the native package, from the same places.
ENVIRONMENT = """
    COLLECTIVE_BUCKETSIZE_IN_MB COLLECTIVE_MIN_BUCKETS NEURON_CC_FLAGS NEURON_COMPILATION_CACHE_MAX_ENTRIES
    NEURON_COMPILATION_CACHE_MAX_SIZE_MB NEURON_COMPILER_OPT_LEVEL NEURON_LAUNCH_BLOCKING NEURON_LOGICAL_NC_CONFIG
    NEURON_PLATFORM_TARGET_OVERRIDE NEURON_RT_DBG_ZEROCOPY NEURON_RT_ENABLE_HOST_CC NEURON_RT_ROOT_COMM_ID
    NEURON_RT_VISIBLE_CORES NEURON_USE_SPLIT_ALLGATHER NEURON_USE_SPLIT_REDUCE_SCATTER NKI_COMPILE_CACHE_URL
    TORCH_NEURONX_COMPILE_ONLY TORCH_NEURONX_COMPLEX_DECOMPOSE TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT
    TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD TORCH_NEURONX_DEBUG_DIR TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION
    TORCH_NEURONX_DISABLE_NEFF_CACHE TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY TORCH_NEURONX_ENABLED_METRIC_TABLES
    TORCH_NEURONX_ENABLE_ASYNC_NRT TORCH_NEURONX_ENABLE_CONCATENATION TORCH_NEURONX_ENABLE_HOST_CC
    TORCH_NEURONX_ENABLE_NKI_SDPA TORCH_NEURONX_ENABLE_PROLOGUE TORCH_NEURONX_ENABLE_STABLEHLO
    TORCH_NEURONX_ENABLE_STACK_TRACE TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS TORCH_NEURONX_HLO_CACHE_DIR
    TORCH_NEURONX_LOG_FILE TORCH_NEURONX_LOG_LEVEL TORCH_NEURONX_METRICS_DIR TORCH_NEURONX_METRICS_ENABLED
    TORCH_NEURONX_MLIR_ATEN_OPS TORCH_NEURONX_NEFF_CACHE_DIR TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT
    TORCH_NEURONX_NEFF_DISABLE_CACHE TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR TORCH_NEURONX_NEURONX_CC_TIMEOUT
    TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS TORCH_NEURONX_RETAIN_DEVICE_MODE
""".split()
