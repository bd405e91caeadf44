"""Sentence-transformers on the neuron device: the whole chain (transformer, pooling, dense, normalisation) is one
bucketed forward, so that pooling has the shapes of buckets as well.

What `encode()` and `predict()` do behind the forward (normalising, stacking) has the shape of each batch. They get its
outputs on the host for that; where they return tensors, these come back to the device.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..buckets.module import answering_on
from ..config import NeuronConfig
from .modules import attach, is_active, prepared_of
from .moving import moved


VERBS = ("encode", "encode_query", "encode_document", "predict", "rank")


def is_sentence_model(module: Any) -> bool:
    """Whether `module` is a SentenceTransformer, a CrossEncoder or one of their kind, asked without importing them."""
    return isinstance(module, torch.nn.Module) and any(
        base.__module__.startswith("sentence_transformers.base") and hasattr(base, "preprocess")
        for base in type(module).__mro__
    )


def attach_sentence_model(model: torch.nn.Module, config: NeuronConfig) -> torch.nn.Module:
    """Give the chain its bucketed forward; the models in it have theirs already. Returns the same object."""
    hooks = {name: _from_host(model, getattr(model, name)) for name in VERBS if hasattr(model, name)}
    attach(model, config, function="encode", further=hooks, again=attach_sentence_model)
    prepared_of(model).sample = lambda batch, length: {"input": _features(model, batch, length)}
    prepared_of(model).module.takes_tokens = True
    prepared_of(model).attention = AttentionOfParts(model)
    return model


class AttentionOfParts:
    """The attention checks of the models in a chain, whose own forwards are not called any more."""

    previous = None

    def __init__(self, chain: torch.nn.Module) -> None:
        self._chain = chain

    def settle(self) -> None:
        for part in self._chain.modules():
            prepared = prepared_of(part)
            if prepared is not None and part is not self._chain:
                prepared.attention.settle()


def _features(model: torch.nn.Module, batch: int, length: int) -> Any:
    """Features as `preprocess()` makes them, at other sizes."""
    features = model.preprocess([("a", "a") if hasattr(model, "predict") else "a"])
    for name, value in list(features.items()):
        if isinstance(value, torch.Tensor) and value.dim() == 2:
            features[name] = value[:1, :1].expand(batch, length).contiguous()
    return features


def _from_host(model: torch.nn.Module, stock: Callable) -> Callable:
    @wraps(stock)
    def verb(*args: Any, **kwargs: Any) -> Any:
        if not is_active_in_eval(model):
            return stock(*args, **kwargs)
        with answering_on("cpu"):
            result = stock(*args, **kwargs)
        return moved(result, next(model.parameters()).device)

    return verb


def is_active_in_eval(model: torch.nn.Module) -> bool:
    """The verbs switch to eval mode themselves."""
    was_training = model.training
    model.training = False
    try:
        return is_active(model)
    finally:
        model.training = was_training
