"""The native package's environment variables: which ones mean something here, and which are known and ignored.

The names are those of TorchNeuron's documentation and, where it does not go that far, of its beta's source.
"""

import os


# Read by the emulator: hardware.py (device), compiler/ options, backend, artifacts, compile_only, metrics.
HONOURED = frozenset(
    {
        "NEURON_LOGICAL_NC_CONFIG",
        "NEURON_PLATFORM_TARGET_OVERRIDE",
        "NEURON_RT_VISIBLE_CORES",
        "TORCH_NEURONX_COMPILE_ONLY",
        "TORCH_NEURONX_DEBUG_DIR",
        "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
        "TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY",
        "TORCH_NEURONX_ENABLED_METRIC_TABLES",
        "TORCH_NEURONX_METRICS_DIR",
        "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS",
    }
)

# Name -> why it has no effect.
_COMPILER = "there is no neuronx-cc"
_NEFF = "there are no NEFFs; OPTIMUM_NEURON_CACHE holds compiled graphs"
_EAGER = "eager operations run at once, with the CPU's kernels"
_RUNTIME = "there is no Neuron runtime"
_COLLECTIVES = "there are no device collectives"
IGNORED = {
    "COLLECTIVE_BUCKETSIZE_IN_MB": _COLLECTIVES,
    "COLLECTIVE_MIN_BUCKETS": _COLLECTIVES,
    "NEURON_CC_FLAGS": _COMPILER,
    "NEURON_COMPILATION_CACHE_MAX_ENTRIES": _NEFF,
    "NEURON_COMPILATION_CACHE_MAX_SIZE_MB": _NEFF,
    "NEURON_COMPILER_OPT_LEVEL": _COMPILER,
    "NEURON_LAUNCH_BLOCKING": "the emulated device is always synchronous",
    "NEURON_RT_DBG_ZEROCOPY": _RUNTIME,
    "NEURON_RT_ENABLE_HOST_CC": _COLLECTIVES,
    "NEURON_RT_ROOT_COMM_ID": _COLLECTIVES,
    "NEURON_USE_SPLIT_ALLGATHER": _COLLECTIVES,
    "NEURON_USE_SPLIT_REDUCE_SCATTER": _COLLECTIVES,
    "NKI_COMPILE_CACHE_URL": "there are no compiled NKI kernels",
    "TORCH_NEURONX_COMPLEX_DECOMPOSE": "complex operations run as they are",
    "TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT": _EAGER,
    "TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD": _EAGER,
    "TORCH_NEURONX_DISABLE_NEFF_CACHE": _NEFF,
    "TORCH_NEURONX_ENABLE_ASYNC_NRT": _RUNTIME,
    "TORCH_NEURONX_ENABLE_CONCATENATION": _EAGER,
    "TORCH_NEURONX_ENABLE_HOST_CC": _COLLECTIVES,
    "TORCH_NEURONX_ENABLE_NKI_SDPA": "attention computes with PyTorch's kernels",
    "TORCH_NEURONX_ENABLE_PROLOGUE": _EAGER,
    "TORCH_NEURONX_ENABLE_STABLEHLO": "graphs are lowered to StableHLO or not at all",
    "TORCH_NEURONX_ENABLE_STACK_TRACE": "strict mode names the line of every operation it refuses",
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": "the strict kind fallback refuses operations",
    "TORCH_NEURONX_HLO_CACHE_DIR": _NEFF,
    "TORCH_NEURONX_LOG_FILE": "messages go to Python's loggers",
    "TORCH_NEURONX_LOG_LEVEL": "messages go to Python's loggers",
    "TORCH_NEURONX_METRICS_ENABLED": "the emulator always counts",
    "TORCH_NEURONX_MLIR_ATEN_OPS": _EAGER,
    "TORCH_NEURONX_NEFF_CACHE_DIR": _NEFF,
    "TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT": _NEFF,
    "TORCH_NEURONX_NEFF_DISABLE_CACHE": _NEFF,
    "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR": _NEFF,
    "TORCH_NEURONX_NEURONX_CC_TIMEOUT": _COMPILER,
    "TORCH_NEURONX_RETAIN_DEVICE_MODE": "results of compiled graphs are where eager execution has them",
}


def ignored_variables() -> dict[str, str]:
    """Those of the environment that are set, known, and without effect, each with the reason."""
    return {name: why for name, why in IGNORED.items() if name in os.environ}
