"""Models of images and text."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.text import SMALL, padding_mask, token_ids
from model_tests.architectures.vision import TRANSFORMER, image


TEXT = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
IMAGE_TOKEN = 95
MROPE = {"mrope_section": [1, 1, 2], "rope_theta": 1e4}


def _tower(**values: Any) -> dict[str, Any]:
    return {**TRANSFORMER, "projection_dim": 16, **values}


def ids_with_image(image_tokens: int) -> torch.Tensor:
    """Ids in which an image takes the places after the first; two rows."""
    ids = token_ids(2, image_tokens + 8)
    ids[:, 1 : 1 + image_tokens] = IMAGE_TOKEN
    return ids


def with_image(image_tokens: int, **inputs: Any) -> dict[str, Any]:
    """Ids, the mask of no padding, labels and what else the model takes."""
    ids = ids_with_image(image_tokens)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": token_ids(2, ids.shape[1]),
        "use_cache": False,
        **inputs,
    }


def _pairs() -> dict[str, Any]:
    return {"input_ids": token_ids(), "attention_mask": padding_mask(), "pixel_values": image(), "return_loss": True}


def _clip() -> nn.Module:
    text = {**SMALL, "projection_dim": 16}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=_tower(), projection_dim=16))


def _siglip() -> nn.Module:
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=dict(SMALL), vision_config=_tower()))


def _blip2() -> nn.Module:
    text = transformers.OPTConfig(
        vocab_size=96, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=32, dropout=0.0,
    )  # fmt: skip
    config = transformers.Blip2Config(
        vision_config={**TRANSFORMER},
        qformer_config={**SMALL, "encoder_hidden_size": 32, "hidden_dropout_prob": 0.0,
                        "attention_probs_dropout_prob": 0.0},
        text_config=text.to_dict(),
        num_query_tokens=4,
        image_token_index=IMAGE_TOKEN,
    )  # fmt: skip
    return transformers.Blip2ForConditionalGeneration(config)


def _llava() -> nn.Module:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**_tower()),
        image_token_index=IMAGE_TOKEN,
        vision_feature_layer=-1,
    )
    return transformers.LlavaForConditionalGeneration(config)


def _paligemma() -> nn.Module:
    config = transformers.PaliGemmaConfig(
        text_config=transformers.GemmaConfig(**TEXT).to_dict(),
        vision_config=transformers.SiglipVisionConfig(**_tower()).to_dict(),
        image_token_index=IMAGE_TOKEN,
        projection_dim=32,
        hidden_size=32,
    )
    return transformers.PaliGemmaForConditionalGeneration(config)


def _idefics3() -> nn.Module:
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config={**_tower(), "hidden_act": "gelu_pytorch_tanh"},
        image_token_id=IMAGE_TOKEN,
        scale_factor=2,
    )
    return transformers.Idefics3ForConditionalGeneration(config)


def _qwen2_5_vl() -> nn.Module:
    config = transformers.Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": {**MROPE, "rope_type": "default"}},
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32,
            "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        image_token_id=IMAGE_TOKEN,
        video_token_id=94,
        vision_start_token_id=93,
        vision_end_token_id=92,
    )  # fmt: skip
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def _qwen2_5_vl_inputs() -> dict[str, Any]:
    # Two images of 8 x 8 patches, merged two by two.
    pixels = torch.randn(2 * 64, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(1))
    return with_image(16, pixel_values=pixels, image_grid_thw=torch.tensor([[1, 8, 8], [1, 8, 8]]))


def _qwen2_5_vl_text_inputs() -> dict[str, Any]:
    """What the language model sees of a prompt with an image: embeddings, and positions on three axes."""
    text, rows = torch.arange(20), torch.arange(16) // 4
    positions = torch.stack([text, torch.cat([rows, text[:4] + 4]), torch.cat([text[:16] % 4, text[:4] + 4])])
    return {
        "inputs_embeds": torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(1)),
        "attention_mask": padding_mask(2, 20),
        "position_ids": positions[:, None].expand(3, 2, 20).clone(),
        "labels": token_ids(2, 20),
        "use_cache": False,
    }


ARCHITECTURES: list[Architecture] = [
    Architecture(name="CLIP", make=_clip, inputs=_pairs, training=True),
    Architecture(name="SigLIP", make=_siglip, inputs=_pairs, training=True),
    Architecture(name="BLIP-2", make=_blip2, inputs=lambda: with_image(4, pixel_values=image())),
    Architecture(name="LLaVA", make=_llava, inputs=lambda: with_image(16, pixel_values=image()), training=True),
    Architecture(
        name="PaliGemma",
        make=_paligemma,
        # The image and the prompt see each other, the answer what is before it.
        inputs=lambda: with_image(16, pixel_values=image(), token_type_ids=torch.tensor([[0] * 20 + [1] * 4] * 2)),
    ),
    Architecture(name="Idefics3", make=_idefics3, inputs=lambda: with_image(4, pixel_values=image()[:, None])),
    Architecture(name="Qwen2.5-VL", make=_qwen2_5_vl, inputs=_qwen2_5_vl_inputs),
    Architecture(name="Qwen2.5-VL, language model", make=_qwen2_5_vl, inputs=_qwen2_5_vl_text_inputs, training=True),
]
