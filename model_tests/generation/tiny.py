"""
A tiny configuration for any configuration class of Transformers, by a rule over the names of its settings.

The default configuration says which settings there are and which kinds of layers. Each size is capped by the first
pattern that its name matches; layers are as many as it takes to have one of each kind.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from model_tests.architectures.text import without_dropout


VOCABULARY = 128
POSITIONS = 256
# Shorter than the prompts, so that they and what follows run past it.
WINDOW = 8
MOST_LAYERS = 4

# The first pattern that is found in a setting's name gives the largest value it keeps.
CAPS: list[tuple[str, int]] = [
    (r"feat_extract_layers|tokenizer_chunk_size", 1 << 20),
    (r"conv_kernel_size|depthwise_kernel", 3),
    (r"vocab", VOCABULARY),
    (r"token_dropout|num_codebooks|num_channels|audio_channels|num_logits_to_keep|conv_kernel", 4),
    (r"max_\w*position|n_positions|max_(seq|source|target)|(model_max|context|seq)_length|^n_ctx$", POSITIONS),
    (r"window|attention_chunk_size|local_attention$|chunk_size|chunk_length|local_radius|block_size", WINDOW),
    (r"window_pattern|layer_interval", 2),
    (r"first_k_dense|num_dense_layers|num_kv_shared|num_mem_blocks", 1),
    (r"index_topk", WINDOW),
    # The sum of few rectified scores is zero for many keys: ties, which fall otherwise with pads beside them.
    (r"index\w*_n_heads", 16),
    (r"per_tok|topk$|moe_k$|top_k|cross_attn_k", 2),
    (r"topk_group", 1),
    (r"n_group|num_expert_group|n_groups|ngroups|o_groups|mamba_n_groups", 2),
    (r"shared_experts?$|n_shared", 1),
    (r"experts?$|expert_num$|num_experts", 4),
    (r"linear_num_key_heads", 2),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 8),
    (r"key_value_heads|kv_heads|query_groups|multi_query_group_num", 2),
    (r"heads?$|heads_per_layer|num_attention_heads", 4),
    (r"qk_rope_head_dim", 4),
    (r"qk_head_dim", 12),
    (r"rotary_dim", 4),
    (r"head_dim|head_size|d_kv|kv_channels|d_head|headdim|dim_head|query_pre_attn_scalar|v_head", 8),
    (r"rank", 8),
    (r"state|d_rel|laurel", 8),
    (r"intermediate|ffn|_ff$|dff|d_inner|feed_forward|mlp_dim|dim_ff|mlp_size", 48),
    (r"layers?$|num_blocks|layers_per_stack|depth$", 2),
    (r"hidden_size_per_layer_input|ple_embed_dim", 8),
    (r"hidden|embd|d_model|embed\w*_dim|embedding_size|emb_dim|lru_width|dim$|embed_size|n_state|attn_dim", 32),
    (r"mel_bins|feat_per_channel", 16),
    (r"patch_size", 4),
    (r"image_size", 16),
    (r"channels$|filters$", 32),
    (r"d_ssm", 64),
    (r"cycles|loops", 2),
    (r"num_buckets|hashes", 8),
]  # fmt: skip


def tiny_config(config_class: type[PretrainedConfig], **additions: Any) -> PretrainedConfig:
    """A tiny configuration of this class; `additions` win, those for a part of it are mappings or configurations."""
    return without_dropout(config_class(**_values(config_class, additions)))


def _values(config_class: type[PretrainedConfig], additions: Mapping[str, Any]) -> dict[str, Any]:
    try:
        default = config_class()
    except Exception:
        # Some have no valid default: what is added makes it one.
        default = config_class(**additions)
    values: dict[str, Any] = {}
    layers = _one_of_each_kind(default)
    for name, value in vars(default).items():
        if name.startswith("_") or name in NOT_SIZES:
            continue
        if isinstance(additions.get(name), PretrainedConfig):
            continue
        if isinstance(value, PretrainedConfig):
            part = _values(type(value), additions.get(name, {}))
            values[name] = type(value)(**part)
        elif _is_per_layer(value, default):
            values[name] = [_capped(name, value[index], default) for index in layers]
        elif name == _own_name(default, "num_hidden_layers"):
            values[name] = len(layers)
        elif (small := _capped(name, value, default)) != value:
            values[name] = small
    values |= _special_tokens(default)
    for name, value in additions.items():
        if not isinstance(values.get(name), PretrainedConfig):
            values[name] = value
    return values


# Settings of generation, ids, and what is derived from others.
NOT_SIZES = {"transformers_version", "dtype", "problem_type", "architectures", "id2label", "label2id", "max_length"}


def _own_name(config: PretrainedConfig, name: str) -> str:
    return config.attribute_map.get(name, name)


def _number_of_layers(config: PretrainedConfig) -> int | None:
    number = getattr(config, _own_name(config, "num_hidden_layers"), None)
    return number if isinstance(number, int) else None


def _is_per_layer(value: Any, config: PretrainedConfig) -> bool:
    return isinstance(value, list) and len(value) > 1 and len(value) == _number_of_layers(config)


def _one_of_each_kind(config: PretrainedConfig) -> list[int]:
    """Indices of the first layer of each kind, as the lists with an entry per layer have them; two at least."""
    number = _number_of_layers(config) or 2
    lists = [value for value in vars(config).values() if _is_per_layer(value, config)]
    kinds: dict[tuple, int] = {}
    for index in range(number):
        kinds.setdefault(tuple(str(entries[index]) for entries in lists), index)
    chosen = list(kinds.values())[:MOST_LAYERS]
    return chosen if len(chosen) > 1 else [0, min(1, number - 1)]


def _capped(name: str, value: Any, config: PretrainedConfig) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, dict):
        return {key: _capped(key, entry, config) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_capped(name, entry, config) for entry in value)
    if not isinstance(value, int) or name.endswith(("_id", "_ids", "_idx", "_index")):
        return value
    cap = next((cap for pattern, cap in CAPS if re.search(pattern, name)), None)
    if cap == 2 and re.search(r"key_value_heads|kv_heads", name) and value == _heads(config):
        cap = 4
    return value if cap is None else min(value, cap)


def _heads(config: PretrainedConfig) -> int | None:
    # Some have none, and some refuse to say one for all layers.
    with contextlib.suppress(Exception):
        return config.num_attention_heads
    return None


def _special_tokens(config: PretrainedConfig) -> dict[str, Any]:
    """Pad, begin, end at the front of the vocabulary; all others at its end, where no prompt has them."""
    small = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    found = {name: number for name, number in small.items() if hasattr(config, name)}
    rest = [
        name
        for name, value in vars(config).items()
        if re.search(r"token_(id|index)$", name) and name not in small and isinstance(value, int)
    ]
    return found | {name: VOCABULARY - 1 - place for place, name in enumerate(sorted(rest))}
