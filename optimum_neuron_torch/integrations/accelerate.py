"""What Accelerate has to know about the neuron device: its memory, that "auto" means one core, and no float16.

Automatic placement ends on the current neuron device alone. Spread over cores, or offloaded, each part of the model
would move tensors between devices in the middle of its graphs. A model that does not fit is a
`torch.OutOfMemoryError`.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch

from .. import runtime
from .loading import PLACEMENT_STRATEGIES, is_current_accelerator


# Graphs that one torch.compile() call of a training loop may make. Dynamo's own limit of 8 is met by a few batch
# shapes in training and evaluation, and behind it everything runs eagerly without an error; this one equals Dynamo's
# limit over all calls.
RECOMPILE_LIMIT = 256


def current_device_map() -> dict[str, str]:
    """The whole model on the current neuron device."""
    return {"": str(runtime.resolve_device())}


def float16_refusal(asked: str) -> ValueError:
    """The error for float16 mixed precision; `asked` is what the user wrote."""
    return ValueError(
        f"{asked} is not supported on the neuron device: float16 mixed precision needs a gradient scaler, and PyTorch "
        "has none for neuron. Use bf16 instead: TrainingArguments(bf16=True), Accelerator(mixed_precision='bf16')."
    )


def with_neuron_memory(get_max_memory: Callable) -> Callable:
    """`get_max_memory()` that knows the free memory of the current neuron device, and offers nothing else."""

    @wraps(get_max_memory)
    def wrapper(max_memory=None):
        if max_memory is not None or not is_current_accelerator():
            return get_max_memory(max_memory)
        index = runtime.resolve_device().index
        return {index: torch.accelerator.get_memory_info(index)[0]}

    return wrapper


def with_one_device(infer_auto_device_map: Callable) -> Callable:
    """`infer_auto_device_map()` that ends on the current neuron device, unless the user set limits."""

    @wraps(infer_auto_device_map)
    def wrapper(model, max_memory=None, *args, **kwargs):
        if max_memory is not None or not is_current_accelerator():
            return infer_auto_device_map(model, max_memory, *args, **kwargs)
        return current_device_map()

    return wrapper


def with_one_device_loading(load_checkpoint_and_dispatch: Callable) -> Callable:
    """`load_checkpoint_and_dispatch()` whose automatic maps end on the current neuron device, unless limited."""

    @wraps(load_checkpoint_and_dispatch)
    def wrapper(model, checkpoint, device_map=None, max_memory=None, *args, **kwargs):
        is_automatic = isinstance(device_map, str) and device_map in PLACEMENT_STRATEGIES
        if is_automatic and max_memory is None and is_current_accelerator():
            device_map = current_device_map()
        return load_checkpoint_and_dispatch(model, checkpoint, device_map, max_memory, *args, **kwargs)

    return wrapper


def with_named_devices(dispatch_model: Callable) -> Callable:
    """`dispatch_model()` that moves a model to a numbered device: Accelerate skips the move for numbers of neuron."""

    @wraps(dispatch_model)
    def wrapper(model, device_map, *args, **kwargs):
        if is_current_accelerator():
            device_map = {name: _named(place) for name, place in device_map.items()}
        return dispatch_model(model, device_map, *args, **kwargs)

    return wrapper


def _named(place: Any) -> Any:
    return str(runtime.resolve_device(f"{runtime.DEVICE_TYPE}:{place}")) if type(place) is int else place


def refusing_float16(init: Callable) -> Callable:
    """`AcceleratorState.__init__` that refuses fp16 on neuron before anything of the shared state is set."""
    parameters = signature(init)

    @wraps(init)
    def wrapper(self, *args, **kwargs):
        from accelerate.state import PartialState
        from accelerate.utils import parse_choice_from_env, parse_flag_from_env

        arguments = parameters.bind(self, *args, **kwargs).arguments
        asked = arguments.get("mixed_precision") or parse_choice_from_env("ACCELERATE_MIXED_PRECISION", "no")
        if asked.lower() == "fp16" and runtime.is_available() and not type(self)._shared_state:
            cpu = arguments.get("cpu", False) or parse_flag_from_env("ACCELERATE_USE_CPU")
            if PartialState(cpu, **arguments.get("kwargs", {})).device.type == runtime.DEVICE_TYPE:
                raise float16_refusal("mixed_precision='fp16'")
        init(self, *args, **kwargs)

    return wrapper


def with_recompile_limit(to_kwargs: Callable) -> Callable:
    """`TorchDynamoPlugin.to_kwargs` that lets backend neuron compile every batch shape (see RECOMPILE_LIMIT)."""

    @wraps(to_kwargs)
    def wrapper(self):
        kwargs = to_kwargs(self)
        if kwargs.get("backend") == runtime.DEVICE_TYPE:
            kwargs = {"recompile_limit": RECOMPILE_LIMIT, "isolate_recompiles": True, **kwargs}
        return kwargs

    return wrapper
