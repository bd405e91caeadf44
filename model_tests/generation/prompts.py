"""
What generate() is given: token ids with real padding, or features of sound.

Shape legend: B batch, S sequence, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


NEW_TOKENS = 12
# All of it under the model's own limits, and no earlier end: what is compared is a fixed number of steps.
GREEDY = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}


def prompts(model: nn.Module, length: int, pads: tuple[int, ...], *, masked: bool = True) -> dict[str, Any]:
    """
    The inputs of generate() for `length` tokens (or as many times some frames) with a row for each of `pads`.

    Decoders have that many pads on the left of each row, encoders on the right. `masked`: whether the model is told.
    """
    if model.main_input_name != "input_ids":
        return {model.main_input_name: _features(model, len(pads), length)}
    mask = torch.ones(len(pads), length, dtype=torch.long)
    for row, count in enumerate(pads):
        mask[row, :count] = 0
    if model.config.is_encoder_decoder:
        mask = mask.flip(1)
    inputs = {"input_ids": token_ids(len(pads), length).masked_fill(mask == 0, 0)}
    return {**inputs, "attention_mask": mask} if masked else inputs


def token_ids(batch: int, length: int) -> torch.Tensor:
    """Ids (B, S) of which none is special."""
    return torch.randint(5, 90, (batch, length), generator=torch.Generator().manual_seed(17 * length + batch))


SAMPLES_PER_TOKEN, FRAMES_PER_TOKEN = 640, 8

_FEATURES: dict[str, Callable[[Any, int], tuple[int, ...]]] = {
    "canary": lambda config, length: (FRAMES_PER_TOKEN * length, config.encoder_config.num_mel_bins),
    "cohere_asr": lambda config, length: (FRAMES_PER_TOKEN * length, config.encoder_config.num_mel_bins),
    "seamless_m4t": lambda config, length: (FRAMES_PER_TOKEN * length, config.feature_projection_input_dim),
    "seamless_m4t_v2": lambda config, length: (FRAMES_PER_TOKEN * length, config.feature_projection_input_dim),
    "speech_to_text": lambda config, length: (FRAMES_PER_TOKEN * length, config.input_feat_per_channel),
    # Always half a minute of sound.
    "whisper": lambda config, length: (config.num_mel_bins, 2 * config.max_source_positions),
}


def _features(model: nn.Module, batch: int, length: int) -> torch.Tensor:
    """Features (B, S, F), or a raw waveform (B, S)."""
    shape = _FEATURES.get(model.config.model_type, lambda config, length: (SAMPLES_PER_TOKEN * length,))
    generator = torch.Generator().manual_seed(17 * length + batch)
    return torch.randn(batch, *shape(model.config, length), generator=generator)
