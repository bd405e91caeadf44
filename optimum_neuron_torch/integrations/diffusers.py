"""Diffusers on neuron: denoisers and autoencoders compiled at exact shapes, the pipeline's loop on the host.

Height and width cannot be padded: convolutions and group norms would carry the pads into the picture. So every picture
size is a graph of its own, and the report says so.

The loop around the denoiser (scheduler, guidance, latents) stays on host tensors. On the device each of its small
operations would be a compilation, and again for each of the scheduler's constants; on the host they cost nothing, and
the noise is the CPU's.
"""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import DiffusionPipeline, ModelMixin
from diffusers.models.normalization import AdaLayerNorm
from transformers import PreTrainedModel

from .. import runtime
from ..buckets.shell import shell_of
from ..config import NeuronConfig
from ..report import Ledger
from .exact import ExactCalls, device_of
from .hooks import put_hooks, remove_hooks, saving
from .kernel_layers import layers_by_kernels
from .loading import choose_config, neuron_device, refuse_config_elsewhere
from .modules import attach, detach


EXACT_SHAPES = "spatial axes cannot be padded without changing the picture: each size and batch is a graph of its own"

# Parameters of denoisers that hold the position in the noise schedule.
TIMESTEPS = ("timestep", "timesteps", "timestep_r")

_CALLS = "_neuron_exact_calls"
_LAYERS = "_neuron_kernel_layers"


# ---- preparing ----------------------------------------------------------------------------------------------------


def prepare_pipeline(pipe: DiffusionPipeline, config: NeuronConfig) -> DiffusionPipeline:
    """Compile the models of `pipe`, in place; one that is not on a neuron device is moved to the current one."""
    if pipe.device.type != runtime.DEVICE_TYPE:
        pipe.to(runtime.resolve_device())
    for component in pipe.components.values():
        if isinstance(component, ModelMixin):
            prepare_model(component, config)
        elif isinstance(component, PreTrainedModel):
            attach(detach(component), config)
    return pipe


def unprepare_pipeline(pipe: DiffusionPipeline) -> DiffusionPipeline:
    """Take back `prepare_pipeline`, except for moving."""
    for component in pipe.components.values():
        if isinstance(component, ModelMixin):
            unprepare_model(component)
        elif isinstance(component, PreTrainedModel):
            detach(component)
    return pipe


def prepare_model(model: ModelMixin, config: NeuronConfig) -> ModelMixin:
    """Compile `forward` of a Diffusers model, or `encode` and `decode` of an autoencoder, in place."""
    previous = vars(model).get(_CALLS)
    if previous is not None and previous.config == config:
        return model
    unprepare_model(model)
    ledger = Ledger(type(model).__name__, config.strict)
    layers = layers_by_kernels(model, config, ledger)
    calls = ExactCalls(model, config, ledger, reason=EXACT_SHAPES, normalise=with_tensor_timesteps)
    methods = [name for name in ("encode", "decode") if hasattr(model, name)] or ["forward"]
    hooks = {name: calls.replacement(name) for name in methods}
    hooks |= {"__deepcopy__": _deepcopy_hook(model, config), "save_pretrained": saving(model, config)}
    put_hooks(model, hooks, ledger, **{_CALLS: calls, _LAYERS: layers})
    return model


def unprepare_model(model: ModelMixin) -> ModelMixin:
    """Take back `prepare_model`."""
    if _CALLS in vars(model):
        layers = vars(model)[_LAYERS]
        remove_hooks(model)
        if layers is not None:
            layers.take_back()
    return model


def _deepcopy_hook(model: ModelMixin, config: NeuronConfig) -> Callable:
    def deepcopy(memo: dict) -> ModelMixin:
        twin = memo[id(model)] = copy.deepcopy(shell_of(model), memo)
        return prepare_model(twin, config)

    return deepcopy


def with_tensor_timesteps(model: torch.nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
    """`arguments` with timesteps as tensors, integers as float32.

    A Python number would be a constant of the graph: one graph for each step. Denoisers turn timesteps into float32
    themselves before they compute with them; only those that look them up in an embedding need integers.
    """
    for name in TIMESTEPS:
        if arguments.get(name) is None:
            continue
        value = torch.as_tensor(arguments[name])
        if value.dtype == torch.float64 or not (value.is_floating_point() or _embeds_timesteps(model)):
            value = value.to(torch.float32)
        arguments = {**arguments, name: value}
    return arguments


def _embeds_timesteps(model: torch.nn.Module) -> bool:
    return any(isinstance(module, AdaLayerNorm) and module.emb is not None for module in model.modules())


# ---- the loop on the host -----------------------------------------------------------------------------------------


def loop_device(pipe: DiffusionPipeline, stock: torch.device) -> torch.device:
    """Where the pipeline's own tensors live: on the host if all its models on neuron are prepared, else `stock`."""
    if stock.type != runtime.DEVICE_TYPE:
        return stock
    models = [model for model in pipe.components.values() if isinstance(model, torch.nn.Module)]
    on_neuron = [model for model in models if device_of(model).type == runtime.DEVICE_TYPE]
    return torch.device("cpu") if all(map(_takes_host_tensors, on_neuron)) else stock


def _takes_host_tensors(model: torch.nn.Module) -> bool:
    # Under the user's own torch.compile() our methods step aside.
    return "_neuron_ledger" in vars(model) and model._compiled_call_impl is None


# ---- loading ------------------------------------------------------------------------------------------------------


def load_pipeline(
    stock: Callable[..., DiffusionPipeline],
    path: str | os.PathLike,
    *args: Any,
    neuron_config: NeuronConfig | Literal[False] | None = None,
    **kwargs: Any,
) -> DiffusionPipeline:
    """`DiffusionPipeline.from_pretrained` (`stock`) with every spelling of a neuron device, and `neuron_config`."""
    device = neuron_device(kwargs.get("device_map"))
    if device is None:
        refuse_config_elsewhere(neuron_config, kwargs.get("device_map"))
        return stock(path, *args, **kwargs)
    config = choose_config(neuron_config, _folder_of_config(path))
    # Loaded on the host, then moved: a pipeline that Diffusers placed itself refuses .to() for good.
    kwargs = {name: value for name, value in kwargs.items() if name not in ("device_map", "max_memory")}
    pipe = stock(path, *args, **kwargs).to(device)
    return pipe if config is None else prepare_pipeline(pipe, config)


def load_model(
    stock: Callable[..., ModelMixin],
    path: str | os.PathLike,
    *args: Any,
    neuron_config: NeuronConfig | Literal[False] | None = None,
    **kwargs: Any,
) -> ModelMixin:
    """`ModelMixin.from_pretrained` (`stock`) likewise."""
    device = neuron_device(kwargs.get("device_map"))
    if device is None:
        refuse_config_elsewhere(neuron_config, kwargs.get("device_map"))
        return stock(path, *args, **kwargs)
    config = choose_config(neuron_config, path)
    kwargs.pop("max_memory", None)  # "auto" has no part to place elsewhere
    loaded = stock(path, *args, **{**kwargs, "device_map": device})
    model = loaded[0] if isinstance(loaded, tuple) else loaded  # output_loading_info=True gives a pair
    if config is not None:
        prepare_model(model, config)
    return loaded


def _folder_of_config(path: str | os.PathLike) -> Path:
    """Where a saved pipeline keeps its configuration: beside its index, or beside the first model that has one."""
    from ..config import CONFIG_NAME

    found = sorted(Path(path).glob(f"*/{CONFIG_NAME}"))
    return Path(path) if (Path(path) / CONFIG_NAME).exists() or not found else found[0].parent
