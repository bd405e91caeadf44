"""Attention "nki" for Transformers: which calls the op takes, where the others go, and who never asks.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

from ..nki.ops.attention import attention
from ..nki.paths import record


NAME = "nki"


def nki_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in the form of Transformers' AttentionInterface: query (B, H, Q, D) in, (B, Q, H, D) out."""
    reason = refusal(query, attention_mask, dropout, position_bias, s_aux)
    if reason is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        record(f"sdpa ({reason})")
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
            position_bias=position_bias, softcap=softcap, **kwargs,
        )  # fmt: skip
    record(NAME)
    if torch.is_autocast_enabled(query.device.type):  # as for PyTorch's own attention
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = _causal_mask(query.shape[2], key.shape[2], query.device)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output_BHQD = attention(query, key, value, None, attention_mask, s_aux, scale, softcap)
    return output_BHQD.transpose(1, 2).contiguous(), None


def refusal(
    query: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    position_bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> str | None:
    """Why the op cannot take a call, or None."""
    if dropout > 0:
        return "dropout"
    if position_bias is not None:
        return "learned position bias"
    if torch.is_grad_enabled() and (
        (attention_mask is not None and attention_mask.requires_grad) or (sinks is not None and query.requires_grad)
    ):
        return "gradient of a bias or of sinks"
    return None


def _causal_mask(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()[None, None]


def ignores_attention_name(model: torch.nn.Module) -> bool:
    """Whether the model's code never looks an attention function up by name (Bloom, MPT, Falcon, Mamba...)."""
    return not getattr(model, "_supports_attention_backend", False)


def asks_for_sdpa(model: torch.nn.Module) -> str | None:
    """The method in which a model's own code asks whether its attention is called "sdpa", or None.

    Such code builds something for the attentions that it knows by name (models with sparse attention add the choice of
    positions to the mask), and leaves it out for all others.
    """
    for kind in {base for module in model.modules() for base in type(module).__mro__}:
        if kind.__module__.startswith("torch.") or kind.__module__ == "transformers.modeling_utils":
            continue
        for name, member in vars(kind).items():
            code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
            if code is not None and any(map(_compares_with_sdpa, _with_nested(code))):
                return f"{kind.__name__}.{name}"
    return None


def _compares_with_sdpa(code: CodeType) -> bool:
    constants = (value for entry in code.co_consts for value in (entry if isinstance(entry, tuple) else (entry,)))
    return "_attn_implementation" in code.co_names and "sdpa" in constants


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)
