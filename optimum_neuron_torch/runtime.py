"""The only place that calls `torch.neuron` and `torch_neuronx` beyond what torch and Transformers call themselves.

Much of what is known of TorchNeuron's API comes from a beta, so every entry is looked up when it is used, and each
docstring says what happens where it is missing.
"""

import contextlib
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import torch


DEVICE_TYPE = "neuron"
# The backend's name for graphs is one for the whole process.
_naming = threading.Lock()
# What Dynamo guards on where it traces a choice between a kernel and torch; one per thread.
_kernels = threading.local()


class NeuronNotAvailableError(RuntimeError):
    """No neuron device can be used in this process; the message says why and what to do."""


# ---- the device -----------------------------------------------------------------------------------------------------


def _device_module() -> Any | None:
    import torch

    return getattr(torch, DEVICE_TYPE, None)


def _package(name: str = "") -> Any | None:
    """A module of the `torch_neuronx` package, or None."""
    try:
        return importlib.import_module(f"torch_neuronx{name}")
    except ImportError:
        return None


def is_available() -> bool:
    """Whether a neuron device, real or emulated, can be used."""
    module = _device_module()
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())


def is_emulated() -> bool:
    """Whether the neuron device of this process is the emulated one (no Trainium)."""
    return bool(getattr(_package(), "is_emulated", False))


def device_count() -> int:
    """Logical cores this process may use; 0 without a device."""
    return _device_module().device_count() if is_available() else 0


def resolve_device(device: Any = None) -> "torch.device":
    """`device` as a checked `torch.device` with an index; None is the current neuron device.

    Raises NeuronNotAvailableError where there is no device, ValueError for an index that does not exist.
    """
    import torch

    if not is_available():
        raise NeuronNotAvailableError(_why_unavailable())
    try:
        device = torch.device(DEVICE_TYPE if device is None else device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} does not exist: neuron devices are {_device_names()}") from error
    if device.type != DEVICE_TYPE:
        raise ValueError(f"expected a neuron device, got {str(device)!r}")
    index = _device_module().current_device() if device.index is None else device.index
    if index >= device_count():
        raise ValueError(
            f"device 'neuron:{index}' does not exist: this process sees {device_count()} logical cores "
            f"({_device_names()}). "
            "Use one of them, or change NEURON_RT_VISIBLE_CORES."
        )
    return torch.device(DEVICE_TYPE, index)


def _device_names() -> str:
    return ", ".join(f"{DEVICE_TYPE}:{index}" for index in range(device_count()))


def _why_unavailable() -> str:
    module = _device_module()
    if module is None and os.environ.get("NEURON_EMULATOR") == "0":
        return (
            "there is no neuron device: NEURON_EMULATOR=0 switches the emulated one off, and no native TorchNeuron is "
            "installed. Unset NEURON_EMULATOR, or install TorchNeuron on a Trainium instance."
        )
    if module is None and os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return "there is no neuron device: TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading it. Unset it."
    if module is None:
        return (
            "there is no neuron device in this process. Where another accelerator is visible the emulated device "
            "stays out: set NEURON_EMULATOR=1 to have it all the same, or run on a Trainium instance with TorchNeuron."
        )
    try:  # a device that failed to load says why on its first use
        module._lazy_init()
    except Exception as error:
        return str(error)
    return "torch.neuron.is_available() is False: no neuron core is visible to this process"


def peak_memory(device: "torch.device") -> int | None:
    """Bytes of HBM in use at most so far; None where the device does not say."""
    function = getattr(_device_module(), "max_memory_allocated", None)
    return None if function is None else function(device)


def random_function(name: str) -> Any | None:
    """A function on the device's random state, as `get_rng_state_all`; None where the device does not have it."""
    module = _device_module()
    return getattr(getattr(module, "random", module), name, None)


def is_neuron(tensor: Any) -> bool:
    import torch

    return isinstance(tensor, torch.Tensor) and tensor.device.type == DEVICE_TYPE


# ---- NKI kernels ----------------------------------------------------------------------------------------------------


def kernels_run(tensor: Any = None) -> bool:
    """Whether NKI ops launch their kernels, for `tensor` where one is given: on a real device with NKI for what is on
    it, and in this thread within `simulating()` for tensors of any device.

    Elsewhere they compute with torch. Dynamo traces this, and makes another graph where the answer changes.
    """
    is_simulating = getattr(_kernels, "simulating", None)
    if is_simulating is not None:
        return is_simulating
    return _has_native_kernels() and (tensor is None or is_neuron(tensor))


# Contexts that hold while kernels are simulated in some thread: what brings calls of foreign code to the kernels.
around_simulation: list[Callable[[], contextlib.AbstractContextManager[None]]] = []


# What does the same, from then on, where their user compiles such code himself.
before_tracing: list[Callable[[], None]] = []


def _prepare_tracing() -> None:
    for prepare in before_tracing:
        prepare()


_prepare_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # run once, while tracing


@contextlib.contextmanager
def simulating(is_on: bool = True) -> Iterator[None]:
    """Within the block, and in this thread, NKI ops launch their kernels in the NKI simulator.

    Or, off, launch none, those of a real device neither.
    """
    import torch

    before = getattr(_kernels, "simulating", None)
    with contextlib.ExitStack() as stack:
        if is_on and torch.compiler.is_dynamo_compiling():
            # A block that is traced ends when tracing does: a guard on what its contexts change would fail ever after.
            _prepare_tracing()
        elif is_on:
            for context in around_simulation:
                stack.enter_context(context())
        _kernels.simulating = is_on
        try:
            yield
        finally:
            _kernels.simulating = before


def kernels_as(nki: str) -> contextlib.AbstractContextManager[None]:
    """`simulating()` for `NeuronConfig(nki="simulate")`; "torch" leaves things as they are around it."""
    return simulating() if nki == "simulate" else contextlib.nullcontext()


def _has_native_kernels() -> bool:
    return _finds_native_kernels()


@functools.cache
def _finds_native_kernels() -> bool:
    return is_available() and not is_emulated() and why_no_kernels() is None


# As torch.compiler.assume_constant_result() marks it, which would import Dynamo: run once, while tracing.
_has_native_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_no_kernels() -> str | None:
    """Why NKI kernels cannot be launched here, or None."""
    import torch  # noqa: F401  it makes the simulator known where NKI is not installed

    try:
        nki = importlib.import_module("nki")
        instructions = importlib.import_module("nki.isa")
    except ImportError as error:
        switched_off = os.environ.get("NEURON_EMULATOR_NKI") == "0"
        advice = "Unset NEURON_EMULATOR_NKI, which keeps the simulator out." if switched_off else "Install NKI."
        return f"there is no `nki` to import ({error}). {advice}"
    if not hasattr(nki, "jit") or not hasattr(instructions, "nc_matmul"):
        return f"the `nki` that is installed ({getattr(nki, '__file__', '?')}) is no kernel language. Uninstall it."
    return None


def collecting_kernel_runs() -> contextlib.AbstractContextManager[list[Any]]:
    """A block whose value, a list, gets one performance report per kernel run in the simulator; it stays empty with a
    simulator that makes none (AWS's own).
    """
    collect = getattr(importlib.import_module("nki"), "simulation", None)
    return contextlib.nullcontext([]) if collect is None else collect()


def simulated_elsewhere() -> bool:
    """Whether kernels run in a simulator that knows nothing of neuron tensors: AWS's own, on the emulated device."""
    return is_emulated() and not hasattr(importlib.import_module("nki"), "simulation")


def logical_core_size() -> int:
    """How many physical cores form a logical one: the grid with which kernels are launched; 1 where nothing says."""
    function = getattr(_package(".utils"), "get_lnc_setting", None)
    return 1 if function is None else int(function())


def kernel_target() -> tuple[str | None, int]:
    """What kernels are made for: the chip's name, None where the device does not say, and how many of its cores."""
    function = getattr(_package(".utils"), "get_platform_target", None)
    return None if function is None else str(function()), logical_core_size()


def nki_op(name: str, function: Callable[..., Any]) -> Any:
    """`function`, which launches a kernel, as the operator "namespace::name": the package's `nki_op` where it has one,
    else PyTorch's custom operator.
    """
    import torch

    make = getattr(_package(), "nki_op", None)
    if make is None:
        return torch.library.custom_op(name, function, mutates_args=())
    return make(name, function, mutates_args=())


# ---- what was compiled and run --------------------------------------------------------------------------------------


def counter(name: str) -> int | None:
    """A counter of the device, as `eager_signatures` or `copies`; None where the device does not keep it."""
    function = getattr(_package(".metrics"), "get_counter_value", None)
    try:
        value = None if function is None else function(name)
    except KeyError:
        return None
    return None if value is None else int(value)


def graph_records() -> list[dict[str, Any]]:
    """One record per compiled graph, as `get_dynamo_metrics()` of the Neuron backend gives them (objects or
    dictionaries, depending on the release); empty where it is missing.
    """
    function = getattr(_package(".neuron_dynamo_backend"), "get_dynamo_metrics", None)
    records = list(function()) if function is not None else []
    return [record if isinstance(record, dict) else dict(vars(record)) for record in records]


def graph_breaks() -> list[dict[str, Any]]:
    """Where compiled functions left their graphs: `kind`, `location`, `reason`, `times`. Only the emulator lists them;
    empty elsewhere.
    """
    function = getattr(_package(".neuron_dynamo_backend"), "get_graph_breaks", None)
    return list(function()) if function is not None else []


def fallback_ops() -> list[str]:
    """Names of the ops that left the device for the CPU; empty where the device does not track them."""
    function = getattr(_package(), "get_fallback_ops", None)
    return sorted(set(map(str, function()))) if function is not None else []


def unknown_ops() -> list[str] | None:
    """Names of the ops run eagerly of which no public source says whether the device runs them natively. Only the
    emulator asks that question; None elsewhere.
    """
    function = getattr(_package(), "get_unknown_ops", None)
    return sorted(set(map(str, function()))) if function is not None else None


@contextlib.contextmanager
def strict_device(*kinds: str) -> Iterator[None]:
    """Turn the emulator's strict kinds on within the block. The native device has none: there it raises
    NotImplementedError.
    """
    manager = getattr(_package(), "strict", None)
    if manager is None:
        raise NotImplementedError(f"strict kinds {sorted(kinds)} exist on the emulated neuron device only")
    with manager(*kinds):
        yield


def mark_warm() -> None:
    """Tell the device that warm-up is over: from here on strict "recompile" objects. Without such a switch nothing
    happens.
    """
    function = getattr(_package(".metrics"), "mark_warm", None)
    if function is not None:
        function()


# ---- compiling ------------------------------------------------------------------------------------------------------

# Keys of torch.compile(options=...) that only the emulator's backend reads.
EMULATOR_OPTIONS = frozenset({"executor", "lowering", "bucket"})


def compile_options(model_name: str, options: dict[str, Any] | None, bucket: str = "") -> dict[str, Any]:
    """`options` for torch.compile(backend="neuron"): the user's, the model's name and what the graph serves, without
    what a native backend does not know.
    """
    chosen = {"model_name": model_name, "bucket": bucket, **(options or {})}
    if not is_emulated():
        chosen = {key: value for key, value in chosen.items() if key not in EMULATOR_OPTIONS}
    return chosen


def compiler_version(options: dict[str, Any] | None = None) -> str | None:
    """What the compile backend's results depend on beside the traced program: its own version, with `options` filled
    from its defaults. None where it does not say; then no compiled function is stored, since a stored one could not
    be told from another version's (a native backend keeps a cache of its own).
    """
    function = getattr(_package(".neuron_dynamo_backend"), "compiler_version", None)
    return None if function is None else str(function(options))


def graph_directory() -> Path | None:
    """Where the compile backend keeps what it compiles for this machine, a directory that only the user can write to.
    None where it has none, or does not say.
    """
    function = getattr(_package(".neuron_dynamo_backend"), "graph_directory", None)
    return None if function is None else function()


def graph_programs(digests: list[str], *, isa: str | None, threads: int | None, build_missing: bool) -> list[Path]:
    """The folders of the compiled programs of graphs (named by `program` in their records) for a vector ISA and a
    number of threads, made where they are missing and `build_missing`. None of them where the backend does not say.

    Raises LookupError for a graph that would have to be in use in this process, ValueError for an unknown ISA.
    """
    function = getattr(_package(".neuron_dynamo_backend"), "graph_programs", None)
    if function is None:
        return []
    return function(digests, isa=isa, threads=threads, build_missing=build_missing)


def usable_programs() -> list[str] | None:
    """Names of the folders of compiled programs that this process can run; None where the backend does not say."""
    function = getattr(_package(".neuron_dynamo_backend"), "usable_programs", None)
    return None if function is None else function()


def is_compiler_error(error: BaseException) -> bool:
    """Whether the compile backend itself raised `error`, to be passed on; False where it has no errors of its own."""
    kind = getattr(_package(".neuron_dynamo_backend"), "NEFFCompilationError", None)
    return kind is not None and isinstance(error, kind)


@contextlib.contextmanager
def model_named(name: str) -> Iterator[None]:
    """Within the block, graphs that come from no `torch.compile` call (stored functions) are recorded under `name`.
    Without such a switch they have the backend's default name.
    """
    set_name = getattr(_package(".neuron_dynamo_backend"), "set_model_name", None)
    get_name = getattr(_package(".neuron_dynamo_backend"), "get_model_name", None)
    if set_name is None or get_name is None:
        yield
        return
    with _naming:
        previous = get_name()
        set_name(name)
        try:
            yield
        finally:
            set_name(previous)


def pending_compilations() -> int:
    """How many graphs run in a slow form until the backend has compiled them; 0 where graphs have one form."""
    function = getattr(_package(".neuron_dynamo_backend"), "pending_compilations", None)
    return 0 if function is None else function()


def finish_compilations(progress: Callable[[int], None]) -> None:
    """Wait until every graph runs in its fast form; `progress` hears how many are left. Where graphs have one form
    nothing happens.
    """
    function = getattr(_package(".neuron_dynamo_backend"), "finish_compilations", None)
    if function is not None:
        function(progress)


def is_compile_only() -> bool:
    """Whether graphs are only compiled in this process: their results mean nothing."""
    return os.environ.get("TORCH_NEURONX_COMPILE_ONLY", "").strip().lower() in ("1", "true")


def cache_dir() -> Path:
    """Where compiled graphs and the plugin's manifests are kept: OPTIMUM_NEURON_CACHE or
    ~/.cache/optimum_neuron_torch.
    """
    return Path(os.environ.get("OPTIMUM_NEURON_CACHE") or Path.home() / ".cache" / "optimum_neuron_torch").expanduser()
