"""What the text tables share: a small configuration, token ids with real padding, how a model is made from both."""

from __future__ import annotations

from collections.abc import Callable, Collection
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
# Half as many heads of keys and values as of queries.
GROUPED = {"num_key_value_heads": 2}

# Why some models are no single graph, on no device.
GLOBAL_ATTENTION = "decides by the values of a mask whether there is global attention"
HIT_EXPERTS = "loops over the experts that were hit, whose number depends on values"


def config_of(name: str, *, absent: Collection[str] = (), **values: Any) -> PretrainedConfig:
    """
    The configuration class called `name` with small sizes and `values` over them, and without dropout.

    `absent`: small sizes that the class refuses.
    """
    sizes = {key: value for key, value in SMALL.items() if key not in absent}
    return without_dropout(getattr(transformers, name)(**{**sizes, **values}))


def without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    """`config` with every rate of dropout, of layers too, at zero."""
    for key, value in list(vars(config).items()):
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    return config


def make(model_class: str, config_class: str, **values: Any) -> nn.Module:
    """A random model of the class called `model_class`."""
    return getattr(transformers, model_class)(config_of(config_class, **values))


def token_ids(batch: int = 2, length: int = 12) -> torch.Tensor:
    """Ids of which none is special."""
    return torch.randint(5, 90, (batch, length), generator=torch.Generator().manual_seed(length))


def padding_mask(batch: int = 2, length: int = 12) -> torch.Tensor:
    """Ones, but for pads at the end of the first row."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -5:] = 0
    return mask


def labels(mask: torch.Tensor) -> torch.Tensor:
    """Ids as labels, those of pads ignored."""
    return token_ids(*mask.shape).masked_fill(mask == 0, -100)


def text_inputs(length: int = 12, *, with_labels: bool = True, **further: Any) -> dict[str, Any]:
    """Ids, their mask, labels."""
    mask = padding_mask(length=length)
    inputs = {"input_ids": token_ids(length=length), "attention_mask": mask}
    if with_labels:
        inputs["labels"] = labels(mask)
    return {**inputs, **further}


def encoder(
    name: str,
    prefix: str,
    *,
    head: str = "ForMaskedLM",
    length: int = 12,
    inputs: Callable[[], dict[str, Any]] | None = None,
    training: bool = False,
    known: str = "",
    **values: Any,
) -> Architecture:
    """An encoder by the prefix of its classes, as a masked language model with its loss, or with another head."""
    return Architecture(
        name=name,
        make=lambda: make(f"{prefix}{head}", f"{prefix}Config", **values),
        inputs=inputs or (lambda: text_inputs(length, with_labels=head == "ForMaskedLM")),
        training=training,
        known=known,
    )


def _with_loss(model: nn.Module) -> nn.Module:
    """Transformers finds the loss by the class's name; where it cannot, it logs that, which no graph can hold."""
    model.loss_type = model.loss_type or "ForCausalLM"
    return model


def causal_lm(
    name: str,
    prefix: str,
    *,
    head: str = "ForCausalLM",
    config: str = "Config",
    length: int = 12,
    training: bool = False,
    known: str = "",
    **values: Any,
) -> Architecture:
    """A decoder by the prefix of its classes, as a language model without a cache, with its loss."""
    return Architecture(
        name=name,
        make=lambda: _with_loss(make(f"{prefix}{head}", f"{prefix}{config}", use_cache=False, **values)),
        inputs=lambda: text_inputs(length, use_cache=False),
        training=training,
        known=known,
    )
