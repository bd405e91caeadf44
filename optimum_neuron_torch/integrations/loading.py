"""from_pretrained(..., device_map="neuron", neuron_config=...): where a model goes, and with which configuration."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from .. import runtime
from ..config import CONFIG_NAME, NeuronConfig


logger = logging.getLogger(__name__)


# Names for "spread it over what there is": on neuron each means the current core alone.
PLACEMENT_STRATEGIES = frozenset({"auto", "balanced", "balanced_low_0", "sequential"})


def neuron_device(device_map: Any) -> torch.device | None:
    """The neuron device that a `device_map` names, or None where it names something else.

    "auto" and the other strategies name the current neuron device where that is the accelerator of this process.
    Raises NeuronNotAvailableError or ValueError (see `runtime.resolve_device`) for a neuron device that cannot be
    used.
    """
    if isinstance(device_map, dict) and set(device_map) == {""}:
        device_map = device_map[""]
    if isinstance(device_map, str) and device_map in PLACEMENT_STRATEGIES:
        return runtime.resolve_device() if is_current_accelerator() else None
    if isinstance(device_map, int) and not isinstance(device_map, bool):
        is_ours = device_map >= 0 and is_current_accelerator()
        return runtime.resolve_device(f"{runtime.DEVICE_TYPE}:{device_map}") if is_ours else None
    if isinstance(device_map, torch.device):
        return runtime.resolve_device(device_map) if device_map.type == runtime.DEVICE_TYPE else None
    if isinstance(device_map, str) and device_map.split(":")[0] == runtime.DEVICE_TYPE:
        if not runtime.is_available():
            runtime.resolve_device()  # raises, with the reason
        return runtime.resolve_device(device_map)
    return None


def warn_of_parts(device_map: Any) -> None:
    """A map that puts only parts of a model on neuron devices is Accelerate's business: nothing is prepared."""
    if isinstance(device_map, dict) and any(neuron_device(place) is not None for place in device_map.values()):
        warnings.warn(
            f"device_map={device_map!r} spreads the model over devices: it runs eagerly, without buckets or graphs. "
            "Use device_map='neuron' for one core",
            stacklevel=4,
        )


def is_current_accelerator() -> bool:
    """Whether torch takes the neuron device for the accelerator of this process."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == runtime.DEVICE_TYPE and runtime.is_available()


def choose_config(neuron_config: NeuronConfig | bool | None, name_or_path: Any) -> NeuronConfig | None:
    """The configuration to prepare with: the one given, else the saved one, else the default; None for `False`."""
    if neuron_config is False:
        return None
    if neuron_config not in (None, True) and not isinstance(neuron_config, NeuronConfig):
        raise ValueError(f"neuron_config={neuron_config!r}: expected NeuronConfig(...), False, or None")
    has_file = _is_directory(name_or_path) and (Path(name_or_path) / CONFIG_NAME).is_file()
    if isinstance(neuron_config, NeuronConfig):
        if has_file:
            logger.info("neuron_config was given: %s is not read", Path(name_or_path) / CONFIG_NAME)
        return neuron_config
    return (NeuronConfig.from_pretrained(name_or_path) if has_file else None) or NeuronConfig()


def with_attention_asked_for(config: NeuronConfig, arguments: dict[str, Any]) -> NeuronConfig:
    """`config` with the attention that a call of from_pretrained with these arguments names, if it names one.

    Names by part of the model (a dict) are left to Transformers altogether.
    """
    # Auto classes hand the argument on within the configuration.
    handed_on = getattr(arguments.get("config"), "_attn_implementation_internal", None)
    asked = arguments.get("attn_implementation") or handed_on
    if asked is None:
        return config
    return NeuronConfig(**{**vars(config), "attn_implementation": asked if isinstance(asked, str) else None})


def refuse_config_elsewhere(neuron_config: Any, device_map: Any) -> None:
    """A configuration for the neuron device with a device_map that does not lead there is a mistake."""
    if isinstance(neuron_config, NeuronConfig):
        raise ValueError(
            f"neuron_config was given, but device_map={device_map!r} is no neuron device: add device_map='neuron'"
        )


def _is_directory(name_or_path: Any) -> bool:
    try:
        return Path(name_or_path).is_dir()
    except TypeError:
        return False
