"""Why a graph was compiled again: by input, axis and sizes where those changed, else in Dynamo's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import CompileContext

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.compiler import graph_breaks
from optimum_neuron_torch.emulator.compiler.errors import RecompileError
from optimum_neuron_torch.emulator.device import extension


@dataclass(frozen=True)
class InputSpec:
    """What a graph assumes of one tensor that enters it."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, value: torch.Tensor) -> InputSpec:
        strides = tuple(value.stride()) if value.layout == torch.strided else ()
        return cls(value.dtype, tuple(value.shape), strides, value.device, value.requires_grad)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.sizes)}"


Inputs = dict[str, "InputSpec | int"]

# What each compilation of a frame was given, by Dynamo's compile id, e.g. "0/1".
_inputs_of_compilation: dict[str, Inputs] = {}
# A line of the user's code for each of Dynamo's frames that this backend compiled, by id.
_frames: dict[int, str] = {}

# A cache of keys and values grows in every layer at once: a few of them say it.
_SHOWN = 6

_STATE = re.compile(r"\._(parameters|buffers|modules)\b")
_COMPILE_ID = re.compile(r"^(\[?[\w!]*\d+/\d+\]?): ")
_LOCAL = re.compile(r"L\['(\w+)'\]")
_EQUALITY = re.compile(r"^(\S+) == (-?\d+)$")


def user_inputs(gm: fx.GraphModule, inputs: Sequence[Any]) -> Inputs:
    """The arguments of the user's function that enter a Dynamo graph, by name; no parameters and buffers.

    `inputs` are static: asking a symbol for its size would add a guard.
    """
    named: Inputs = {}
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
        source = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", None) or node.name
        if isinstance(value, torch.nn.Parameter) or _STATE.search(source) or source.endswith(")") or "()[" in source:
            continue
        if isinstance(value, torch.Tensor):
            named[_readable(source)] = InputSpec.of(value)
        elif isinstance(value, int):
            named[_readable(source)] = value
    return named


def describe(inputs: Inputs, limit: int = 6) -> str:
    """`input_ids int64[1, 128], n=3`, for messages."""
    shown = [f"{name}={value}" if isinstance(value, int) else f"{name} {value}" for name, value in inputs.items()]
    return ", ".join(shown[:limit]) + (f" and {len(shown) - limit} more" if len(shown) > limit else "")


def remember(inputs: Inputs, line: str) -> None:
    """Keep what this compilation was given, to explain the next one of the same frame."""
    compile_id = CompileContext.current_compile_id()
    if compile_id is not None:
        _inputs_of_compilation[str(compile_id)] = inputs
        if compile_id.frame_id is not None and compile_id.frame_compile_id == 0:
            _frames[compile_id.frame_id] = line


def meet_limit(frame_id: int, limit: str) -> None:
    """Dynamo is about to leave a function of ours to eager execution: record it, or refuse under strict 'recompile'.

    Raises:
        RecompileError: strict mode.
    """
    line = _frames.get(frame_id, "an unknown line")
    reason = (current_reason() or "no reason given").splitlines()[0]
    allowed = getattr(torch._dynamo.config, limit)
    words = f"{allowed} graphs is the {limit}, and another is needed ({explain(reason, {})})"
    if "recompile" in device.strict_kinds():
        raise RecompileError(
            f"{line}: {words}. The function would run eagerly, an error under strict 'recompile'. "
            "Pad its inputs to fewer shapes, or raise torch.compile(recompile_limit=)."
        )
    graph_breaks.record("recompile limit", line, words)


def are_refused() -> bool:
    """Whether a new graph is an error now: strict kind `recompile`, after the device was marked warm."""
    return "recompile" in device.strict_kinds() and extension.load().is_warm()


def current_reason() -> str | None:
    """Dynamo's reason for the compilation that runs now; None for one that is no recompilation."""
    try:
        from torch._dynamo.utils import get_metrics_context

        return get_metrics_context()._metrics.get("recompile_reason") or None
    except (ImportError, AttributeError):
        return None


def explain(reason: str, inputs: Inputs) -> str:
    """What changed since the compilation whose guard failed, in one line: `mask` axis 1: 128 -> 131."""
    reason = reason.splitlines()[0]
    if found := _COMPILE_ID.match(reason):
        previous = _inputs_of_compilation.get(found[1].strip("[]"), {})
        reason = reason[found.end() :]
        if changes := _changes(previous, inputs):
            return ", ".join(changes[:_SHOWN]) + (
                f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
            )
    return _in_words(reason, inputs)


def _changes(previous: Inputs, current: Inputs) -> list[str]:
    return [
        change
        for name, now in current.items()
        if (before := previous.get(name)) is not None and before != now
        for change in _differences(name, before, now)
    ]


def _differences(name: str, before: InputSpec | int, now: InputSpec | int) -> list[str]:
    if isinstance(before, int) or isinstance(now, int):
        return [f"`{name}`: {before} -> {now}"]
    if len(before.sizes) != len(now.sizes):
        return [f"`{name}`: {len(before.sizes)} axes {list(before.sizes)} -> {len(now.sizes)} axes {list(now.sizes)}"]
    sizes = [
        f"`{name}` axis {axis}: {size} -> {now.sizes[axis]}"
        for axis, size in enumerate(before.sizes)
        if size != now.sizes[axis]
    ]
    others = [
        f"`{name}` {what}: {getattr(before, field)} -> {getattr(now, field)}"
        for field, what in (("dtype", "dtype"), ("device", "device"), ("requires_grad", "requires_grad"))
        if getattr(before, field) != getattr(now, field)
    ]
    if not sizes and before.strides != now.strides:
        others.append(f"`{name}` strides: {list(before.strides)} -> {list(now.strides)}")
    return sizes + others


def _in_words(reason: str, inputs: Inputs) -> str:
    """A guard that failed, without Dynamo's notation for where things come from."""
    guard, _, comment = reason.partition("#")
    guard, place = guard.strip(), comment.rpartition("  # ")[2].partition(" (HINT")[0].strip()
    if (found := _EQUALITY.match(guard)) and isinstance(now := inputs.get(found[1]), int):
        return f"`{found[1]}`: {found[2]} -> {now}"
    if guard.startswith("GLOBAL_STATE changed:"):
        return f"{guard.partition(':')[2].strip()} changed"
    where = f" ({place})" if place else ""
    return f"no longer true: {guard}{where}" if "mismatch" not in guard else guard + where


def _readable(source: str) -> str:
    """`L['kwargs']['mask']` -> `mask`, `L['tensors'][0]` -> `tensors[0]`."""
    if found := re.search(r"\['(\w+)'\]$", source):
        return found[1]
    return _LOCAL.sub(r"\1", source)
