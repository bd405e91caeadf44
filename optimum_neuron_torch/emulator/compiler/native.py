"""Find a native `neuron` compile backend from distribution metadata, without importing any other distribution."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from optimum_neuron_torch.emulator.device.presence import SWITCH


GROUP = "torch_dynamo_backends"
OWN_MODULE = "optimum_neuron_torch."


def native_backend() -> Callable[..., Any] | None:
    """The `neuron` backend that another distribution registers, loaded; None where there is none."""
    if os.environ.get(SWITCH, "").strip() == "1":
        return None
    for entry in entry_points(group=GROUP, name="neuron"):
        if not entry.value.startswith(OWN_MODULE):
            return entry.load()
    return None
