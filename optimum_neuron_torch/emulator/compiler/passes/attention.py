"""Fused attention of accelerators, on the host.

On a PrivateUse1 device `scaled_dot_product_attention` becomes `_scaled_dot_product_fused_attention_overrideable`,
for which the host has no kernel. Its equals there are the CPU's flash attention and, for one query position, plain
matrix products.

Shape suffixes: B batch, H heads, Q query positions, K key positions, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
FUSED = aten._scaled_dot_product_fused_attention_overrideable.default
FUSED_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default


def _fused_attention(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if dropout_p:
        raise NotImplementedError(
            "The fused attention operator with dropout has no host equivalent; the device must choose the math form."
        )
    key_BHKD, value_BHKD = (_repeat_heads(x, query_BHQD.size(-3)) for x in (key_BHKD, value_BHKD))
    output, logsumexp = FLASH(
        query_BHQD, key_BHKD, value_BHKD, 0.0, is_causal, attn_mask=attn_bias, scale=scale
    )  # fmt: skip
    # Seed and offset of the dropout that does not happen: AOTAutograd may save them for the backward.
    seed = torch.zeros((), dtype=torch.long)
    return output, logsumexp, None, None, query_BHQD.size(-2), key_BHKD.size(-2), seed, seed.clone(), None


def _fused_attention_backward(
    grad_BHQD: Tensor,
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: Sequence[bool],
    output_BHQD: Tensor,
    logsumexp_BHQ: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    heads = key_BHKD.size(-3)
    wide_key, wide_value = (_repeat_heads(x, query_BHQD.size(-3)) for x in (key_BHKD, value_BHKD))
    arguments = (grad_BHQD, query_BHQD, wide_key, wide_value, output_BHQD, logsumexp_BHQ, dropout_p, is_causal)
    grad_bias = None
    if attn_bias is not None and grad_input_mask[3]:
        *grads, grad_scores = _attention_gradients(*arguments, attn_mask=attn_bias, scale=scale)
        grad_bias = grad_scores.sum_to_size(attn_bias.shape).to(attn_bias.dtype)
    else:
        grads = FLASH_BACKWARD(*arguments, attn_mask=attn_bias, scale=scale)
    grad_query, grad_key, grad_value = grads
    return grad_query, _sum_heads(grad_key, heads), _sum_heads(grad_value, heads), grad_bias


def _attention_gradients(
    grad_BHQD: Tensor,
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    output_BHQD: Tensor,
    logsumexp_BHQ: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and of the scores, from the saved log-sum-exp (FlashAttention-2, algorithm 2)."""
    dtype = query_BHQD.dtype
    grad, query, key, value, output = (
        x.to(logsumexp_BHQ.dtype) for x in (grad_BHQD, query_BHQD, key_BHKD, value_BHKD, output_BHQD)
    )
    scale = scale if scale is not None else 1.0 / math.sqrt(query.size(-1))
    scores_BHQK = _masked(query @ key.mT * scale, is_causal, attn_mask)
    weights_BHQK = torch.exp(scores_BHQK - logsumexp_BHQ.unsqueeze(-1))
    if attn_mask is not None:
        weights_BHQK = _without_masked_rows(weights_BHQK, scores_BHQK)
    grad_weights_BHQK = grad @ value.mT
    row_BHQ1 = (grad * output).sum(-1, keepdim=True)
    grad_scores_BHQK = weights_BHQK * (grad_weights_BHQK - row_BHQ1)
    grad_query = grad_scores_BHQK @ key * scale
    grad_key = grad_scores_BHQK.mT @ query * scale
    grad_value = weights_BHQK.mT @ grad
    return grad_query.to(dtype), grad_key.to(dtype), grad_value.to(dtype), grad_scores_BHQK


def flash_as_math(
    query_BHQD: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The CPU's flash attention as matrix products: same results, same layout (B, Q, H, D in memory)."""
    accumulate = torch.promote_types(query_BHQD.dtype, torch.float32)
    scale = scale if scale is not None else 1.0 / math.sqrt(query_BHQD.size(-1))
    # The kernel takes grouped queries as they are.
    key_BHKD, value_BHKD = (_repeat_heads(x, query_BHQD.size(-3)) for x in (key_BHKD, value_BHKD))
    scores_BHQK = (query_BHQD @ key_BHKD.mT).to(accumulate) * scale
    scores_BHQK = _masked(scores_BHQK, is_causal, attn_mask)
    logsumexp_BHQ = torch.logsumexp(scores_BHQK, -1)
    weights_BHQK = torch.softmax(scores_BHQK, -1)
    if attn_mask is not None:
        weights_BHQK = _without_masked_rows(weights_BHQK, scores_BHQK)
    weights_BHQK = weights_BHQK.to(value_BHKD.dtype)
    output_BHQD = weights_BHQK @ value_BHKD
    return output_BHQD.transpose(1, 2).contiguous().transpose(1, 2), logsumexp_BHQ


def _without_masked_rows(weights_BHQK: Tensor, scores_BHQK: Tensor) -> Tensor:
    """A position that may attend to nothing (left padding) gets zeros, as from PyTorch's kernels, not NaN."""
    return weights_BHQK.masked_fill((scores_BHQK == -math.inf).all(-1, keepdim=True), 0.0)


def _masked(scores_BHQK: Tensor, is_causal: bool, attn_mask: Tensor | None) -> Tensor:
    if is_causal:
        allowed = torch.ones(scores_BHQK.shape[-2:], dtype=torch.bool, device=scores_BHQK.device).tril()
        scores_BHQK = scores_BHQK.masked_fill(~allowed, -math.inf)
    if attn_mask is None:
        return scores_BHQK
    if attn_mask.dtype == torch.bool:
        return scores_BHQK.masked_fill(~attn_mask, -math.inf)
    return scores_BHQK + attn_mask


def flash_backward_as_math(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The CPU's flash attention backward as matrix products, for the lowering."""
    grad, query, key, value, *rest = args
    heads = key.size(1)
    wide_key, wide_value = (_repeat_heads(x, query.size(1)) for x in (key, value))
    grad_query, grad_key, grad_value, _ = _attention_gradients(grad, query, wide_key, wide_value, *rest, **kwargs)
    return grad_query, _sum_heads(grad_key, heads), _sum_heads(grad_value, heads)


def single_query_as_math(query_BHQD: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Decode steps as matrix products, which Inductor fuses; longer queries keep the CPU's flash kernel."""
    return flash_as_math(query_BHQD, *args, **kwargs) if query_BHQD.size(-2) == 1 else NotImplemented


def _repeat_heads(x_BHKD: Tensor, heads: int) -> Tensor:
    return x_BHKD if x_BHKD.size(-3) == heads else x_BHKD.repeat_interleave(heads // x_BHKD.size(-3), -3)


def _sum_heads(grad_BHKD: Tensor, heads: int) -> Tensor:
    if grad_BHKD.size(-3) == heads:
        return grad_BHKD
    return grad_BHKD.unflatten(-3, (heads, grad_BHKD.size(-3) // heads)).sum(-3)


HOST_ATTENTION: dict[Any, Callable[..., Any]] = {FUSED: _fused_attention, FUSED_BACKWARD: _fused_attention_backward}
