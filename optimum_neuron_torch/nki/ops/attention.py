"""Attention: its definition in torch, and the kernels for prompts, for single steps and for gradients.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size of queries and keys, E of
values.
"""

from typing import Any

import torch

from ..launching import kernel_op, launch, torch_op
from ..masks import mask_of_ranges
from ..modes import kernels_run


# The widest head that the kernels take: two tiles of the Tensor Engine's 128 rows.
MAX_HEAD_SIZE = 256
# Queries, with those of all heads that share a key head, that decode attention has on its 128 partitions.
MAX_DECODE_ROWS = 128
MAX_DECODE_QUERIES = 8
# From here on a bias takes up the scores that it is added to: in float32 the next number is 64 away.
ABSORBING_BIAS = 1e9
# PyTorch's own: the function of that name may be exchanged for one that comes here.
STOCK_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
# Who computes a call, as reports name it.
FLASH_KERNEL, DECODE_KERNEL, TORCH = "flash kernel", "decode kernel", "torch"
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def attention(
    query_BHQD: torch.Tensor,
    key_BGKD: torch.Tensor,
    value_BGKE: torch.Tensor,
    ranges_B1Q2: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    sinks_H: torch.Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """(B, H, Q, E): as `optimum_neuron_torch.nki.attention`, by a kernel where one runs and can take the call.

    `bias` has four dimensions here. With `is_causal`, for Q = K alone, a query sees no key behind its own position;
    kernels leave out what that hides.
    """
    options = (ranges_B1Q2, bias, sinks_H, scale, softcap, is_causal)
    who = computed_by(query_BHQD, key_BGKD, value_BGKE, bias, sinks_H, scale)
    if who == TORCH:
        return attention_torch(query_BHQD, key_BGKD, value_BGKE, *options)
    if who == DECODE_KERNEL:
        return decode_attention_kernel(query_BHQD, key_BGKD, value_BGKE, *options[:-1])
    return attention_kernel(query_BHQD, key_BGKD, value_BGKE, *options)[0]


def computed_by(
    query_BHQD: torch.Tensor,
    key_BGKD: torch.Tensor,
    value_BGKE: torch.Tensor,
    bias: torch.Tensor | None = None,
    sinks_H: torch.Tensor | None = None,
    scale: float = 1.0,
) -> str:
    """Who computes a call of `attention`: FLASH_KERNEL, DECODE_KERNEL or TORCH."""
    if not kernels_run(query_BHQD) or refusal(query_BHQD, key_BGKD, value_BGKE, scale) is not None:
        return TORCH
    return DECODE_KERNEL if _is_decode(query_BHQD, key_BGKD, value_BGKE, bias, sinks_H) else FLASH_KERNEL


def refusal(
    query_BHQD: torch.Tensor, key_BGKD: torch.Tensor, value_BGKE: torch.Tensor, scale: float = 1.0
) -> str | None:
    """Why the kernels cannot take a call, or None."""
    tensors = (query_BHQD, key_BGKD, value_BGKE)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or query_BHQD.dtype not in KERNEL_DTYPES:
        return f"dtypes {', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in dtypes))}"
    if 0 in (*query_BHQD.shape, *key_BGKD.shape, *value_BGKE.shape):
        return "an empty tensor"
    size = max(query_BHQD.shape[-1], value_BGKE.shape[-1])
    if size > MAX_HEAD_SIZE:
        return f"head size {size} above {MAX_HEAD_SIZE}"
    return None if scale > 0 else f"scale {scale}"


def _is_decode(query: torch.Tensor, key: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Few queries over more keys, without gradients: what is read of the cache is what takes the time."""
    queries, rows = query.shape[2], query.shape[2] * (query.shape[1] // key.shape[1])
    if queries > MAX_DECODE_QUERIES or rows > MAX_DECODE_ROWS or key.shape[2] <= queries:
        return False
    tensors = (query, key, *others)
    return not (torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors))


# ---- computed with torch --------------------------------------------------------------------------------------------


@torch_op("attention")
def attention_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ranges: torch.Tensor | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    is_causal: bool,
) -> torch.Tensor:
    """Attention (B, H, Q, E) of query (B, H, Q, D) over key (B, G, K, D) and value (B, G, K, E).

    `ranges` (B, 1, Q, 2) are the keys [start, end) of each query; `bias` broadcasts to (B, H, Q, K): boolean (True:
    seen) or added to the scaled scores. `sinks` (H,) and `softcap` as in `optimum_neuron_torch.nki.attention`.
    """
    if sinks is not None or softcap is not None:
        mask = _mask(query, key, ranges, bias, is_causal)
        probabilities_BHQK, _ = _probabilities(query, key, mask, sinks, scale, softcap)
        return (probabilities_BHQK @ _exact(_per_query_head(value, query))).to(query.dtype)
    mask = _mask(query, key, ranges, bias, is_causal and not (ranges is None and bias is None))
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        mask = mask.to(torch.promote_types(query.dtype, torch.float32))  # float16 does not hold the least of float32
    is_grouped = query.shape[1] != key.shape[1]
    output = STOCK_ATTENTION(
        query, key, value, mask, scale=scale, enable_gqa=is_grouped, is_causal=is_causal and mask is None
    )
    return output.contiguous()  # a custom op's outputs must not depend on how the fused kernel lays them out


def _empty_output(query, key, value, *options):
    return query.new_empty((*query.shape[:3], value.shape[3]))


attention_torch.register_fake(_empty_output)


@torch_op("attention_backward")
def attention_backward_torch(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ranges: torch.Tensor | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    is_causal: bool,
    needs_bias_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key, value, bias and sinks from `grad` (B, H, Q, E); probabilities are computed again.

    That of the bias is empty where it is not needed, that of the sinks where there are none.
    """
    mask = _mask(query, key, ranges, bias, is_causal)
    probabilities_BHQK, tanh_BHQK = _probabilities(query, key, mask, sinks, scale, softcap)
    grad = _exact(grad)
    grad_value = probabilities_BHQK.transpose(-1, -2) @ grad
    grad_probabilities = grad @ _exact(_per_query_head(value, query)).transpose(-1, -2)
    row_sum_BHQ1 = (grad_probabilities * probabilities_BHQK).sum(-1, keepdim=True)
    grad_scores = probabilities_BHQK * (grad_probabilities - row_sum_BHQ1)
    grad_bias = grad_scores.sum_to_size(bias.shape).to(bias.dtype) if needs_bias_gradient else grad.new_empty(0)
    grad_sinks = grad.new_empty(0)
    if sinks is not None:
        seen_BHQ1 = probabilities_BHQK.sum(-1, keepdim=True)
        grad_sinks = -((1 - seen_BHQ1) * row_sum_BHQ1).sum((0, 2, 3)).to(sinks.dtype)
    if tanh_BHQK is not None:
        grad_scores = grad_scores * (1 - tanh_BHQK * tanh_BHQK)
    grad_scores = grad_scores * scale
    grad_query = (grad_scores @ _exact(_per_query_head(key, query))).to(query.dtype)
    grad_key = grad_scores.transpose(-1, -2) @ _exact(query)
    return grad_query, _per_key_head(grad_key, key), _per_key_head(grad_value, value), grad_bias, grad_sinks


@attention_backward_torch.register_fake
def _(grad, query, key, value, ranges, bias, sinks, scale, softcap, is_causal, needs_bias_gradient):
    grad_bias = bias.new_empty(bias.shape) if needs_bias_gradient else grad.new_empty(0, dtype=torch.float32)
    grad_sinks = grad.new_empty(0, dtype=torch.float32) if sinks is None else sinks.new_empty(sinks.shape)
    empty = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    return *empty, grad_bias, grad_sinks


def _save_for_torch(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    *tensors, ctx.scale, ctx.softcap, ctx.is_causal = inputs
    ctx.save_for_backward(*tensors)


def _gradients_by_torch(ctx: Any, grad: torch.Tensor) -> tuple:
    needs_bias_gradient = ctx.needs_input_grad[4]
    *gradients, grad_bias, grad_sinks = attention_backward_torch(
        grad.contiguous(), *ctx.saved_tensors, ctx.scale, ctx.softcap, ctx.is_causal, needs_bias_gradient
    )
    needs_sinks_gradient = ctx.needs_input_grad[5]
    further = (grad_bias if needs_bias_gradient else None, grad_sinks if needs_sinks_gradient else None)
    return *gradients, None, *further, None, None, None


attention_torch.register_autograd(_gradients_by_torch, setup_context=_save_for_torch)


def _mask(
    query: torch.Tensor,
    key: torch.Tensor,
    ranges: torch.Tensor | None,
    bias: torch.Tensor | None,
    is_causal: bool,
) -> torch.Tensor | None:
    """What ranges, bias and order of positions say together: boolean, or float with -inf where nothing is seen."""
    seen = None if ranges is None else mask_of_ranges(ranges, key.shape[2])
    if is_causal:
        causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        seen = causal[None, None] if seen is None else seen & causal
    if bias is None or seen is None:
        return seen if bias is None else bias
    return seen & bias if bias.dtype == torch.bool else bias.masked_fill(~seen, float("-inf"))


def _probabilities(query, key, mask, sinks, scale, softcap) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Softmax (B, H, Q, K) and, with a softcap, tanh of the scores, exact. Rows that see nothing are 0."""
    scores_BHQK = _exact(query) @ _exact(_per_query_head(key, query)).transpose(-1, -2) * scale
    tanh_BHQK = None
    if softcap is not None:
        tanh_BHQK = torch.tanh(scores_BHQK / softcap)
        scores_BHQK = softcap * tanh_BHQK
    if mask is not None:
        is_bool = mask.dtype == torch.bool
        scores_BHQK = (
            scores_BHQK.masked_fill(~mask, float("-inf")) if is_bool else scores_BHQK + mask.to(scores_BHQK.dtype)
        )
    if sinks is None:
        sees_nothing = torch.isneginf(scores_BHQK).all(-1, keepdim=True)
        return torch.softmax(scores_BHQK, -1).masked_fill(sees_nothing, 0.0), tanh_BHQK
    sink = sinks.to(scores_BHQK.dtype).view(1, -1, 1, 1).expand(*scores_BHQK.shape[:3], 1)
    return torch.softmax(torch.cat([scores_BHQK, sink], -1), -1)[..., :-1], tanh_BHQK


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """In float32, or float64 where that is what is given."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _per_query_head(tensor_BGKD: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """(B, H, K, D): each key/value head repeated for the query heads it serves."""
    repeats = query.shape[1] // tensor_BGKD.shape[1]
    return tensor_BGKD if repeats == 1 else tensor_BGKD.repeat_interleave(repeats, dim=1)


def _per_key_head(gradient_BHKD: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(B, G, K, D): the gradients of the query heads that share a key/value head, summed."""
    batch, heads, keys, size = gradient_BHKD.shape
    groups = like.shape[1]
    return gradient_BHKD.view(batch, groups, heads // groups, keys, size).sum(2).to(like.dtype)


# ---- computed by kernels --------------------------------------------------------------------------------------------


def _empty_with_logsumexp(query, key, value, *options):
    output = query.new_empty((*query.shape[:3], value.shape[3]))
    return output, query.new_empty(query.shape[:3], dtype=torch.float32)


@kernel_op("attention_kernel", _empty_with_logsumexp)
def attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ranges: torch.Tensor | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attention_torch` by the flash attention kernel, and the log-sum-exp (B, H, Q) of the scores, float32."""
    from ..kernels.flash_attention import flash_attention_kernel

    masks, absorbed_BHQ = _kernel_masks(query, key, ranges, bias, sinks, is_causal)
    tensors = _contiguous(_without(query, absorbed_BHQ), key, value)
    return launch(flash_attention_kernel, *tensors, *masks, scale, softcap, is_causal)


@kernel_op("decode_attention_kernel", _empty_output)
def decode_attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    ranges: torch.Tensor | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """`attention_torch` by the kernel for few queries over a long cache."""
    from ..kernels.decode_attention import decode_attention_kernel as kernel

    masks, absorbed_BHQ = _kernel_masks(query, key, ranges, bias, sinks)
    tensors = _contiguous(_without(query, absorbed_BHQ), key, value)
    return launch(kernel, *tensors, *masks, scale, softcap)


def _empty_gradients(grad, query, key, value, output, logsumexp, ranges, bias, sinks, *options):
    gradients = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    needs_bias_gradient = options[-1]
    shape = (*query.shape[:3], key.shape[2]) if needs_bias_gradient else (0,)
    grad_bias = query.new_empty(shape, dtype=torch.float32)
    return *gradients, grad_bias, query.new_empty((0,) if sinks is None else query.shape[:2], dtype=torch.float32)


@kernel_op("attention_backward_kernel", _empty_gradients)
def attention_backward_kernel(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    ranges: torch.Tensor | None,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    is_causal: bool,
    needs_bias_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value, of the bias (B, H, Q, K) and of the sinks (B, H), both float32.

    The last two are empty where they are not needed, as in `attention_backward_torch`.
    """
    from ..kernels.flash_attention_backward import flash_attention_backward_kernel

    tensors = _contiguous(grad, query, key, value, output, logsumexp)
    masks, absorbed_BHQ = _kernel_masks(query, key, ranges, bias, sinks, is_causal)
    weights_BHQ = None if absorbed_BHQ is None else (~absorbed_BHQ).float()
    options = (scale, softcap, is_causal, needs_bias_gradient, weights_BHQ)
    gradients = list(launch(flash_attention_backward_kernel, *tensors, *masks, *options))
    if not needs_bias_gradient:
        gradients.insert(3, query.new_empty(0, dtype=torch.float32))
    if sinks is None:
        gradients.append(query.new_empty(0, dtype=torch.float32))
    return tuple(gradients)


def _save_for_kernel(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.scale, ctx.softcap, ctx.is_causal = inputs
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])
    ctx.mark_non_differentiable(output[1])


def _gradients_by_kernel(ctx: Any, grad: torch.Tensor, _: Any) -> tuple:
    saved = ctx.saved_tensors  # once: checkpointing computes them again at each access
    bias, sinks = saved[6:]
    needs_bias_gradient, needs_sinks_gradient = ctx.needs_input_grad[4:6]
    *gradients, grad_bias, grad_sinks = attention_backward_kernel(
        grad.contiguous(), *saved, ctx.scale, ctx.softcap, ctx.is_causal, needs_bias_gradient
    )
    further = (
        grad_bias.sum_to_size(bias.shape).to(bias.dtype) if needs_bias_gradient else None,
        grad_sinks.sum(0).to(sinks.dtype) if needs_sinks_gradient else None,
    )
    return *gradients, None, *further, None, None, None


attention_kernel.register_autograd(_gradients_by_kernel, setup_context=_save_for_kernel)


def _contiguous(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.contiguous() for tensor in tensors)


def _kernel_masks(
    query, key, ranges, bias, sinks, is_causal=False
) -> tuple[tuple[torch.Tensor | None, ...], torch.Tensor | None]:
    """`(ranges (B, Q, 2), mask uint8, bias, sinks)` as kernels take them, and the queries (1 or B, 1 or H, Q) whose
    scores the bias takes up, so that their keys weigh by it alone; None where there are none.

    A mask says what a bias of -inf would. The bias is that above the largest one of the keys that a query sees, which
    the softmax does not change with: kernels see no key below -1e30, and a log-sum-exp near a large number would have
    lost its digits. With sinks, which it would have to be taken off as well, it stays as it is.
    """
    narrow = None if ranges is None else ranges[:, 0, :, :2].contiguous()
    sinks = None if sinks is None else sinks.float().contiguous()
    if bias is None:
        return (narrow, None, None, sinks), None
    bias = bias.expand(*bias.shape[:2], query.shape[2], key.shape[2])
    if bias.dtype == torch.bool:
        return (narrow, bias.to(torch.uint8).contiguous(), None, sinks), None
    bias = bias.float()
    unseen = torch.isneginf(bias)
    absorbed_BHQ = None
    if sinks is None:
        largest_BHQ1 = _mask(query, key, ranges, bias, is_causal).amax(-1, keepdim=True)
        largest_BHQ1 = torch.where(largest_BHQ1.isfinite(), largest_BHQ1, 0.0)
        absorbed_BHQ = (largest_BHQ1.abs() >= ABSORBING_BIAS).squeeze(-1).contiguous()
        bias = (bias - largest_BHQ1).clamp(min=torch.finfo(torch.float32).min)
        unseen = unseen.expand(bias.shape)
    mask = (~unseen).to(torch.uint8).contiguous()
    return (narrow, mask, bias.masked_fill(unseen, 0.0).contiguous(), sinks), absorbed_BHQ


def _without(query: torch.Tensor, absorbed_BHQ: torch.Tensor | None) -> torch.Tensor:
    """The queries, and 0 where the scores count for nothing."""
    return query if absorbed_BHQ is None else query.masked_fill(absorbed_BHQ.unsqueeze(-1), 0.0)
