"""What `torch.compile(backend="neuron", mode=..., options=...)` accepts, with its environment defaults."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optimum_neuron_torch.emulator.compiler.errors import DynamicShapesError, UnknownOptionError


EXECUTORS = ("tiered", "inductor", "aten", "xla")
LOWERINGS = ("check", "off")

_KINDS: dict[str, type | tuple[type, ...]] = {
    "model_name": str,
    "fallback_execution": bool,
    "executor": str,
    "lowering": str,
    "bucket": str,
}
OPTION_KEYS = tuple(_KINDS)
# Where defaults come from.
_VARIABLES = {
    "executor": "NEURON_EMULATOR_EXECUTOR",
    "lowering": "NEURON_EMULATOR_LOWERING",
    "fallback_execution": "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
}
DYNAMIC_REFUSED = (
    "torch.compile(dynamic=True) is not possible on neuron: a graph there has static shapes. Use dynamic=False (one "
    "graph per shape), and pad inputs to few shapes, as optimum_neuron_torch.prepare() does."
)


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """
    Validated options of one `torch.compile` call.

    Args:
        model_name: name used for the records of `get_dynamo_metrics()`; None takes what `set_model_name()` set.
        fallback_execution: run a graph that does not lower eagerly on the device instead of raising.
        executor: what runs the graph: `tiered` (`aten` at once, `inductor` when it is compiled), `inductor`, `aten` or
            `xla`.
        lowering: `check` lowers every graph to StableHLO before its first result; `off` does not.
        bucket: what the graph serves, for the log and the records, e.g. "decode, batch 1, cache 256".
    """

    model_name: str | None = None
    fallback_execution: bool = False
    executor: str = "tiered"
    lowering: str = "check"
    bucket: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None = None, mode: str | None = None) -> CompileOptions:
        """Read user options over the environment's defaults; raise `UnknownOptionError` for what is not known."""
        _warn_mode(mode)
        if options is not None and not isinstance(options, Mapping):
            raise UnknownOptionError(
                f"torch.compile(backend='neuron') takes a dict of options, got {options!r}; the keys it knows are "
                f"{', '.join(OPTION_KEYS)}."
            )
        for key, value in (options or {}).items():
            _check(key, value)
        for key, value in (defaults := _environment_defaults()).items():
            _check(key, value, origin=_VARIABLES[key])
        return cls(**{**defaults, **(options or {})})


def check_arguments(*, dynamic: bool | None, mode: str | None, options: Mapping[str, Any] | None) -> None:
    """Raise for what `torch.compile(backend="neuron")` cannot take, when it is called and not at the first graph.

    Raises:
        DynamicShapesError: `dynamic=True`.
        UnknownOptionError: an option that is not known, or a value it cannot have.
    """
    if dynamic:
        raise DynamicShapesError(DYNAMIC_REFUSED)
    if isinstance(options, Mapping):  # torch.compile takes this key out before a backend sees the options
        options = {key: value for key, value in options.items() if key != "guard_filter_fn"}
    CompileOptions.parse(options, mode)


@functools.cache
def _warn_mode(mode: str | None) -> None:
    if mode not in (None, "default"):
        warnings.warn(f"torch.compile(mode={mode!r}) has no effect on neuron: the mode is 'default'.", stacklevel=4)


def _environment_defaults() -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    if lowering := os.environ.get("NEURON_EMULATOR_LOWERING"):
        defaults["lowering"] = lowering
    if executor := os.environ.get("NEURON_EMULATOR_EXECUTOR"):
        defaults["executor"] = executor
    # TorchNeuron 2.33 raises by default; the variable's name says "disable", hence the negation.
    if disabled := os.environ.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"):
        defaults["fallback_execution"] = disabled.lower() in ("0", "false")
    return defaults


def _check(key: str, value: Any, origin: str = "torch.compile(backend='neuron')") -> None:
    if key not in _KINDS:
        raise UnknownOptionError(f"{origin} has no option {key!r}; it knows {', '.join(OPTION_KEYS)}.")
    if not isinstance(value, _KINDS[key]) and not (key == "model_name" and value is None):
        raise UnknownOptionError(f"{origin} expects a {_KINDS[key].__name__} for {key!r}, got {value!r}.")
    allowed = {"executor": EXECUTORS, "lowering": LOWERINGS}.get(key)
    if allowed and value not in allowed:
        raise UnknownOptionError(f"{origin} has no {key} {value!r}; it knows {', '.join(allowed)}.")
