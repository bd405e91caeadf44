"""Transformers pipelines on the neuron device: where a pipeline's model goes, and our own `pipeline()`."""

from typing import Any

import torch

from .. import runtime
from ..config import NeuronConfig
from .loading import is_current_accelerator, neuron_device


def pipeline(
    task: str | None = None,
    model: Any = None,
    *args: Any,
    neuron_config: NeuronConfig | bool | None = None,
    **kwargs: Any,
) -> Any:
    """`transformers.pipeline(task, model, ...)` whose model runs prepared on the neuron device.

    `device` and `device_map` may name a neuron core; without them it is the current one. `neuron_config=False` leaves
    the model as Transformers made it. Raises ValueError for a device that is not neuron, NeuronNotAvailableError
    without one.
    """
    import transformers

    from ..api import prepare

    named = kwargs.pop("device", None)
    device = runtime.resolve_device() if named is None else neuron_device(named)
    if device is None:
        raise ValueError(f"device={named!r} is no neuron device: use transformers.pipeline() for another one")
    device_map = kwargs.pop("device_map", None)
    if device_map is not None:
        device = neuron_device(device_map)
        if device is None:
            raise ValueError(
                f"device_map={device_map!r} is no neuron device: use transformers.pipeline() for another one"
            )
    if isinstance(model, torch.nn.Module) and runtime.is_neuron(next(model.parameters(), None)):
        device = model.device
    made = transformers.pipeline(task, model, *args, device=device, **kwargs)
    if neuron_config is not False:
        prepare(made.model, neuron_config if isinstance(neuron_config, NeuronConfig) else None)
    return made


def pipeline_device(model: Any, device: Any) -> Any:
    """The `device` for Pipeline.__init__: what was asked for, else the neuron device where that is the accelerator.

    Transformers reads None as 0 and knows no neuron ordinals, so that both would end on the CPU without a word.
    """
    if not is_current_accelerator() or getattr(model, "hf_device_map", None) is not None:
        return device
    if device is None:
        parameter = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
        return model.device if runtime.is_neuron(parameter) else runtime.resolve_device()
    if isinstance(device, int) and device >= 0:
        return runtime.resolve_device(f"{runtime.DEVICE_TYPE}:{device}")
    return device


def prepare_pipeline_model(made: Any) -> None:
    """Prepare the model of a pipeline that Transformers placed on a neuron device."""
    from ..api import prepare

    if isinstance(made.model, torch.nn.Module) and getattr(made.device, "type", None) == runtime.DEVICE_TYPE:
        prepare(made.model)
