"""Compiling a function ahead of its first call and storing the result: the only place that touches torch's
`aot_compile`, which is private and may change.

Where a release of torch lacks any part of it, `is_available()` is False and functions are compiled by torch.compile
alone.
"""

import contextlib
import functools
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


# Guards that hold an object of this process by its identity: they cannot be stored. What they watch is in our own
# keys, or in the sources that a stored function names.
_IDENTITY_GUARDS = frozenset(
    {
        "CLASS_MATCH",
        "CLOSURE_MATCH",
        "DICT_VERSION",
        "FUNCTION_MATCH",
        "ID_MATCH",
        "MODULE_MATCH",
        "NN_MODULE",
        "WEAKREF_ALIVE",
    }
)


class RefusedError(RuntimeError):
    """A stored function is not for these arguments: one of its guards says so."""


@functools.cache
def is_available() -> bool:
    """Whether this torch can store compiled functions."""
    try:
        from torch._dynamo import aot_compile
        from torch._guards import TracingContext, tracing  # noqa: F401

        function = aot_compile.AOTCompiledFunction
    except (ImportError, AttributeError):
        return False
    parts = ("serialize", "deserialize", "guard_check", "disable_guard_check", "source_info")
    return all(hasattr(function, part) for part in parts) and hasattr(torch._dynamo.config, "enable_aot_compile")


def compile_ahead(step: Callable, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Compile `step`, which must be importable, for arguments like `args`. It is not run."""
    settings = {**options, "guard_filter_fn": _storable}
    with torch._dynamo.config.patch(enable_aot_compile=True, ignore_logging_functions=_log_methods()):
        compiled = torch.compile(step, backend="neuron", fullgraph=True, dynamic=False, options=settings)
        return compiled.aot_compile((tuple(args), {}))


def _log_methods() -> set[Callable]:
    """Log calls, which have no place in a graph: what a model warns of was said when its call was probed."""
    names = ("debug", "info", "warning", "warning_once", "info_once", "warning_advice")
    return {getattr(logging.Logger, name) for name in names if hasattr(logging.Logger, name)}


def dump(compiled: Any) -> bytes:
    """What `compile_ahead` returned, as bytes. Raises whatever pickling raises."""
    return type(compiled).serialize(compiled).serialized_data


def load(data: bytes) -> Any:
    """The inverse of `dump`. It runs code from `data`."""
    with _inside_a_trace():
        return torch.compiler.load_compiled_function(io.BytesIO(data))


def traced_modules(compiled: Any) -> set[str]:
    """Names of the Python modules whose code was inlined into a compiled function."""
    return {source.module for source in compiled.source_info().inlined_sources}


def checked(compiled: Any, args: Sequence[Any]) -> Callable:
    """The function without its guards, which are asked once, here: they cost more than the rest of a call's host time.

    Raises RefusedError where a guard does not hold for `args`.
    """
    if not compiled.guard_check(*args):
        raise RefusedError(_refusal(compiled, args))
    compiled.disable_guard_check()
    return getattr(compiled, "fn", compiled)


def function_modes() -> tuple:
    """The modes that intercept torch's functions (a default device is one), outermost first; () where this torch does
    not say.
    """
    if not getattr(torch._C, "_len_torch_function_stack", lambda: 0)():
        return ()
    from torch.overrides import _get_current_function_mode_stack

    return tuple((type(mode), getattr(mode, "device", None)) for mode in _get_current_function_mode_stack())


def _storable(guards: Sequence[Any]) -> list[bool]:
    """Which of Dynamo's guards go into a stored function: those on its arguments and on the process's modes.

    Globals, of modules that it imports too, are held by the digests of the sources.
    """
    return [
        not guard.is_global
        and not guard.name.startswith("__import__")
        and guard.guard_type not in _IDENTITY_GUARDS
        and _IDENTITY_GUARDS.isdisjoint(guard.derived_guard_types)
        for guard in guards
    ]


def _refusal(compiled: Any, args: Sequence[Any]) -> str:
    with contextlib.suppress(Exception):
        values = compiled.prepare_f_locals(*args)
        return str(compiled._artifacts.guard_manager.check_verbose(values)).splitlines()[0]
    return "a guard does not hold"


@contextlib.contextmanager
def _inside_a_trace() -> Iterator[None]:
    """Sources of imported modules, among what guards pickle, install a guard of theirs when they are made: that needs
    a tracing context, which is thrown away.
    """
    from torch._guards import TracingContext, tracing

    with tracing(TracingContext(None)):
        yield
