"""Rotary position embedding of queries and keys: as Transformers' models compute it, in torch, and by a kernel.

Shape legend: B batch, H query heads, G key heads, S positions, D head size, R rotated part of it.
"""

from typing import Any

import torch

from ..launching import kernel_op, launch, torch_op
from ..modes import kernels_run
from .rows import refusal_of_rows


# Elements that the kernel has on one partition.
MAX_HEAD_SIZE = 4096


def rotary_embedding(
    query_BHSD: torch.Tensor,
    key_BGSD: torch.Tensor,
    cos_BSR: torch.Tensor,
    sin_BSR: torch.Tensor,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `optimum_neuron_torch.nki.rotary_embedding`, by a kernel where one runs and can take the call."""
    tensors = (query_BHSD, key_BGSD, cos_BSR, sin_BSR)
    if torch.is_grad_enabled() and (cos_BSR.requires_grad or sin_BSR.requires_grad):
        return _rotated_both(*tensors, interleaved)  # the operators have gradients of query and key alone
    takes_kernel = kernels_run(tensors[0]) and refusal(*tensors) is None
    return (rotary_embedding_kernel if takes_kernel else rotary_embedding_torch)(*tensors, interleaved)


def refusal(
    query_BHSD: torch.Tensor, key_BGSD: torch.Tensor, cos_BSR: torch.Tensor, sin_BSR: torch.Tensor
) -> str | None:
    """Why the kernel cannot take a call, or None."""
    if query_BHSD.shape[3] > MAX_HEAD_SIZE:
        return f"head size {query_BHSD.shape[3]} above {MAX_HEAD_SIZE}"
    return refusal_of_rows(query_BHSD, key_BGSD, cos_BSR, sin_BSR)


def _rotated_both(query, key, cos, sin, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(_rotated(x, cos.unsqueeze(1), sin.unsqueeze(1), interleaved) for x in (query, key))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    size = cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    first, second = _pair(part, interleaved)
    turned = part * cos + _joined(-second, first, interleaved) * sin
    return turned if size == x.shape[-1] else torch.cat((turned, rest.to(turned.dtype)), -1)


def _pair(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second of each pair that turns together."""
    return (x[..., ::2], x[..., 1::2]) if interleaved else tuple(x.chunk(2, -1))


def _joined(first: torch.Tensor, second: torch.Tensor, interleaved: bool) -> torch.Tensor:
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


@torch_op("rotary_embedding")
def rotary_embedding_torch(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x * cos + rotate_half(x) * sin` of query (B, H, S, D) and key (B, G, S, D), with cos and sin (1 or B, S, R)."""
    query, key = _rotated_both(query, key, cos, sin, interleaved)
    return query.contiguous(), key.contiguous()


def _empty_outputs(query, key, cos, sin, interleaved):
    return tuple(x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, cos.dtype)) for x in (query, key))


rotary_embedding_torch.register_fake(_empty_outputs)


@kernel_op("rotary_embedding_kernel", _empty_outputs)
def rotary_embedding_kernel(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rotary_embedding_torch` by a kernel."""
    from ..kernels.rope import rope_kernel as kernel

    return launch(kernel, *(tensor.contiguous() for tensor in (query, key, cos, sin)), interleaved)


def _save(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, cos, sin, ctx.interleaved = inputs
    ctx.save_for_backward(cos, sin)
    ctx.dtypes = (query.dtype, key.dtype)


def _gradients_by(operator: Any) -> Any:
    """By the operator itself: a rotation is taken back by the opposite sines, which may differ within a pair."""

    def gradients(ctx: Any, grad_query: torch.Tensor, grad_key: torch.Tensor) -> tuple:
        cos, sin = ctx.saved_tensors
        first, second = _pair(sin, ctx.interleaved)
        back = _joined(-second, -first, ctx.interleaved)
        results = operator(grad_query.contiguous(), grad_key.contiguous(), cos, back, ctx.interleaved)
        query, key = (result.to(dtype) for result, dtype in zip(results, ctx.dtypes, strict=True))
        return query, key, None, None, None

    return gradients


for _operator in (rotary_embedding_torch, rotary_embedding_kernel):
    _operator.register_autograd(_gradients_by(_operator), setup_context=_save)
