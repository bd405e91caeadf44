"""Models of Diffusers: UNets, diffusion transformers, autoencoders, controlnets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from model_tests.architectures.architecture import Architecture


def normal(*size: int) -> torch.Tensor:
    """Random numbers, the same in each call."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(1))


def _model(
    name: str, model_class: str, inputs: Callable[[], dict[str, Any]], *, training: bool = False, **config: Any
) -> Architecture:
    def make() -> nn.Module:
        import diffusers

        model = getattr(diffusers, model_class)(**config)
        for module in model.modules():
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0  # of class labels: nn.Dropout modules are the check's
        return model

    return Architecture(name=name, make=make, inputs=inputs, training=training)


def _mask(length: int) -> torch.Tensor:
    mask = torch.ones(2, length)
    mask[0, -3:] = 0
    return mask


def _steps() -> torch.Tensor:
    # Sinusoids of large steps amplify the rounding of their frequencies, in whatever computes them.
    return torch.tensor([3, 41])


UNET = {"sample_size": 8, "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
CROSS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 12,
    "attention_head_dim": 2,
}
SDXL = {
    **CROSS,
    "attention_head_dim": (2, 4),
    "transformer_layers_per_block": (1, 2),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + 10,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}
MOTION = {
    "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
    "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
    "cross_attention_dim": 12,
    "num_attention_heads": 2,
    "motion_num_attention_heads": 2,
    "motion_max_seq_length": 8,
}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
AUTOENCODER = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
}


def _denoising(**more: Any) -> dict[str, Any]:
    return {"sample": normal(2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": normal(2, 5, 12), **more}


def _size_conditions() -> dict[str, torch.Tensor]:
    return {"text_embeds": normal(2, 10), "time_ids": torch.tensor([[64.0, 64, 0, 0, 64, 64]] * 2)}


def _controlled() -> dict[str, Any]:
    """Residuals of a controlnet for every level of the UNet."""
    sizes = [(8, 8), (8, 8), (8, 4), (16, 4)]
    return {
        "down_block_additional_residuals": tuple(normal(2, channels, size, size) for channels, size in sizes),
        "mid_block_additional_residual": normal(2, 16, 4, 4),
    }


def _flux() -> dict[str, Any]:
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    return {
        "hidden_states": normal(2, 16, 8),
        "encoder_hidden_states": normal(2, 6, 12),
        "pooled_projections": normal(2, 10),
        # The model takes both a thousand times; see `_steps`.
        "timestep": torch.tensor([0.003, 0.041]),
        "guidance": torch.tensor([0.0035, 0.0035]),
        "img_ids": torch.stack([torch.zeros(16), rows.flatten(), columns.flatten()], -1),
        "txt_ids": torch.zeros(6, 3),
    }


def _hunyuan_dit() -> dict[str, Any]:
    return {
        "hidden_states": normal(2, 4, 8, 8),
        "timestep": torch.tensor([3.0, 41.0]),
        "encoder_hidden_states": normal(2, 5, 12),
        "text_embedding_mask": _mask(5),
        "encoder_hidden_states_t5": normal(2, 7, 16),
        "text_embedding_mask_t5": _mask(7),
        "image_meta_size": torch.tensor([[64, 64, 64, 64, 0, 0]] * 2),
        "style": torch.tensor([0, 0]),
        "image_rotary_emb": (normal(16, 8), normal(16, 8).cos()),
    }


ARCHITECTURES: list[Architecture] = [
    _model(
        "UNet2D", "UNet2DModel", lambda: {"sample": normal(2, 3, 8, 8), "timestep": _steps()}, training=True,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4, **UNET,
    ),
    _model("UNet2D of Stable Diffusion 1.5", "UNet2DConditionModel", _denoising, training=True, **UNET, **CROSS),
    _model(
        "UNet2D of Stable Diffusion XL", "UNet2DConditionModel",
        lambda: _denoising(added_cond_kwargs=_size_conditions()), **UNET, **SDXL,
    ),
    _model(
        "UNet2D with a controlnet's residuals", "UNet2DConditionModel", lambda: _denoising(**_controlled()),
        **UNET, **CROSS,
    ),
    _model(
        "ControlNet", "ControlNetModel", lambda: _denoising(controlnet_cond=normal(2, 3, 64, 64)),
        conditioning_embedding_out_channels=(4, 8, 8, 8), block_out_channels=(8, 16), layers_per_block=1,
        norm_num_groups=4, cross_attention_dim=12, attention_head_dim=2,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    ),
    _model(
        "UNetMotion", "UNetMotionModel",
        lambda: {"sample": normal(2, 4, 3, 8, 8), "timestep": _steps(), "encoder_hidden_states": normal(6, 5, 12)},
        **UNET, **MOTION,
    ),
    _model(
        "DiT", "DiTTransformer2DModel",
        lambda: {"hidden_states": normal(2, 4, 8, 8), "timestep": _steps(), "class_labels": torch.tensor([1, 2])},
        training=True, sample_size=8, norm_num_groups=4, num_embeds_ada_norm=10, **HEADS,
    ),
    _model(
        "PixArt", "PixArtTransformer2DModel",
        lambda: {
            "hidden_states": normal(2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": normal(2, 5, 12),
            "encoder_attention_mask": _mask(5), "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        sample_size=8, norm_num_groups=4, cross_attention_dim=16, caption_channels=12, **HEADS,
    ),
    _model(
        "Stable Diffusion 3", "SD3Transformer2DModel",
        lambda: {
            "hidden_states": normal(2, 4, 8, 8), "encoder_hidden_states": normal(2, 5, 12),
            "pooled_projections": normal(2, 10), "timestep": _steps(),
        },
        training=True, sample_size=8, in_channels=4, out_channels=4, joint_attention_dim=12, caption_projection_dim=16,
        pooled_projection_dim=10, pos_embed_max_size=8, qk_norm="rms_norm", **HEADS,
    ),
    _model(
        "Flux", "FluxTransformer2DModel", _flux, training=True, in_channels=8, joint_attention_dim=12,
        pooled_projection_dim=10, guidance_embeds=True, axes_dims_rope=(2, 2, 4), num_layers=1, num_single_layers=1,
        num_attention_heads=2, attention_head_dim=8,
    ),
    _model(
        "Sana", "SanaTransformer2DModel",
        lambda: {
            "hidden_states": normal(2, 4, 8, 8), "encoder_hidden_states": normal(2, 5, 12), "timestep": _steps(),
            "encoder_attention_mask": _mask(5),
        },
        in_channels=4, out_channels=4, num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16,
        caption_channels=12, sample_size=8, **HEADS,
    ),
    _model(
        "HunyuanDiT", "HunyuanDiT2DModel", _hunyuan_dit, in_channels=4, patch_size=2, sample_size=8, hidden_size=16,
        cross_attention_dim=12, cross_attention_dim_t5=16, pooled_projection_dim=6, text_len=5, text_len_t5=7, **HEADS,
    ),
    _model(
        "HunyuanVideo", "HunyuanVideoTransformer3DModel",
        lambda: {
            "hidden_states": normal(2, 4, 2, 8, 8), "timestep": _steps(), "encoder_hidden_states": normal(2, 5, 12),
            "encoder_attention_mask": _mask(5), "pooled_projections": normal(2, 10),
            "guidance": torch.tensor([1000.0, 1000.0]),
        },
        in_channels=4, out_channels=4, num_layers=1, num_single_layers=1, num_refiner_layers=1, num_attention_heads=2,
        attention_head_dim=8, text_embed_dim=12, pooled_projection_dim=10, rope_axes_dim=(2, 2, 4),
    ),
    _model(
        "Wan", "WanTransformer3DModel",
        lambda: {
            "hidden_states": normal(2, 4, 2, 8, 8), "timestep": _steps(), "encoder_hidden_states": normal(2, 5, 12),
        },
        training=True, in_channels=4, out_channels=4, text_dim=12, freq_dim=16, ffn_dim=24, num_layers=2,
        num_attention_heads=2, attention_head_dim=12,
    ),
    _model(
        "AutoencoderKL", "AutoencoderKL", lambda: {"sample": normal(2, 3, 16, 16)}, training=True, **AUTOENCODER
    ),
    _model(
        "AutoencoderTiny", "AutoencoderTiny", lambda: {"sample": normal(2, 3, 16, 16)},
        encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    ),
    _model(
        "AutoencoderDC", "AutoencoderDC", lambda: {"sample": normal(2, 3, 16, 16)}, latent_channels=4,
        attention_head_dim=4, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8), encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)),
    ),
    _model(
        "VQModel", "VQModel", lambda: {"sample": normal(2, 3, 16, 16)}, num_vq_embeddings=16, **AUTOENCODER
    ),
]  # fmt: skip
