"""Vision models."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.text import without_dropout


TRANSFORMER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
HIERARCHICAL = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4]}
LABELS = {"num_labels": 3}


def image(size: int = 32, *, channels: int = 3, batch: int = 2) -> torch.Tensor:
    """Random pixels."""
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(1))


def classes() -> torch.Tensor:
    """A class per image."""
    return torch.tensor([0, 2])


def make(model_class: str, config: str, **values: Any) -> nn.Module:
    """A random model without stochastic depth and other dropout."""
    return getattr(transformers, model_class)(without_dropout(getattr(transformers, config)(**values)))


def classifier(
    name: str, prefix: str | None = None, *, size: int = 32, training: bool = False, **values: Any
) -> Architecture:
    """A `ForImageClassification` class with its loss."""
    prefix = prefix or name
    return Architecture(
        name=name,
        make=lambda: make(f"{prefix}ForImageClassification", f"{prefix}Config", **values, **LABELS),
        inputs=lambda: {"pixel_values": image(size), "labels": classes()},
        training=training,
    )


def _segformer() -> nn.Module:
    return make(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        **LABELS,
    )


def _detr() -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    return make(
        "DetrForObjectDetection",
        "DetrConfig",
        backbone_config=backbone,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        num_queries=5,
        **LABELS,
    )


def _dpt() -> nn.Module:
    return make(
        "DPTForDepthEstimation",
        "DPTConfig",
        **{**TRANSFORMER, "num_hidden_layers": 4},
        is_hybrid=False,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[4, 8, 16, 32],
        fusion_hidden_size=16,
        reassemble_factors=[4, 2, 1, 0.5],
    )


def _pixel_mask() -> torch.Tensor:
    mask = torch.ones(2, 64, 64, dtype=torch.long)
    mask[0, :, 48:] = 0
    return mask


ARCHITECTURES: list[Architecture] = [
    classifier("ViT", training=True, **TRANSFORMER),
    classifier("DeiT", **TRANSFORMER),
    classifier("DINOv2", "Dinov2", training=True, mlp_ratio=2, **TRANSFORMER),
    classifier("BEiT", "Beit", training=True, use_relative_position_bias=True, **TRANSFORMER),
    classifier("Swin", training=True, window_size=4, **HIERARCHICAL),
    classifier("Swin v2", "Swinv2", window_size=4, **HIERARCHICAL),
    classifier("ConvNeXt", "ConvNext", training=True, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    classifier("ConvNeXt v2", "ConvNextV2", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    classifier(
        "ResNet",
        "ResNet",
        training=True,
        embedding_size=8,
        hidden_sizes=[16, 32],
        depths=[1, 2],
        layer_type="bottleneck",
    ),
    classifier(
        "MobileViT",
        size=64,
        image_size=64,
        patch_size=2,
        hidden_sizes=[16, 16, 16],
        neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
        num_attention_heads=2,
    ),
    Architecture(
        name="SegFormer",
        make=_segformer,
        inputs=lambda: {"pixel_values": image(64), "labels": torch.ones(2, 64, 64, dtype=torch.long)},
        training=True,
    ),
    Architecture(name="DETR", make=_detr, inputs=lambda: {"pixel_values": image(64), "pixel_mask": _pixel_mask()}),
    Architecture(name="DPT", make=_dpt, inputs=lambda: {"pixel_values": image(32)}),
]
