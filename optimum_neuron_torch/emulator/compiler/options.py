"""What `torch.compile(backend="neuron", mode=..., options=...)` accepts, with its environment defaults."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optimum_neuron_torch.emulator.compiler.errors import UnknownOptionError


EXECUTORS = ("inductor", "aten", "xla")
LOWERINGS = ("check", "off")

_KINDS: dict[str, type | tuple[type, ...]] = {
    "model_name": str,
    "fallback_execution": bool,
    "executor": str,
    "lowering": str,
}
OPTION_KEYS = tuple(_KINDS)


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """
    Validated options of one `torch.compile` call.

    Args:
        model_name: name used for the records of `get_dynamo_metrics()`; None takes what `set_model_name()` set.
        fallback_execution: run a graph that does not lower eagerly on the device instead of raising.
        executor: what runs the graph: `inductor`, `aten` or `xla`.
        lowering: `check` lowers every graph to StableHLO before its first result; `off` does not.
    """

    model_name: str | None = None
    fallback_execution: bool = False
    executor: str = "inductor"
    lowering: str = "check"

    @classmethod
    def parse(cls, options: Mapping[str, Any] | None = None, mode: str | None = None) -> CompileOptions:
        """Read user options over the environment's defaults; raise `UnknownOptionError` for what is not known."""
        if mode not in (None, "default"):
            warnings.warn(
                f"torch.compile(mode={mode!r}) has no effect on neuron: the mode is 'default'.", stacklevel=2
            )
        chosen = {**_environment_defaults(), **(options or {})}
        for key, value in chosen.items():
            _check(key, value)
        return cls(**chosen)


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


def _check(key: str, value: Any) -> None:
    if key not in _KINDS:
        raise UnknownOptionError(
            f"torch.compile(backend='neuron') has no option {key!r}; it knows {', '.join(OPTION_KEYS)}."
        )
    if not isinstance(value, _KINDS[key]) and not (key == "model_name" and value is None):
        raise UnknownOptionError(
            f"torch.compile(backend='neuron') expects a {_KINDS[key].__name__} for {key!r}, got {value!r}."
        )
    allowed = {"executor": EXECUTORS, "lowering": LOWERINGS}.get(key)
    if allowed and value not in allowed:
        raise UnknownOptionError(
            f"torch.compile(backend='neuron') has no {key} {value!r}; it knows {', '.join(allowed)}."
        )
