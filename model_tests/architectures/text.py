"""What the text tables share: a small configuration, token ids with real padding, how a model is made from both."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig

from model_tests.architectures.architecture import Architecture


SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_of(name: str, **values: Any) -> PretrainedConfig:
    """The configuration class called `name` with small sizes and `values` over them, and without dropout."""
    config = getattr(transformers, name)(**{**SMALL, **values})
    for key, value in vars(config).items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    return config


def make(model_class: str, config: str, **values: Any) -> nn.Module:
    """A random model of the class called `model_class`."""
    return getattr(transformers, model_class)(config_of(config, **values))


def token_ids(batch: int = 2, length: int = 12) -> torch.Tensor:
    """Ids of which none is special."""
    return torch.randint(5, 90, (batch, length), generator=torch.Generator().manual_seed(1))


def padding_mask(batch: int = 2, length: int = 12, *, left: bool = False) -> torch.Tensor:
    """Ones, but for five pads in the first row."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if left:
        mask[0, :5] = 0
    else:
        mask[0, -5:] = 0
    return mask


def causal_lm(name: str, config: str, *, training: bool = False, **values: Any) -> Architecture:
    """A decoder's `ForCausalLM` class without a cache, its loss among the results."""
    return Architecture(
        name=name,
        make=lambda: make(config.replace("Config", "ForCausalLM"), config, use_cache=False, **values),
        inputs=lambda: {
            "input_ids": token_ids(),
            "attention_mask": padding_mask(),
            "labels": token_ids(),
            "use_cache": False,
        },
        training=training,
    )
