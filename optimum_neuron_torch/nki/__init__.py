"""Attention and its siblings for people, and the simulator's switch.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

from contextlib import contextmanager

import torch

from . import ops
from .masks import mask_of_ranges


__all__ = ["attention", "simulation"]


def attention(
    query_BHQD: torch.Tensor,
    key_BGKD: torch.Tensor,
    value_BGKD: torch.Tensor,
    *,
    ranges_B1Q2: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    sinks_H: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Softmax attention, (B, H, Q, D), in the dtype of the query.

    Args:
        query_BHQD, key_BGKD, value_BGKD: floating point; H is a multiple of G.
        ranges_B1Q2: int32, the keys [start, end) that each query sees; None is all of them.
        bias: added to the scaled scores, broadcastable to (B, H, Q, K); boolean: True where a query sees a key.
        sinks_H: one logit per head that takes part in the softmax and has no value.
        scale: of the scores; None is D ** -0.5. softcap: scores become softcap * tanh(scores / softcap).

    A query that sees no key gives 0. Raises ValueError for shapes that do not fit together.
    """
    heads, groups = query_BHQD.shape[1], key_BGKD.shape[1]
    if heads % groups or key_BGKD.shape[:3] != value_BGKD.shape[:3] or query_BHQD.shape[-1] != key_BGKD.shape[-1]:
        raise ValueError(
            f"query {tuple(query_BHQD.shape)}, key {tuple(key_BGKD.shape)} and value {tuple(value_BGKD.shape)} do not "
            "fit: expected (B, H, Q, D), (B, G, K, D), (B, G, K, Dv) with H a multiple of G"
        )
    if ranges_B1Q2 is not None:
        inside = mask_of_ranges(ranges_B1Q2, key_BGKD.shape[2])
        if bias is None:
            bias = inside
        else:
            bias = inside & bias if bias.dtype == torch.bool else bias.masked_fill(~inside, float("-inf"))
    scale = query_BHQD.shape[-1] ** -0.5 if scale is None else float(scale)
    return ops.attention(query_BHQD, key_BGKD, value_BGKD, bias, sinks_H, scale, softcap)


@contextmanager
def simulation():
    """Run kernels in the NKI simulator within the block; it comes with the simulator."""
    raise NotImplementedError("the NKI simulator is not part of this version: NKI ops compute with torch")
    yield
