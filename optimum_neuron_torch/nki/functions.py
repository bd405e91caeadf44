"""The siblings of attention for people: what is left of a Transformer layer.

Shape legend: B batch, H query heads, G key heads, S positions, D head size, R rotated part of D, T rows, V vocabulary,
W width.
"""

import torch

from .ops import cross_entropy as cross_entropy_ops
from .ops import layer_norm as layer_norm_ops
from .ops import rms_norm as rms_norm_ops
from .ops import rotary_embedding as rotary_ops
from .ops import swiglu as swiglu_ops
from .paths import tell_refusal


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    scales_in_float32: bool | None = None,
) -> torch.Tensor:
    """RMSNorm of the last dimension, `x * rsqrt(mean(x^2) + eps) * (offset + weight)`, in the shape of x.

    Args:
        x: (..., W), floating point; mean and root are in float32.
        weight: (W,); None for no scale.
        offset: added to the weight: Gemma's weights are differences from 1.
        scales_in_float32: the product with the weight is in float32 and rounded to the dtype of x (Gemma); else the
            normalised row is rounded to the dtype of x first, and the result has the dtype that this and the weight
            make together (Llama). None: in float32 where there is an offset.

    Raises ValueError for shapes that do not fit together.
    """
    _check_width(x, weight=weight)
    scales_in_float32 = offset != 0.0 if scales_in_float32 is None else scales_in_float32
    tell_refusal("rms_norm", rms_norm_ops.refusal(x, weight, eps, scales_in_float32))
    return rms_norm_ops.rms_norm(x, weight, float(eps), float(offset), scales_in_float32)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    scales_in_float32: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(rms_norm(x + residual), x + residual)`: what a layer normalises, and what it carries on, read once.

    Args:
        x, residual: (..., W), of one shape. Others as in `rms_norm`.

    Raises ValueError for shapes that do not fit together.
    """
    if x.shape != residual.shape:
        raise ValueError(f"x has the shape {tuple(x.shape)}, and residual {tuple(residual.shape)}: expected the same")
    _check_width(x, weight=weight)
    scales_in_float32 = offset != 0.0 if scales_in_float32 is None else scales_in_float32
    tell_refusal("add_rms_norm", rms_norm_ops.refusal(x, weight, eps, scales_in_float32, residual))
    return rms_norm_ops.add_rms_norm(x, residual, weight, float(eps), float(offset), scales_in_float32)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """`torch.nn.functional.layer_norm` over the last dimension, in the shape and dtype of x.

    Args:
        x: (..., W), floating point. weight, bias: (W,); None for 1 and 0.

    Raises ValueError for shapes that do not fit together.
    """
    _check_width(x, weight=weight, bias=bias)
    tell_refusal("layer_norm", layer_norm_ops.refusal(x, eps))
    return layer_norm_ops.layer_norm(x, weight, bias, float(eps))


def cross_entropy(
    logits_TV: torch.Tensor,
    labels_T: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """Cross entropy of the softmax, in float32 for logits of 16 bits, as `torch.nn.functional.cross_entropy`.

    Args:
        logits_TV: floating point. labels_T: int64 or int32, entries of the vocabulary.
        ignore_index: rows of this label count for nothing.
        label_smoothing: from 0 to 1, the share of a label's weight that all entries have together.
        softcap: logits become softcap * tanh(logits / softcap) first.
        reduction: "mean" over the rows that count, "sum", or "none" for the loss of each row.

    A label that is no entry is an error of torch's on the host; a kernel gives NaN for it. Raises ValueError for
    shapes that do not fit together, and for options that are none.
    """
    _check_floating(logits_TV=logits_TV)
    if logits_TV.dim() != 2 or labels_T.shape != logits_TV.shape[:1]:
        shapes = f"logits {tuple(logits_TV.shape)} and labels {tuple(labels_T.shape)}"
        raise ValueError(f"{shapes} do not fit: expected (T, V) and (T,); flatten what is before the vocabulary")
    if labels_T.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"labels_T has the dtype {labels_T.dtype}, expected torch.int64 or torch.int32")
    if reduction not in cross_entropy_ops.REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}, expected one of {', '.join(cross_entropy_ops.REDUCTIONS)}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected a number from 0 to 1")
    options = (int(ignore_index), float(label_smoothing), None if softcap is None else float(softcap), reduction)
    tell_refusal("cross_entropy", cross_entropy_ops.refusal(logits_TV, label_smoothing, softcap))
    return cross_entropy_ops.cross_entropy(logits_TV, labels_T, *options)


def rotary_embedding(
    query_BHSD: torch.Tensor,
    key_BGSD: torch.Tensor,
    cos_BSR: torch.Tensor,
    sin_BSR: torch.Tensor,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key turned by their positions' angles, `x * cos + rotate_half(x) * sin`, each in its shape.

    Args:
        query_BHSD, key_BGSD: floating point.
        cos_BSR, sin_BSR: of batch 1 or B. R is even and may be less than D: the rest of a head stays as it is. Their
            values are those of every number of a head, so that each angle is there twice.
        interleaved: neighbours turn together, (x0, x1) -> (-x1, x0), as in GLM and Cohere; else the first half of R
            with the second, (a, b) -> (-b, a), as in Llama.

    Raises ValueError for shapes that do not fit together.
    """
    _check_floating(query_BHSD=query_BHSD, key_BGSD=key_BGSD, cos_BSR=cos_BSR, sin_BSR=sin_BSR)
    query, key, cos, sin = (tuple(tensor.shape) for tensor in (query_BHSD, key_BGSD, cos_BSR, sin_BSR))
    if len(query) != 4 or len(key) != 4 or (query[0], *query[2:]) != (key[0], *key[2:]):
        raise ValueError(f"query {query} and key {key} do not fit: expected (B, H, S, D) and (B, G, S, D)")
    fits = cos == sin and len(cos) == 3 and cos[0] in (1, query[0]) and cos[1] == query[2]
    if not fits or cos[2] % 2 or not 0 < cos[2] <= query[3]:
        raise ValueError(
            f"cos {cos} and sin {sin} do not fit query {query}: expected (1 or {query[0]}, {query[2]}, R) of both, "
            f"with R even and at most {query[3]}"
        )
    tell_refusal("rotary_embedding", rotary_ops.refusal(query_BHSD, key_BGSD, cos_BSR, sin_BSR))
    return rotary_ops.rotary_embedding(query_BHSD, key_BGSD, cos_BSR, sin_BSR, interleaved)


def swiglu(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """`act(gate) * up`: what a gated MLP does between its projections. The activation is rounded to the dtype of gate.

    Args:
        gate, up: of shapes that broadcast, floating point.
        activation: "silu", "gelu" (by the error function) or "gelu_tanh".

    Raises ValueError for shapes that do not fit together, and for another activation.
    """
    if activation not in swiglu_ops.ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, expected one of {', '.join(swiglu_ops.ACTIVATIONS)}")
    _check_floating(gate=gate, up=up)
    if not _broadcast(gate.shape, up.shape):
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} do not broadcast")
    tell_refusal("swiglu", swiglu_ops.refusal(gate, up))
    return swiglu_ops.swiglu(gate, up, activation)


def _broadcast(one: torch.Size, other: torch.Size) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(other), strict=False))


def _check_width(x: torch.Tensor, **vectors: torch.Tensor | None) -> None:
    if x.dim() == 0:
        raise ValueError("x has no dimensions, expected (..., W)")
    _check_floating(x=x, **vectors)
    for name, vector in vectors.items():
        if vector is not None and vector.shape != x.shape[-1:]:
            raise ValueError(
                f"{name} has the shape {tuple(vector.shape)}, expected {tuple(x.shape[-1:])}: the last dimension of "
                f"x, which is {tuple(x.shape)}"
            )


def _check_floating(**tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise ValueError(f"{name} has the dtype {tensor.dtype}, expected floating point")
