"""Attention by its definition, in float64 and differentiable: what the attention kernels are compared with.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size of q and k, E head size of v.
"""

from typing import NamedTuple

import torch


# Of the largest magnitude. Of 16 bits: the weights and the output are rounded.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def inputs(batch, heads, groups, queries, keys, depth, width, dtype=torch.float32) -> list[torch.Tensor]:
    """Query, key and value."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((batch, heads, queries, depth), (batch, groups, keys, depth), (batch, groups, keys, width))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def ranges(*rows) -> torch.Tensor:
    """int32 (B, Q, 2) of lists of [start, end) pairs."""
    return torch.tensor(rows, dtype=torch.int32)


def random(*shape, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def holes(*shape) -> torch.Tensor:
    """A mask with holes, and a row that sees nothing."""
    mask = (torch.rand(shape, generator=torch.Generator().manual_seed(2)) > 0.4).to(torch.uint8)
    mask[..., 0, :] = 0
    return mask


class Reference(NamedTuple):
    output_BHQE: torch.Tensor
    logsumexp_BHQ: torch.Tensor  # -inf where a query sees neither a key nor a sink


def attention(
    query_BHQD: torch.Tensor,
    key_BGKD: torch.Tensor,
    value_BGKE: torch.Tensor,
    ranges_BQ2: torch.Tensor | None = None,
    mask_BHQK: torch.Tensor | None = None,
    bias_BHQK: torch.Tensor | None = None,
    sinks_H: torch.Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    is_causal: bool = False,
) -> Reference:
    """Softmax attention; a query that sees no key gives 0."""
    query, key, value = (tensor.double() for tensor in (query_BHQD, key_BGKD, value_BGKE))
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores_BHQK = query @ key.transpose(-1, -2) * scale
    if softcap is not None:
        scores_BHQK = softcap * torch.tanh(scores_BHQK / softcap)
    if bias_BHQK is not None:
        scores_BHQK = scores_BHQK + bias_BHQK.double()
    scores_BHQK = scores_BHQK.masked_fill(~seen(scores_BHQK.shape, ranges_BQ2, mask_BHQK, is_causal), -torch.inf)
    logits = scores_BHQK
    if sinks_H is not None:
        sinks = sinks_H.double().view(1, -1, 1, 1).expand(*scores_BHQK.shape[:3], 1)
        logits = torch.cat((scores_BHQK, sinks), -1)
    sees_nothing = torch.isneginf(logits).all(-1, keepdim=True)
    logsumexp = torch.logsumexp(logits.masked_fill(sees_nothing, 0.0), -1, keepdim=True)
    weights_BHQK = torch.exp(scores_BHQK - logsumexp)  # exp(-inf) is 0, of a row that sees nothing as well
    return Reference(weights_BHQK @ value, logsumexp.masked_fill(sees_nothing, -torch.inf).squeeze(-1))


def seen(
    shape: tuple[int, ...],
    ranges_BQ2: torch.Tensor | None = None,
    mask_BHQK: torch.Tensor | None = None,
    is_causal: bool = False,
) -> torch.Tensor:
    """Which keys each query sees, (B, H, Q, K): those in its range, in the mask and, if causal, not after it."""
    batch, heads, queries, keys = shape
    position_K = torch.arange(keys)
    visible = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
    if ranges_BQ2 is not None:
        start, stop = ranges_BQ2[:, None, :, :1], ranges_BQ2[:, None, :, 1:]
        visible = visible & (position_K >= start) & (position_K < stop)
    if mask_BHQK is not None:
        visible = visible & (mask_BHQK != 0)
    if is_causal:
        visible = visible & (position_K <= torch.arange(queries)[:, None])
    return visible


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest magnitude expected."""
    largest = expected.abs().max().clamp(min=1e-30)
    return float((result.double() - expected).abs().max() / largest)
