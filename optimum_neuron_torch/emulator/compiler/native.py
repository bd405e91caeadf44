"""Find a native `neuron` compile backend from distribution metadata, without importing any distribution."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

GROUP = "torch_dynamo_backends"
OWN_MODULE = "optimum_neuron_torch."


def native_backend() -> Callable[..., Any] | None:
    """The `neuron` backend that another distribution registers, loaded; None where there is none."""
    for entry in entry_points(group=GROUP, name="neuron"):
        if not entry.value.startswith(OWN_MODULE):
            return entry.load()
    return None
