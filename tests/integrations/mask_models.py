"""Tiny random models of every family of Transformers that calls the mask hook; `mask_inputs.py` calls them.

A family's models are those of its Auto class and then all others of its files, so that parts run where the whole does
not, and encoders as well as decoders. Settings that a rule does not get right are in the tables at the top.
"""

import copy
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, Gemma2Config, PretrainedConfig, PreTrainedModel, ResNetConfig, ViTConfig
from transformers.models.auto import modeling_auto

from model_tests.generation.additions import ADDITIONS
from model_tests.generation.tiny import VOCABULARY, WINDOW, tiny_config


MODELS = Path(transformers.__file__).parent / "models"
# The Auto mappings by which a family's class is found, the first that has one.
MAPPINGS = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_MAPPING_NAMES,
)

SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
SHARED_LAYERS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 0}
ATOMS = {"num_spatial_rope_pairs_per_axis": 1, "num_uid_rope_pairs": 1}
# In place of those of timm.
PICTURES = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
CLASSES_OF_PICTURES = tiny_config(ViTConfig)
# Beside the additions of the sweep of generation: by model type, or by the class of a model or of a configuration.
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
    **dict.fromkeys(("BarkSubModelConfig", "fine_acoustics"), {"block_size": 64}),
    "PPDocLayoutV2ReadingOrderConfig": {"vocab_size": VOCABULARY, "coordinate_size": 6, "shape_size": 4},
    "PaliGemmaModel": {"text_config": tiny_config(Gemma2Config)},  # the second has windows
    "audio-spectrogram-transformer": {"max_length": 40},
    "audioflamingo3_encoder": {"max_source_positions": 16},
    "blt": {"use_cache": False},  # a cache of its own it cannot make
    "bridgetower": {"text_config": {"hidden_size": 64}, "vision_config": {"hidden_size": 64}, "hidden_size": 64},
    "bros": {"hidden_size": 64},
    "chameleon": {"vocabulary_map": {"<image>": 120}},
    "cosmos3_edge": {"text_config": {"rope_parameters": {**SECTIONS, "mrope_interleaved": True}}},
    "dab-detr": {"backbone_config": PICTURES},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", "sparse"]}},
    "diffusion_gemma": {"text_config": EXPERTS},
    "diffusion_gemma_text": EXPERTS,
    "dots3_note_audio_encoder": {"adapter_input_size": 32},
    "dots3_note_text": {
        **ADDITIONS["dots3_note"], "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["sliding_attention", "indexed_attention", "full_attention"],
    },
    "esmfold2": {
        "single_inputs_size": 32 + 2 * 33 + 1, "atom_feature_dim": None, "atom_encoder": ATOMS,
        "structure_head": {"diffusion_module": {"atom_encoder": ATOMS}},
    },
    "gemma4": {"text_config": {"use_bidirectional_attention": "vision"}},
    "gemma4_assistant": {"text_config": SHARED_LAYERS},
    "hunyuan_vl": {"text_config": {"head_dim": 8}},
    "hunyuan_vl_text": {"head_dim": 8},
    "hy_v4_vl": {"text_config": {"rope_parameters": {**SECTIONS, "mrope_section": [1, 1, 0]}}},
    "imagegpt": {"is_decoder": True},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "input_size": 16},
    "lightglue": {"keypoint_detector_config": {"keypoint_decoder_dim": 65}},
    "mimi": {"upsample_groups": 32},
    "molmo2": {"adapter_config": {"vision_feature_layer": [0, 1]}},
    "mpnet": {"max_position_embeddings": 64},
    "nemo_speechlm": {"audio_config": {"diarization_config": {"chunk_length": 64}}},
    "neomme": {"head_dim": 16},
    "neucodec": {"quantization_dim": 64},
    "omdet-turbo": {"num_queries": 8, "class_embed_dim": 16},
    "pe_audio_video_encoder": {"video_config": {"vision_config": CLASSES_OF_PICTURES}},
    "pe_video_encoder": {"vision_config": CLASSES_OF_PICTURES},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "pocket_tts_audio_tokenizer": {"upsample_groups": 32},
    "qwen2_audio_encoder": {"max_source_positions": 16},
    "qwen3_omni_moe_talker": {"text_config": {"shared_expert_intermediate_size": 16}},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 16},
    "speech_to_text": {"input_channels": 1, "input_feat_per_channel": 16},
    "superglue": {"keypoint_detector_config": {"keypoint_decoder_dim": 65}},
    "tvp": {"max_img_size": 64, "image_size": 64, "visual_prompt_size": 2, "num_frames": 2},
    "vivit": {"num_frames": 2, "tubelet_size": [2, 4, 4]},
    "zaya": {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": WINDOW},
}  # fmt: skip

# Why places are not reached, by family.
CAUSES = dict.fromkeys(("sam3", "sam3_lite_text"), "boxes are cut out of pictures with torchvision")


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
    {"use_sliding_window": True, "sliding_window": WINDOW},
    {"do_stable_layer_norm": True},
    {"add_adapter": True},
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
    config = config_of(model_class, **settings)
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.set_attn_implementation("nki")
    return model


def config_of(model_class: type[PreTrainedModel], **settings: Any) -> PretrainedConfig:
    """A tiny one. Raises TypeError for settings that it does not have."""
    config_class, table = model_class.config_class, {**ADDITIONS, **FURTHER}
    names = (model_class.__name__, config_class.model_type, config_class.__name__)
    additions = next((table[name] for name in names if name in table), {})
    config = tiny_config(config_class, **copy.deepcopy(additions))  # models write to their configurations
    if not settings:
        return config
    if missing := [name for name in settings if not hasattr(config, name)]:
        raise TypeError(f"{config_class.__name__} has no {missing}")
    return tiny_config(config_class, **copy.deepcopy({**additions, **settings}))
