"""Watching Dynamo for code that stays outside of graphs: a table of patches, in place from the first `torch.compile`.

Apart from `dynamo_wiring.py` because a graph may break before the backend is called and the compiler loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch._dynamo import convert_frame, symbolic_convert
from torch._dynamo.eval_frame import innermost_backend

from optimum_neuron_torch.emulator.compiler import graph_breaks, recompiles
from optimum_neuron_torch.emulator.patches import Patch, PatchTable


_SIMULATOR = "optimum_neuron_torch.emulator.nki.kernel"

# Whether the frame that Dynamo compiles now is one of ours.
_is_ours: ContextVar[bool] = ContextVar("neuron_compiles_frame", default=False)


def _know_whose_frame(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        token = _is_ours.set(_is_for_neuron(getattr(self, "_torchdynamo_orig_backend", None), frame))
        try:
            return original(self, frame, *args, **kwargs)
        finally:
            _is_ours.reset(token)

    return __call__


def _know_kernels(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where there may be NKI kernels, Dynamo is told of them. The simulator is not loaded for it."""

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _SIMULATOR in sys.modules:
            from optimum_neuron_torch.emulator.compiler import nki_kernels

            nki_kernels.install()
        return original(self, *args, **kwargs)

    return __call__


def _is_for_neuron(backend: Any, frame: Any) -> bool:
    backend = innermost_backend(backend)
    if getattr(backend, "compiler_name", None) == "neuron" or getattr(backend, "__name__", None) == "neuron":
        return True
    # No backend named: neuron's if its tensors are.
    return getattr(backend, "_yields_to_neuron", False) and _holds_neuron(frame.f_locals.values())


def _holds_neuron(values: Iterable[Any], depth: int = 2) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            found = value.device.type == "neuron"
        elif isinstance(value, torch.nn.Module):
            found = any(parameter.device.type == "neuron" for parameter in value.parameters())
        elif depth and isinstance(value, (list, tuple, Mapping)):
            found = _holds_neuron(value.values() if isinstance(value, Mapping) else value, depth - 1)
        else:
            found = False
        if found:
            return True
    return False


def _record_break(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def log_graph_break(self: Any, code_options: Any, reason: str, exc: Any) -> None:
        if _is_ours.get() and not exc.logged:
            stack = getattr(exc, "real_stack", None) or torch._guards.TracingContext.extract_stack()
            graph_breaks.record("graph break", graph_breaks.location_of(stack), graph_breaks.reason_of(exc))
        original(self, code_options, reason, exc)

    return log_graph_break


def _record_skip(original: Callable[..., str]) -> Callable[..., str]:
    """Dynamo formats this message for every function it gives up and leaves to eager execution."""

    @functools.wraps(original)
    def format_error_msg(exc: Any, code: Any, *args: Any, **kwargs: Any) -> str:
        if _is_ours.get() and getattr(exc, "gb_type", None) != "Dynamo recompile limit exceeded":
            stack = getattr(exc, "real_stack", None)
            place = graph_breaks.location_of(stack) if stack else f"{code.co_filename}:{code.co_firstlineno}"
            graph_breaks.record("skipped", f"{place} (function {code.co_name})", graph_breaks.reason_of(exc))
        return original(exc, code, *args, **kwargs)

    return format_error_msg


def _record_limit(original: Callable[..., tuple[bool, str]]) -> Callable[..., tuple[bool, str]]:
    @functools.wraps(original)
    def exceeds_recompile_limit(cache_size: Any, compile_id: Any) -> tuple[bool, str]:
        exceeded, limit = original(cache_size, compile_id)
        if exceeded and _is_ours.get():
            recompiles.meet_limit(compile_id.frame_id, limit)
        return exceeded, limit

    return exceeds_recompile_limit


_HOOKS = "hooks of Dynamo for what leaves a graph: breaks, skipped frames and the recompile limit, by backend"
_TABLE = PatchTable(
    (
        Patch(convert_frame.ConvertFrame, "__call__", _know_whose_frame, until=_HOOKS),
        Patch(convert_frame.ConvertFrameAssert, "__call__", _know_kernels, until="as in nki_kernels.py"),
        Patch(symbolic_convert.InstructionTranslatorBase, "log_graph_break", _record_break, until=_HOOKS),
        Patch(convert_frame, "format_error_msg", _record_skip, until=_HOOKS),
        Patch(convert_frame, "exceeds_recompile_limit", _record_limit, until=_HOOKS),
    )
)


def install() -> None:
    """Apply all patches that this release of torch has a place for; a second call does nothing."""
    _TABLE.install(where_found=True)


def uninstall() -> None:
    """Put the originals back."""
    _TABLE.uninstall()
