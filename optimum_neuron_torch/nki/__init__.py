"""Attention and its siblings for people, and the simulator's switch.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

import torch

from .functions import add_rms_norm, cross_entropy, layer_norm, rms_norm, rotary_embedding, swiglu
from .launching import KERNEL_OPS
from .modes import simulation
from .ops import attention as attention_ops
from .paths import tell_refusal


__all__ = [
    "add_rms_norm",
    "attention",
    "cross_entropy",
    "kernel_ops",
    "layer_norm",
    "rms_norm",
    "rotary_embedding",
    "simulation",
    "swiglu",
]


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

    A query that sees no key gives 0. Raises ValueError for shapes that do not fit together, and for a softcap of 0 or
    less.
    """
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap={softcap}: expected a positive number, or None")
    heads, groups = query_BHQD.shape[1], key_BGKD.shape[1]
    if (
        not groups
        or heads % groups
        or key_BGKD.shape[:3] != value_BGKD.shape[:3]
        or query_BHQD.shape[-1] != key_BGKD.shape[-1]
    ):
        raise ValueError(
            f"query {tuple(query_BHQD.shape)}, key {tuple(key_BGKD.shape)} and value {tuple(value_BGKD.shape)} do not "
            "fit: expected (B, H, Q, D), (B, G, K, D), (B, G, K, Dv) with H a multiple of G"
        )
    _check_masks(query_BHQD, key_BGKD, ranges_B1Q2, bias, sinks_H)
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
    scale = query_BHQD.shape[-1] ** -0.5 if scale is None else float(scale)
    tell_refusal("attention", attention_ops.refusal(query_BHQD, key_BGKD, value_BGKD, scale))
    return attention_ops.attention(query_BHQD, key_BGKD, value_BGKD, ranges_B1Q2, bias, sinks_H, scale, softcap)


def kernel_ops() -> dict[str, str]:
    """The operators of PyTorch that launch a kernel, by name, each with what it computes."""
    return dict(sorted(KERNEL_OPS.items()))


def _check_masks(
    query_BHQD: torch.Tensor,
    key_BGKD: torch.Tensor,
    ranges_B1Q2: torch.Tensor | None,
    bias: torch.Tensor | None,
    sinks_H: torch.Tensor | None,
) -> None:
    batch, heads, queries, _ = query_BHQD.shape
    shape = (batch, heads, queries, key_BGKD.shape[2])
    if ranges_B1Q2 is not None and ranges_B1Q2.shape not in ((batch, 1, queries, 2), (1, 1, queries, 2)):
        raise ValueError(f"ranges_B1Q2 has the shape {tuple(ranges_B1Q2.shape)}, expected ({batch}, 1, {queries}, 2)")
    if ranges_B1Q2 is not None and ranges_B1Q2.dtype != torch.int32:
        raise ValueError(f"ranges_B1Q2 has the dtype {ranges_B1Q2.dtype}, expected torch.int32")
    if bias is not None and (bias.dim() > 4 or not _broadcasts(bias.shape, shape)):
        raise ValueError(f"bias has the shape {tuple(bias.shape)}, which does not broadcast to (B, H, Q, K) = {shape}")
    if bias is not None and not (bias.dtype == torch.bool or bias.is_floating_point()):
        raise ValueError(f"bias has the dtype {bias.dtype}, expected torch.bool or floating point")
    if sinks_H is not None and sinks_H.shape != (heads,):
        raise ValueError(f"sinks_H has the shape {tuple(sinks_H.shape)}, expected ({heads},)")


def _broadcasts(given: torch.Size, wanted: tuple[int, ...]) -> bool:
    return all(size in (1, full) for size, full in zip(reversed(given), reversed(wanted), strict=False))
