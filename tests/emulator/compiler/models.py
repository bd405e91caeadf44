"""Small models, each with a call that returns one tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """A model, its inputs on the host and what of its result is compared."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    result: Callable[[Any], torch.Tensor] = lambda output: output


def _ids() -> torch.Tensor:
    return torch.randint(5, 90, (2, 12))


def _mask() -> torch.Tensor:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    return mask


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def llama(layers: int = 1) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64,
        )
    )  # fmt: skip


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8, block_out_channels=(8,), layers_per_block=1, down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",), cross_attention_dim=8, attention_head_dim=4, norm_num_groups=4,
    )  # fmt: skip


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64,
        )
    )  # fmt: skip


CASES = {
    "mlp": Case(mlp, lambda: {"input": torch.randn(3, 8)}),
    "convolutional": Case(convolutional, lambda: {"input": torch.randn(2, 3, 12, 12)}),
    "llama": Case(
        llama, lambda: {"input_ids": _ids(), "attention_mask": _mask(), "use_cache": False}, lambda o: o.logits
    ),
    "bert": Case(bert, lambda: {"input_ids": _ids(), "attention_mask": _mask()}, lambda o: o.last_hidden_state),
    "unet": Case(
        unet,
        lambda: {
            "sample": torch.randn(1, 4, 8, 8),
            "timestep": torch.tensor([3]),
            "encoder_hidden_states": torch.randn(1, 5, 8),
        },
        lambda o: o.sample,
    ),
    "mixtral": Case(mixtral, lambda: {"input_ids": _ids(), "use_cache": False}, lambda o: o.logits),
}


def on_neuron(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with every tensor on neuron."""
    return {name: value.to("neuron") if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
