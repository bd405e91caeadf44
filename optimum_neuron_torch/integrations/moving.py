"""Nested values of tensors, from one device to another."""

from typing import Any

import torch

from .. import runtime
from ..buckets.pad import dense


def first_device(value: Any) -> torch.device | None:
    """The neuron device of the first tensor in a (nested) value; caches and models are not looked into."""
    if runtime.is_neuron(value):
        return value.device
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return next((device for item in value if (device := first_device(item)) is not None), None)
    return None


def moved(value: Any, device: torch.device) -> Any:
    """Tensors of a nested value on `device`; containers keep their type, everything else is passed through."""
    if isinstance(value, torch.Tensor):
        # Beams and encoder outputs are views, which moved to the device would be an eager copy of each shape.
        return (dense(value) if device.type == runtime.DEVICE_TYPE else value).to(device)
    if isinstance(value, dict):
        parts = {key: moved(item, device) for key, item in value.items()}
        return type(value)(**parts) if hasattr(value, "to_tuple") else parts
    if isinstance(value, tuple) and type(value) is tuple or isinstance(value, list):
        return type(value)(moved(item, device) for item in value)
    return value
