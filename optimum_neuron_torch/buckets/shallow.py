"""A shallow twin of a Transformers model: few layers of each type, random weights, small vocabulary, made on the host.

What a check of padding can find is a matter of structure, so that weights and depth do not count.
"""

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .twin import LARGEST_COPY_BYTES, host_copy, parameter_bytes


# Windows and chunks are narrowed to this, so that a short run passes them.
WINDOW = 6
# What costs memory and says nothing about structure.
MOST_TOKENS, MOST_FEATURES = 1024, 256
# Parameters up to this many values are moved away from their initial value: a zero bias hides what it belongs to.
_SMALL = 2**20


def shallow_twin(model: PreTrainedModel) -> PreTrainedModel:
    """A model of the same class and attention implementation in float32, in eval mode.

    The global random state is left as it was. Raises what the model's class raises where it cannot be made.
    """
    error: Exception | None = None
    for config in _configs(model):
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                twin = type(model)._from_config(config, dtype=torch.float32).eval()
                _disturb(twin)
                return twin
        except Exception as failure:  # sizes that depend on others, layers that share weights
            error = error or failure
    raise error


def twin_for_checks(model: PreTrainedModel) -> torch.nn.Module:
    """A shallow twin, or a copy on the host of a small model that has none. Raises as `shallow_twin` does."""
    try:
        return shallow_twin(model)
    except Exception:
        if parameter_bytes(model) > LARGEST_COPY_BYTES:
            raise
        return host_copy(model)


def _configs(model: PreTrainedModel) -> Iterator[PreTrainedConfig]:
    """Configurations to try, cheapest first."""
    for occurrences in (1, 2):
        for is_narrow in (True, False):
            config = copy.deepcopy(model.config)
            text_config = config.get_text_config(decoder=True)
            if config.is_encoder_decoder:
                _cut_both_depths(config)
            else:
                _cut_depth(text_config, occurrences)
            for part in {id(part): part for part in (config, text_config)}.values():
                _narrow_windows(part)
                if is_narrow:
                    _narrow_sizes(part)
            yield config


def _cut_depth(config: PreTrainedConfig, occurrences: int) -> None:
    """The first layers, down to the one by which every type has occurred that often."""
    depth = config.num_hidden_layers
    per_layer = {name: value for name, value in _values(config) if isinstance(value, list) and len(value) == depth}
    kept = 2
    types = getattr(config, "layer_types", None) or [None] * depth
    named = [value for value in per_layer.values() if all(isinstance(entry, str) for entry in value)]
    kinds = list(zip(types, *named, strict=True))
    for kind in set(kinds):
        found = [index for index, other in enumerate(kinds) if other == kind]
        kept = max(kept, found[:occurrences][-1] + 1)
    kept = min(kept, depth)
    for name, value in per_layer.items():
        _set(config, name, value[:kept])
    _set(config, "num_hidden_layers", kept)


def _cut_both_depths(config: PreTrainedConfig) -> None:
    """Two layers in an encoder and a decoder, whose numbers of layers older configurations keep under own names."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name in ("num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "num_hidden_layers"):
            count = getattr(part, name, None)
            if isinstance(count, int) and count > 2 and not getattr(part, "layer_types", None):
                _set(part, name, 2)


def _narrow_windows(config: PreTrainedConfig) -> None:
    for name, value in _values(config):
        if type(value) is int and value > WINDOW and ("window" in name or name == "attention_chunk_size"):
            _set(config, name, WINDOW)


def _narrow_sizes(config: PreTrainedConfig) -> None:
    for name, value in _values(config):
        if type(value) is not int:
            continue
        if name == "vocab_size":
            _set(config, name, min(value, MOST_TOKENS))
        elif name.endswith("_token_id") and value >= MOST_TOKENS:
            _set(config, name, 0)
        elif name.endswith("intermediate_size") or name.endswith("ffn_dim"):
            _set(config, name, min(value, MOST_FEATURES))


def _values(config: PreTrainedConfig) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in vars(config).items() if not name.startswith("_")]


def _set(config: PreTrainedConfig, name: str, value: Any) -> None:
    with suppress(AttributeError):  # properties that follow from others
        setattr(config, name, value)


@torch.no_grad()
def _disturb(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        if parameter.numel() <= _SMALL:
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
