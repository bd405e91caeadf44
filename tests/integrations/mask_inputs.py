"""What the tiny models of `mask_models.py` are given: by rules over names of inputs, and by lines of their own."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from model_tests.generation.tiny import VOCABULARY


# Padding makes no mask of another kind, so one length does; longer than the windows of tiny configurations.
ROWS, LENGTH, PADS = 2, 20, 3
FRAMES = 32


def inputs_of(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Ways to call it, the likeliest first: two rows of tokens, one of them with pads on the left, and other kinds."""
    taken = inspect.signature(type(model).forward).parameters
    config = model.config
    tokens, states, crossing = _of_tokens(config), _of_states(config), _of_encoder(config)
    decoder = {f"decoder_{name}": tokens[name] for name in ("input_ids", "attention_mask")}
    crossed = crossing if getattr(config, "add_cross_attention", False) else {}
    main = getattr(model, "main_input_name", "input_ids")
    others = _of_other_kinds(config)
    of_main = {main: others[main]} if main in others else {}
    own = INPUTS.get(type(model).__name__)
    special = {} if own is None else own(config)
    for named in (
        *([{**tokens, **decoder, **special}] if special else []),
        {**crossed, **tokens, **decoder} if main == "input_ids" else {**of_main, **_masks_of(of_main), **decoder},
        special or {**of_main, **decoder},
        {**tokens, **others},
        others,
        {**states, **crossing, "attention_mask": tokens["attention_mask"]},
        {**tokens, **crossing},
        *({**tokens, **form, **decoder} for form in _in_other_forms(others)),
        *({**form, **decoder} for form in _in_other_forms(others)),
    ):
        yield {name: tensor for name, tensor in named.items() if name in taken}


# ---- rules ----------------------------------------------------------------------------------------------------------


def _of_tokens(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    text = config.get_text_config()
    length = min(LENGTH, _number(text, "max_position_embeddings") or LENGTH)
    size = min(VOCABULARY - 30, _number(text, "vocab_size") or VOCABULARY)
    ids = torch.randint(min(5, size - 1), size, (ROWS, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :PADS] = 0
    return {"input_ids": ids, "attention_mask": mask, "bbox": torch.zeros(ROWS, length, 4, dtype=torch.long)}


def _of_states(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """For parts of models: states of the layers before them."""
    return dict.fromkeys(("inputs_embeds", "hidden_states"), _random(ROWS, LENGTH, _width(config)))


def _of_encoder(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """States of an encoder whose first row has pads, and of what asks them."""
    states = _random(ROWS, LENGTH, _width(config))
    return {"encoder_hidden_states": states, "encoder_attention_mask": _padded(LENGTH), "query_embeds": states}


def _of_other_kinds(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """Pictures and sounds, at the sizes that a configuration says."""
    vision = getattr(config, "vision_config", config)
    size, channels = getattr(vision, "image_size", 16), _number(vision, "num_channels") or 3
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    bins = _number(config, "num_mel_bins") or _number(config, "input_feat_per_channel") or 16
    return {
        "pixel_values": _random(ROWS, channels, height, width),
        "input_features": _random(ROWS, bins, FRAMES),
        "input_values": _random(ROWS, 4000),
    }


def _in_other_forms(others: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Two pictures a row, spectra that begin with time, sounds with a channel; with masks of sounds by all names."""
    videos = {"pixel_values": torch.stack([others["pixel_values"]] * 2, 1)}
    spectra, sounds = others["input_features"], {"input_values": others["input_values"][:, None]}
    for features in (spectra, spectra.mT):
        for axis in (2, 1):
            yield {**videos, **sounds, "input_features": features, **_masks(features.shape[axis])}
    yield {**others, **_masks(others["input_values"].shape[-1])}


def _masks_of(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    sound = next((inputs[name] for name in ("input_features", "input_values") if name in inputs), None)
    return {} if sound is None else _masks(sound.shape[-1])


def _masks(length: int) -> dict[str, torch.Tensor]:
    """Masks of sounds with pads on the right of the first row."""
    names = ("attention_mask", "input_features_mask", "feature_attention_mask", "padding_mask")
    return dict.fromkeys(names, _padded(length, length // 4))


def _width(config: PretrainedConfig) -> int:
    return _number(config, "hidden_size") or _number(config, "d_model") or 32


def _number(config: PretrainedConfig, name: str) -> int | None:
    number = getattr(config, name, None)
    return number if isinstance(number, int) else None


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _padded(length: int, pads: int = PADS) -> torch.Tensor:
    """A mask with pads on the right of the first row."""
    mask = torch.ones(ROWS, length, dtype=torch.long)
    mask[0, -pads:] = 0
    return mask


# ---- inputs of their own --------------------------------------------------------------------------------------------


def _of_series(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    length = config.context_length
    return {"inputs_embeds": _random(ROWS, length, config.feature_size), "attention_mask": _padded(length)}


def _of_decisions(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    sizes = {"states": config.state_dim, "actions": config.act_dim, "rewards": 1, "returns_to_go": 1}
    steps = torch.arange(LENGTH).expand(ROWS, -1)
    mask = {"attention_mask": _padded(LENGTH), "timesteps": steps}
    return {name: _random(ROWS, LENGTH, size) for name, size in sizes.items()} | mask


def _of_assistant(config: PretrainedConfig) -> dict[str, Any]:
    """One token that attends to keys and values of another model."""
    text = config.get_text_config()
    states = {}
    for layer, kind in enumerate(text.layer_types):
        own = text.per_layer_config[layer]
        states[kind] = (_random(ROWS, own.num_key_value_heads, LENGTH, own.head_dim),) * 2
    return {
        "inputs_embeds": _random(ROWS, 1, 2 * config.backbone_hidden_size),
        "position_ids": torch.full((ROWS, 1), LENGTH),
        "shared_kv_states": states,
    }


def _of_noise(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    context = len(config.target_layer_ids) * config.hidden_size
    return {
        "noise_embeds": _random(ROWS, LENGTH, config.hidden_size),
        "context_hidden_states": _random(ROWS, LENGTH, context),
    }


def _of_marked_tokens(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """Tokens of which some are said to be a picture's: they see each other."""
    kinds = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    kinds[:, 6:12] = 1
    return {"token_type_ids": kinds, "mm_token_type_ids": kinds}


def _of_patches(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """Four rows of four patches of a picture, the last of the first row pads."""
    side = 4
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="xy"), -1).reshape(-1, 2)
    places = places.expand(ROWS, -1, -1).clone()
    places[0, -PADS:] = -1
    return {
        "pixel_values": _random(ROWS, side * side, 3 * config.patch_size**2),
        "pixel_attention_mask": _padded(side * side),
        "spatial_shapes": torch.full((ROWS, 2), side),
        "pixel_position_ids": places,
    }


def _of_videos(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """Eight frames, two of the first row pads, and as much sound."""
    size, hop = config.video_config.vision_config.image_size, config.audio_config.dac_config.hop_length
    return {
        "pixel_values_videos": _random(ROWS, FRAMES // 4, 3, size, size),
        "padding_mask_videos": _padded(FRAMES // 4, 2),
        "input_values": _random(ROWS, 1, FRAMES // 4 * hop),
        "padding_mask": _padded(FRAMES // 4 * hop, 2 * hop),
    }


def _of_atoms(config: PretrainedConfig) -> dict[str, Any]:
    """Proteins of one chain, with two atoms a token."""
    from transformers.models.esmfold2.modeling_esmfold2 import EsmFold2AtomInputs

    numbers = torch.arange(LENGTH).expand(ROWS, -1)
    zeros, owners = torch.zeros_like(numbers), numbers.repeat_interleave(2, 1)
    atoms = EsmFold2AtomInputs(
        ref_pos=_random(ROWS, 2 * LENGTH, 3),
        ref_charge=torch.zeros(ROWS, 2 * LENGTH),
        atom_attention_mask=_padded(2 * LENGTH).bool(),
        ref_element=torch.ones_like(owners),
        ref_atom_name_chars=torch.ones(ROWS, 2 * LENGTH, config.max_chars, dtype=torch.long),
        ref_space_uid=owners,
        atom_to_token=owners,
    )
    kinds = dict.fromkeys(("asym_id", "sym_id", "entity_id", "mol_type", "res_type"), zeros)
    return {
        **kinds, "token_index": numbers, "residue_index": numbers, "attention_mask": _padded(LENGTH).bool(),
        "token_bonds": torch.zeros(ROWS, LENGTH, LENGTH, 1), "atom_inputs": atoms, "num_loops": 0, "input_ids": None,
    }  # fmt: skip


def _of_characters(config: PretrainedConfig) -> dict[str, torch.Tensor]:
    """Tokens of two characters."""
    return {
        "inputs_embeds": _random(ROWS, LENGTH, config.hidden_size),
        "attention_mask": _padded(LENGTH),
        "char_input_ids": torch.ones(ROWS, 2 * LENGTH, dtype=torch.long),
        "char_count_per_id": torch.full((ROWS, LENGTH), 2),
    }


# Ways of calling by the class's name, before those of the rules: with tokens where it takes them, and without.
INPUTS: dict[str, Callable[[PretrainedConfig], dict[str, Any]]] = {
    **dict.fromkeys(("AutoformerEncoder", "InformerEncoder", "TimeSeriesTransformerEncoder"), _of_series),
    **dict.fromkeys(("Gemma3ForConditionalGeneration", "Gemma4ForConditionalGeneration"), _of_marked_tokens),
    **dict.fromkeys(("Gemma4UnifiedForConditionalGeneration", "Molmo2ForConditionalGeneration"), _of_marked_tokens),
    **dict.fromkeys(("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"), _of_assistant),
    **dict.fromkeys(("Gemma4VisionModel", "Siglip2VisionModel"), _of_patches),
    "ASTModel": lambda config: {"input_values": _random(ROWS, config.max_length, config.num_mel_bins)},
    "BarkFineModel": lambda config: {
        "codebook_idx": 1, "input_ids": torch.ones(ROWS, LENGTH, config.n_codes_total, dtype=torch.long),
    },
    "DecisionTransformerModel": _of_decisions,
    "Dots3NoteAudioModel": lambda config: {
        "input_features": _random(ROWS, config.feature_size, FRAMES),
        "chunk_sample_lengths": torch.tensor([FRAMES // 2, FRAMES]) * config.hop_length,
    },
    "EsmcModel": lambda config: {"sequence_id": torch.arange(LENGTH).expand(ROWS, -1) // 7},
    "EsmFold2Model": _of_atoms,
    "FunAsrNanoForConditionalGeneration": lambda config: {
        "input_features": _random(ROWS, LENGTH, 112), "input_features_mask": _padded(LENGTH),
    },
    "IdeficsForVisionText2Text": lambda config: {
        "pixel_values": _random(ROWS, 2, 3, config.vision_config.image_size, config.vision_config.image_size),
        "image_attention_mask": torch.ones(ROWS, LENGTH, 2, dtype=torch.long),
    },
    "Molmo2Adapter": lambda config: {
        "image_features": _random(ROWS, LENGTH, len(config.vision_feature_layer) * config.hidden_size),
        "pooled_patches_idx": torch.arange(LENGTH).reshape(-1, 4).masked_fill(torch.arange(4) == 3, -1),
    },
    "MoshiDepthDecoder": lambda config: {
        "input_ids": torch.ones(ROWS, config.num_codebooks, dtype=torch.long),
        "attention_mask": _padded(config.num_codebooks, 1),
        "last_hidden_state": _random(ROWS, 1, config.input_size),
    },
    "MuseGlimmerAssistantModel": _of_noise,
    "NeuCodecModel": lambda config: {
        "input_values": _random(ROWS, 1, 4000), "input_features": _random(ROWS, LENGTH, 32),
        "input_features_mask": _padded(LENGTH),
    },
    "OmDetTurboDecoder": lambda config: {
        "vision_features": [_random(ROWS, size, 4, 4) for size in config.vision_features_channels],
        "class_features": _random(5, ROWS, config.class_embed_dim),
        "task_features": _random(LENGTH, ROWS, config.class_embed_dim),
        "task_mask": _padded(LENGTH),
    },
    "PI0Model": lambda config: {
        "action_embeds": _random(ROWS, config.chunk_size, config.dit_config.hidden_size),
        "pixel_values": _random(ROWS, 1),  # taken into account before
        "inputs_embeds": _random(ROWS, LENGTH, config.vlm_config.text_config.hidden_size),
        "attention_mask": _padded(LENGTH),
    },
    "PaddleOCRVisionModel": lambda config: {
        "pixel_values": _random(1, 16, 3, config.patch_size, config.patch_size),
        "grid_thw": torch.tensor([[1, 4, 4]]),
    },
    "PeAudioEncoder": lambda config: {
        "input_values": _random(ROWS, 1, 8 * config.dac_config.hop_length),
        "padding_mask": _padded(8 * config.dac_config.hop_length, 2 * config.dac_config.hop_length),
    },
    "Pix2StructForConditionalGeneration": lambda config: {
        "flattened_patches": _random(ROWS, LENGTH, 2 + config.vision_config.patch_embed_hidden_size).abs(),
        "attention_mask": _padded(LENGTH).float(),
    },
    "PPDocLayoutV2ReadingOrder": lambda config: {
        "boxes": torch.zeros(ROWS, LENGTH, 4), "mask": _padded(LENGTH).bool(),
    },
    "PeAudioVideoEncoder": _of_videos,
    "PeVideoEncoder": lambda config: {
        "pixel_values_videos": _random(ROWS, 8, 3, config.vision_config.image_size, config.vision_config.image_size),
        "padding_mask_videos": _padded(8, 2),
    },
    "SeamlessM4Tv2TextToUnitForConditionalGeneration": _of_characters,
    "TimesFm2_5Model": lambda config: {"past_values": _random(ROWS, LENGTH * config.patch_length)},
    "TvpModel": lambda config: {  # it takes one row only
        **{name: tokens[:1] for name, tokens in _of_tokens(config).items()},
        "pixel_values": _random(1, config.num_frames, 3, config.max_img_size, config.max_img_size),
    },
}  # fmt: skip
