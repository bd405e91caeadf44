"""One decoding step over a static cache, whose tensors the model writes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel, StaticCache

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.text import make, padding_mask, token_ids


PROMPT = 10
CACHE = 16


class CachedStep(nn.Module):
    """A decoder behind its own prompt: the cache is part of the module, follows it to the device, and is a result."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=CACHE)
        with torch.no_grad():
            model.eval()(
                token_ids(length=PROMPT), attention_mask=_mask()[:, :PROMPT], cache=self.cache, use_cache=True
            )

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = self.model(**inputs, cache=self.cache, use_cache=True).logits
        states = [value for layer in self.cache.layers for value in pytree.tree_leaves(_tensors(layer))]
        return logits, *states

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CachedStep:
        for layer in self.cache.layers:
            for name, values in _tensors(layer).items():
                setattr(layer, name, pytree.tree_map_only(torch.Tensor, function, values))
            layer.device = function(torch.empty(0)).device
        return super()._apply(function, recurse)


def _tensors(layer: Any) -> dict[str, Any]:
    """The attributes of a cache's layer that are tensors, or hold some."""
    return {
        name: value
        for name, value in vars(layer).items()
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
    }


def _mask() -> torch.Tensor:
    """Padding on the left, as generation has it."""
    return padding_mask(length=PROMPT + 1).flip(1)


def _inputs(positions: bool) -> dict[str, torch.Tensor]:
    """As `generate()` gives them."""
    inputs = {"input_ids": token_ids(length=1), "attention_mask": _mask()}
    if positions:
        inputs["position_ids"] = _mask().sum(-1, keepdim=True) - 1
    return inputs


def cached_step(
    name: str, prefix: str, *, head: str = "ForCausalLM", config: str = "Config", positions: bool = True, **values: Any
) -> Architecture:
    """One step of a decoder, by the prefix of its classes, over a static cache; `positions`: whether it knows any."""
    return Architecture(
        name=f"{name}, decoding step",
        make=lambda: CachedStep(make(f"{prefix}{head}", f"{prefix}{config}", **values)),
        inputs=lambda: _inputs(positions),
    )
