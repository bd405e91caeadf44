"""Audio models."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.vision import make


WAVE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}
SAMPLES = 800


def wave(samples: int = SAMPLES) -> torch.Tensor:
    """Two random waves."""
    return torch.randn(2, samples, generator=torch.Generator().manual_seed(1))


def wave_mask() -> torch.Tensor:
    """The first wave is shorter."""
    mask = torch.ones(2, SAMPLES, dtype=torch.long)
    mask[0, -240:] = 0
    return mask


def _wave_model(name: str, prefix: str, *, training: bool = False, **values: Any) -> Architecture:
    def build() -> nn.Module:
        # A group norm over time would see the padding: these feature extractors normalise each frame.
        model = make(f"{prefix}Model", f"{prefix}Config", **{**WAVE, "feat_extract_norm": "layer", **values})
        # As it is trained. One that is not sets requires_grad in its forward, which Dynamo does not trace.
        model.feature_extractor._freeze_parameters()
        return model

    return Architecture(
        name=name,
        make=build,
        inputs=lambda: {"input_values": wave(), "attention_mask": wave_mask()},
        training=training,
    )


def _whisper_encoder() -> nn.Module:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(
        transformers.WhisperConfig(
            d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, max_source_positions=50,
            num_mel_bins=8, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        )
    )  # fmt: skip


ARCHITECTURES: list[Architecture] = [
    _wave_model("Wav2Vec2", "Wav2Vec2", training=True),
    _wave_model("Wav2Vec2 with group norm", "Wav2Vec2", feat_extract_norm="group"),
    _wave_model("HuBERT", "Hubert", training=True),
    _wave_model("WavLM", "WavLM", num_buckets=32, max_bucket_distance=80),
    Architecture(
        name="AST",
        make=lambda: make(
            "ASTForAudioClassification",
            "ASTConfig",
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_length=40,
            num_mel_bins=16,
            patch_size=8,
            frequency_stride=8,
            time_stride=8,
        ),  # fmt: skip
        inputs=lambda: {
            "input_values": torch.randn(2, 40, 16, generator=torch.Generator().manual_seed(1)),
            "labels": torch.tensor([0, 1]),
        },
        training=True,
    ),
    Architecture(
        name="Whisper encoder",
        make=_whisper_encoder,
        inputs=lambda: {"input_features": torch.randn(2, 8, 100, generator=torch.Generator().manual_seed(1))},
        training=True,
    ),
    Architecture(
        name="Whisper",
        make=lambda: make(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            vocab_size=64,
            num_mel_bins=8,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_source_positions=24,
            max_target_positions=32,
            use_cache=False,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
            decoder_start_token_id=1,
            dropout=0.0,
        ),  # fmt: skip
        inputs=lambda: {
            "input_features": torch.randn(2, 8, 48, generator=torch.Generator().manual_seed(1)),
            "decoder_input_ids": torch.arange(2, 24).reshape(2, 11),
            "use_cache": False,
        },
        training=True,
    ),
    Architecture(
        name="EnCodec",
        make=lambda: make(
            "EncodecModel",
            "EncodecConfig",
            hidden_size=16,
            num_filters=4,
            upsampling_ratios=[4, 2],
            codebook_size=16,
            codebook_dim=16,
            num_lstm_layers=1,
            target_bandwidths=[1.5],
            sampling_rate=1000,
        ),  # fmt: skip
        inputs=lambda: {"input_values": wave(160)[:, None]},
    ),
]
