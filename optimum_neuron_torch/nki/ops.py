"""NKI ops as `torch.library` custom ops: one node in a graph, with a fake kernel and autograd. Kernels go in here.

Until they do, every op computes with torch: `_forward` and `_backward` are its definition.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

import torch
import torch.nn.functional as F


NAMESPACE = "optimum_neuron_torch"


@torch.library.custom_op(f"{NAMESPACE}::attention", mutates_args=())
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention (B, H, Q, Dv) of query (B, H, Q, D) over key (B, G, K, D) and value (B, G, K, Dv).

    `mask` broadcasts to (B, H, Q, K): boolean (True: seen) or added to the scaled scores. `sinks` (H,) and `softcap`
    as in `optimum_neuron_torch.nki.attention`.
    """
    return _forward(query, key, value, mask, sinks, scale, softcap)


@attention.register_fake
def _(query, key, value, mask, sinks, scale, softcap):
    return query.new_empty((*query.shape[:3], value.shape[3]))


@torch.library.custom_op(f"{NAMESPACE}::attention_backward", mutates_args=())
def attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value, from `grad` (B, H, Q, Dv) of the output; probabilities are computed again."""
    return _backward(grad, query, key, value, mask, scale, softcap)


@attention_backward.register_fake
def _(grad, query, key, value, mask, scale, softcap):
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _setup_context(ctx, inputs, output) -> None:
    query, key, value, mask, sinks, scale, softcap = inputs
    if (mask is not None and mask.requires_grad) or (sinks is not None and sinks.requires_grad):
        raise NotImplementedError(
            "attention has no gradient for its bias or its sinks yet: use attn_implementation='sdpa' or 'eager'"
        )
    if sinks is not None:
        raise NotImplementedError(
            "attention with sinks has no gradient yet: use attn_implementation='eager' for training"
        )
    ctx.save_for_backward(query, key, value, mask)
    ctx.scale, ctx.softcap = scale, softcap


def _autograd(ctx, grad):
    query, key, value, mask = ctx.saved_tensors
    gradients = attention_backward(grad.contiguous(), query, key, value, mask, ctx.scale, ctx.softcap)
    return *gradients, None, None, None, None


attention.register_autograd(_autograd, setup_context=_setup_context)


# ---- the definition in torch ----------------------------------------------------------------------------------------


def _forward(query, key, value, mask, sinks, scale, softcap) -> torch.Tensor:
    if sinks is None and softcap is None:
        is_grouped = query.shape[1] != key.shape[1]
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        # A custom op's outputs must not depend on how the fused kernel lays them out.
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, enable_gqa=is_grouped
        ).contiguous()
    probabilities, _ = _probabilities(query, key, mask, sinks, scale, softcap)
    return (probabilities @ _per_query_head(value, query).float()).to(query.dtype)


def _probabilities(query, key, mask, sinks, scale, softcap) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Float32 softmax (B, H, Q, K) and, with a softcap, tanh of the scores. Rows that see nothing are 0."""
    scores_BHQK = query.float() @ _per_query_head(key, query).float().transpose(-1, -2) * scale
    tanh_BHQK = None
    if softcap is not None:
        tanh_BHQK = torch.tanh(scores_BHQK / softcap)
        scores_BHQK = softcap * tanh_BHQK
    if mask is not None:
        scores_BHQK = scores_BHQK.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores_BHQK + mask
    if sinks is None:
        return torch.softmax(scores_BHQK, -1).nan_to_num(0.0), tanh_BHQK
    sink = sinks.float().view(1, -1, 1, 1).expand(*scores_BHQK.shape[:3], 1)
    return torch.softmax(torch.cat([scores_BHQK, sink], -1), -1)[..., :-1], tanh_BHQK


def _per_query_head(tensor_BGKD: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """(B, H, K, D): each key/value head repeated for the query heads it serves."""
    repeats = query.shape[1] // tensor_BGKD.shape[1]
    return tensor_BGKD if repeats == 1 else tensor_BGKD.repeat_interleave(repeats, dim=1)


def _per_key_head(gradient_BHKD: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(B, G, K, D): the gradients of the query heads that share a key/value head, summed."""
    batch, heads, keys, size = gradient_BHKD.shape
    groups = like.shape[1]
    return gradient_BHKD.view(batch, groups, heads // groups, keys, size).sum(2).to(like.dtype)


def _backward(grad, query, key, value, mask, scale, softcap):
    probabilities_BHQK, tanh_BHQK = _probabilities(query, key, mask, None, scale, softcap)
    grad = grad.float()
    grad_value = probabilities_BHQK.transpose(-1, -2) @ grad
    grad_probabilities = grad @ _per_query_head(value, query).float().transpose(-1, -2)
    row_sum = (grad_probabilities * probabilities_BHQK).sum(-1, keepdim=True)
    grad_scores = probabilities_BHQK * (grad_probabilities - row_sum)
    if tanh_BHQK is not None:
        grad_scores = grad_scores * (1 - tanh_BHQK * tanh_BHQK)
    grad_scores = grad_scores * scale
    grad_query = (grad_scores @ _per_query_head(key, query).float()).to(query.dtype)
    grad_key = grad_scores.transpose(-1, -2) @ query.float()
    return grad_query, _per_key_head(grad_key, key), _per_key_head(grad_value, value)
