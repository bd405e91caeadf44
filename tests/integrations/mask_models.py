"""Tiny random models of every family of Transformers that calls the mask hook, and ways of calling them.

A family's models are those of its Auto class and then all others of its files, so that parts run where the whole does
not, and encoders as well as decoders. Settings that a rule does not get right are in the tables at the top.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from model_tests.generation.additions import ADDITIONS
from model_tests.generation.tiny import VOCABULARY, WINDOW, tiny_config


MODELS = Path(transformers.__file__).parent / "models"
# Padding makes no mask of another kind, so one length does; longer than the windows of tiny configurations.
ROWS, LENGTH, PADS = 2, 20, 3
# The Auto mappings by which a family's class is found, the first that has one.
MAPPINGS = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_MAPPING_NAMES,
)

SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
# Beside the additions of the sweep of generation.
FURTHER = {
    **{
        model_type: {"text_config": {"rope_parameters": SECTIONS}}
        for model_type in (
            "ernie4_5_vl_moe", "glm4v", "glm4v_moe", "glm_image", "glm_ocr", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl",
        )
    },
    **{
        model_type: {"prediction_length": 4, "context_length": 8}
        for model_type in ("autoformer", "informer", "time_series_transformer")
    },
    "mpnet": {"max_position_embeddings": 64},
    "speech_to_text": {"input_channels": 1, "input_feat_per_channel": 16},
}  # fmt: skip

# Ways of calling by class or model type, beside those of the rules.
INPUTS: dict[str, Callable[[PretrainedConfig], dict[str, Any]]] = {}


# ---- classes --------------------------------------------------------------------------------------------------------


def modules_of(family: str) -> list[ModuleType]:
    """The files of a family that have models."""
    paths = sorted(MODELS.glob(f"{family}/modeling_*.py"))
    return [importlib.import_module(f"transformers.models.{family}.{path.stem}") for path in paths]


def classes_of(family: str) -> list[type[PreTrainedModel]]:
    """That of the Auto mappings, then the others of the family's files, backwards: what comes last has the rest."""
    classes = [
        entry
        for module in modules_of(family)
        for entry in reversed(vars(module).values())
        if isinstance(entry, type) and issubclass(entry, PreTrainedModel) and entry.__module__ == module.__name__
    ]
    classes = [one for one in classes if "forward" in vars(one) and one.config_class is not None]
    first = _auto_class(family)
    return sorted(classes, key=lambda one: one.__name__ != first)


def _auto_class(family: str) -> str | None:
    types = [model_type for model_type in CONFIG_MAPPING if _module(model_type) == family]
    for mapping in MAPPINGS:
        for model_type in types:
            if model_type in mapping:
                names = mapping[model_type]
                return names if isinstance(names, str) else names[0]
    return None


def _module(model_type: str) -> str:
    return transformers.models.auto.configuration_auto.model_type_to_module_name(model_type)


# ---- tiny models ----------------------------------------------------------------------------------------------------

# Settings that decide between the calls of a model's code. Those are tried that a configuration has.
LAYERS = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": WINDOW}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"is_decoder": True, "add_cross_attention": True},
    {"add_cross_attention": True},
    {"is_decoder": False},
    {"sliding_window": None},
    {"sliding_window": WINDOW},
    LAYERS,
    {"use_sliding_window": True, **LAYERS},
)


def models_of(family: str) -> Iterator[tuple[str, Callable[[], PreTrainedModel]]]:
    """Names of models of the family, and what makes each: all classes as they are, then with other settings."""
    classes = classes_of(family)
    for variant in VARIANTS:
        settings = ", ".join(f"{name}={value}" for name, value in variant.items())
        for model_class in classes:
            yield f"{model_class.__name__}({settings})", partial(model_of, model_class, **variant)


def model_of(model_class: type[PreTrainedModel], **settings: Any) -> PreTrainedModel:
    """A tiny random model of the class, with attention "nki"."""
    config = config_of(model_class.config_class, **settings)
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.set_attn_implementation("nki")
    return model


def config_of(config_class: type[PretrainedConfig], **settings: Any) -> PretrainedConfig:
    """A tiny one. Raises TypeError for settings that it does not have."""
    additions = {**ADDITIONS, **FURTHER}.get(config_class.model_type, {})
    config = tiny_config(config_class, **additions)
    if not settings:
        return config
    if missing := [name for name in settings if not hasattr(config, name)]:
        raise TypeError(f"{config_class.__name__} has no {missing}")
    return tiny_config(config_class, **additions, **settings)


# ---- ways of calling them -------------------------------------------------------------------------------------------


def inputs_of(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Ways to call it, the likeliest first: two rows of tokens, one of them with pads on the left, and other kinds."""
    taken = inspect.signature(type(model).forward).parameters
    config = model.config
    tokens, embeds, others = _of_tokens(config), _of_embeds(config), _of_other_kinds(config)
    decoder = {f"decoder_{name}": tokens[name] for name in ("input_ids", "attention_mask")}
    crossed = {name: embeds[name] for name in embeds if getattr(config, "add_cross_attention", False)}
    main = getattr(model, "main_input_name", "input_ids")
    of_main = {main: others[main]} if main in others else {}
    special = [INPUTS[name](config) for name in (type(model).__name__, config.model_type) if name in INPUTS]
    for named in (
        *({**tokens, **decoder, **one} for one in special),
        *special,
        {**crossed, **tokens, **decoder} if main == "input_ids" else {**of_main, **_mask_of_sound(of_main), **decoder},
        {**of_main, **decoder},
        {**tokens, **others},
        others,
        {**embeds, "attention_mask": tokens["attention_mask"]},
    ):
        yield {name: tensor for name, tensor in named.items() if name in taken}


def _of_tokens(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    text = config.get_text_config()
    length = min(LENGTH, _number(text, "max_position_embeddings") or LENGTH)
    size = min(VOCABULARY - 30, _number(text, "vocab_size") or VOCABULARY)
    ids = torch.randint(5, size, (ROWS, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :PADS] = 0
    return {"input_ids": ids, "attention_mask": mask, "bbox": torch.zeros(ROWS, length, 4, dtype=torch.long)}


def _of_embeds(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """For parts of models: states of the layers before them, and of an encoder whose first row has pads."""
    size = _number(config, "hidden_size") or _number(config, "d_model") or 32
    states = torch.randn(ROWS, LENGTH, size, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(ROWS, LENGTH, dtype=torch.long)
    mask[0, -PADS:] = 0
    return {
        "inputs_embeds": states,
        "hidden_states": states,
        "encoder_hidden_states": states,
        "encoder_attention_mask": mask,
    }


def _number(config: PretrainedConfig, name: str) -> int | None:
    number = getattr(config, name, None)
    return number if isinstance(number, int) else None


def _mask_of_sound(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One with pads on the right of the first row."""
    sound = next((inputs[name] for name in ("input_features", "input_values") if name in inputs), None)
    if sound is None:
        return {}
    mask = torch.ones(ROWS, sound.shape[-1], dtype=torch.long)
    mask[0, mask.shape[1] * 3 // 4 :] = 0
    return {"attention_mask": mask}


def _of_other_kinds(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """Pictures and sounds, at the sizes that a configuration says."""
    vision = getattr(config, "vision_config", config)
    size, channels = getattr(vision, "image_size", 16), _number(vision, "num_channels") or 3
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    bins = _number(config, "num_mel_bins") or _number(config, "input_feat_per_channel") or 16
    generator = torch.Generator().manual_seed(0)
    return {
        "pixel_values": torch.randn(ROWS, channels, height, width, generator=generator),
        "input_features": torch.randn(ROWS, bins, 32, generator=generator),
        "input_values": torch.randn(ROWS, 4000, generator=generator),
    }
