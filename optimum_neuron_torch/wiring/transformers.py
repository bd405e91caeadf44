"""Entries for Transformers: models that come to neuron, attention "nki", and pipelines that would stay on the CPU."""

from functools import partial, wraps
from types import ModuleType
from typing import Any

from .entries import Entry, Undo, all_of, put, replace


def _load_on_neuron(module: ModuleType) -> Undo:
    def wrap(original: classmethod) -> classmethod:
        stock = original.__func__

        @wraps(stock)
        def from_pretrained(
            cls: type, pretrained_model_name_or_path: Any, *args: Any, neuron_config: Any = None, **kwargs: Any
        ) -> Any:
            from ..api import prepare
            from ..integrations.loading import (
                choose_config,
                neuron_device,
                refuse_config_elsewhere,
                warn_of_parts,
                with_attention_asked_for,
            )

            device = neuron_device(kwargs.get("device_map"))
            if device is None:
                refuse_config_elsewhere(neuron_config, kwargs.get("device_map"))
                warn_of_parts(kwargs.get("device_map"))
                return stock(cls, pretrained_model_name_or_path, *args, **kwargs)
            config = choose_config(neuron_config, pretrained_model_name_or_path)
            kwargs["device_map"] = {"": device}
            kwargs.pop("max_memory", None)  # "auto" has no part to place elsewhere
            # Read before loading, which fills the configuration in.
            config = None if config is None else with_attention_asked_for(config, kwargs)
            loaded = stock(cls, pretrained_model_name_or_path, *args, **kwargs)
            model = loaded[0] if isinstance(loaded, tuple) else loaded  # output_loading_info=True gives a pair
            if config is not None:
                prepare(model, config)
            return loaded

        return classmethod(from_pretrained)

    return replace(module.PreTrainedModel, "from_pretrained", wrap)


def _watch_moved_models(module: ModuleType) -> Undo:
    def wrap(stock: Any) -> Any:
        @wraps(stock)
        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            from ..integrations.noticing import watch

            moved = stock(self, *args, **kwargs)
            watch(moved)
            return moved

        return to

    return replace(module.PreTrainedModel, "to", wrap)


def _register_attention(module: ModuleType) -> Undo:
    from ..integrations.attention import NAME, nki_attention_forward

    return put(module.AttentionInterface._global_mapping, NAME, nki_attention_forward)


def _register_mask(module: ModuleType) -> Undo:
    from ..integrations.attention import NAME
    from ..nki.masks import nki_mask

    return put(module.AttentionMaskInterface._global_mapping, NAME, nki_mask)


def _tell_masks(module: ModuleType) -> Undo:
    from ..nki.masks import telling

    kinds = {
        "and_masks": "and",
        "sliding_window_overlay": "window",
        "sliding_window_bidirectional_overlay": "window on both sides",
        "chunked_overlay": "chunk",
    }
    # Where one is called otherwise by now, its masks stay whole.
    present = {name: kind for name, kind in kinds.items() if hasattr(module, name)}
    return all_of([replace(module, name, partial(telling, kind)) for name, kind in present.items()])


def _keep_marks_of_masks(module: ModuleType) -> Undo:
    from ..nki.masks import keeping_marks

    if not hasattr(module, "_preprocess_mask_arguments"):  # padding stays a mask of its own then
        return lambda: None
    return replace(module, "_preprocess_mask_arguments", keeping_marks)


def _attend_flexibly(module: ModuleType) -> Undo:
    from ..integrations.flex import FUNCTION, forward_on_neuron

    mapping = module.AttentionInterface._global_mapping
    return put(mapping, FUNCTION, forward_on_neuron(mapping[FUNCTION])) if FUNCTION in mapping else lambda: None


def _mask_flexibly(module: ModuleType) -> Undo:
    from ..integrations.flex import FUNCTION, mask_on_neuron

    mapping = module.AttentionMaskInterface._global_mapping
    return put(mapping, FUNCTION, mask_on_neuron(mapping[FUNCTION])) if FUNCTION in mapping else lambda: None


def _decide_on_host(module: ModuleType) -> Undo:
    def wrap(stock: Any) -> Any:
        @wraps(stock)
        def _assisted_decoding(self: Any, *args: Any, **kwargs: Any) -> Any:
            from ..integrations.generation import deciding_on_host

            return deciding_on_host(stock)(self, *args, **kwargs)

        return _assisted_decoding

    return replace(module.GenerationMixin, "_assisted_decoding", wrap)


def _place_pipelines(module: ModuleType) -> Undo:
    def wrap(stock: Any) -> Any:
        @wraps(stock)
        def __init__(self: Any, model: Any, *args: Any, device: Any = None, **kwargs: Any) -> None:
            from ..integrations.pipelines import pipeline_device, prepare_pipeline_model

            stock(self, model, *args, device=pipeline_device(model, device), **kwargs)
            prepare_pipeline_model(self)

        return __init__

    return replace(module.Pipeline, "__init__", wrap)


def _install_hooks_while_traced(module: ModuleType) -> Undo:
    def wrap(stock: Any) -> Any:
        def install(model: Any) -> None:
            stock(model)

        # As torch.compiler.assume_constant_result() marks it, which would import Dynamo: run once, while tracing.
        install._dynamo_marked_constant = True  # type: ignore[attr-defined]

        import torch

        @wraps(stock)
        def maybe_install_capturing_hooks(model: Any) -> None:
            if torch.compiler.is_compiling():
                install(model)
            else:
                stock(model)

        return maybe_install_capturing_hooks

    return replace(module, "maybe_install_capturing_hooks", wrap)


def _let_functions_be_layers(module: ModuleType) -> Undo:
    from ..integrations import rotary_functions

    return all_of([replace(rotary_functions, "put", lambda _: replace), rotary_functions.leave_all])


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "transformers: from_pretrained prepares",
        "transformers.modeling_utils",
        _load_on_neuron,
        "a loading hook for out-of-tree devices in from_pretrained; 'auto' that sees neuron (accelerate #4278)",
    ),
    Entry(
        "transformers: a model that only moved is told of prepare()",
        "transformers.modeling_utils",
        _watch_moved_models,
        "a notice of moves to out-of-tree devices in PreTrainedModel.to",
    ),
    Entry(
        "transformers: attention nki",
        "transformers.modeling_utils",
        _register_attention,
        "none needed: AttentionInterface is the public way (its mapping is set directly so that it can be undone)",
    ),
    Entry(
        "transformers: mask nki",
        "transformers.masking_utils",
        _register_mask,
        "none needed: AttentionMaskInterface is the public way (its mapping is set directly so that it can be undone)",
    ),
    Entry(
        "transformers: mask functions say what they are",
        "transformers.masking_utils",
        _tell_masks,
        "mask functions whose pieces and their sizes can be read, in place of closures",
    ),
    Entry(
        "transformers: what is known of a padding mask stays known",
        "transformers.masking_utils",
        _keep_marks_of_masks,
        "mask functions that get the caller's own 2-D mask beside the converted one",
    ),
    Entry(
        "transformers: attention flex_attention on neuron",
        "transformers.modeling_utils",
        _attend_flexibly,
        "FlexAttention in PyTorch for devices out of tree",
    ),
    Entry(
        "transformers: mask flex_attention on neuron",
        "transformers.masking_utils",
        _mask_flexibly,
        "FlexAttention in PyTorch for devices out of tree",
    ),
    Entry(
        "transformers: assisted decoding decides on the host",
        "transformers.generation.utils",
        _decide_on_host,
        "candidates that go to input_ids.device, not to self.device, in _assisted_decoding",
    ),
    Entry(
        "transformers: first call with hidden states compiles",
        "transformers.utils.output_capturing",
        _install_hooks_while_traced,
        "a lock that Dynamo can enter, or none while tracing, in maybe_install_capturing_hooks",
    ),
    Entry(
        "transformers: rotary functions become layers while a model that kernels serve calls them",
        "transformers.modeling_utils",
        _let_functions_be_layers,
        "layers made of the functions by any version of `kernels`, or without it, by use_kernel_forward_from_hub",
    ),
    Entry(
        "transformers: pipelines end on neuron",
        "transformers.pipelines.base",
        _place_pipelines,
        "a neuron branch, or torch.accelerator, in the device choice of Pipeline.__init__",
    ),
)
