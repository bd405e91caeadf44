"""Attention and its siblings for people: what a Transformer layer is made of.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, S positions, D head size, E that of values,
R rotated part of D, T rows, V vocabulary, W width.
"""

import math
import operator

import torch
from torch.autograd import forward_ad

from .ops import attention as attention_ops
from .ops import cross_entropy as cross_entropy_ops
from .ops import layer_norm as layer_norm_ops
from .ops import rms_norm as rms_norm_ops
from .ops import rotary_embedding as rotary_ops
from .ops import swiglu as swiglu_ops
from .paths import tell_refusal


def attention(
    query_BHQD: torch.Tensor,
    key_BGKD: torch.Tensor,
    value_BGKE: torch.Tensor,
    *,
    ranges_B1Q2: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    sinks_H: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Softmax attention, (B, H, Q, E), in the dtype of the query.

    Args:
        query_BHQD, key_BGKD, value_BGKE: floating point, of one dtype; H is a multiple of G.
        ranges_B1Q2: int32, the keys [start, end) that each query sees; None is all of them.
        bias: added to the scaled scores, broadcastable to (B, H, Q, K); boolean: True where a query sees a key.
        sinks_H: one logit per head that takes part in the softmax and has no value.
        scale: of the scores; None is D ** -0.5. softcap: scores become softcap * tanh(scores / softcap).

    A query that sees no key gives 0. Raises ValueError for shapes, dtypes and devices that do not fit together, and
    for a scale or softcap that is none; NotImplementedError, as all functions here, for forward-mode gradients.
    """
    _check_softcap(softcap)
    if not query_BHQD.dim() == key_BGKD.dim() == value_BGKE.dim() == 4:
        shapes = f"query {tuple(query_BHQD.shape)}, key {tuple(key_BGKD.shape)} and value {tuple(value_BGKE.shape)}"
        raise ValueError(f"{shapes}: expected four dimensions, (B, H, Q, D), (B, G, K, D) and (B, G, K, E)")
    heads, groups = query_BHQD.shape[1], key_BGKD.shape[1]
    if (
        not groups
        or heads % groups
        or query_BHQD.shape[0] != key_BGKD.shape[0]
        or key_BGKD.shape[:3] != value_BGKE.shape[:3]
        or query_BHQD.shape[-1] != key_BGKD.shape[-1]
    ):
        raise ValueError(
            f"query {tuple(query_BHQD.shape)}, key {tuple(key_BGKD.shape)} and value {tuple(value_BGKE.shape)} do not "
            "fit: expected (B, H, Q, D), (B, G, K, D), (B, G, K, E) with H a multiple of G"
        )
    _check_floating(query_BHQD=query_BHQD, key_BGKD=key_BGKD, value_BGKE=value_BGKE)
    _check_devices(query_BHQD=query_BHQD, ranges_B1Q2=ranges_B1Q2, bias=bias, sinks_H=sinks_H)
    if not query_BHQD.dtype == key_BGKD.dtype == value_BGKE.dtype:
        dtypes = f"{query_BHQD.dtype}, {key_BGKD.dtype} and {value_BGKE.dtype}"
        raise ValueError(f"query, key and value have the dtypes {dtypes}: expected one")
    _check_masks(query_BHQD, key_BGKD, ranges_B1Q2, bias, sinks_H)
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
    # Heads of size 0, whose scores are 0 at any scale, have no root.
    scale = max(1, query_BHQD.shape[-1]) ** -0.5 if scale is None else float(scale)
    if not math.isfinite(scale):
        raise ValueError(f"scale={scale}: expected a finite number, or None for D ** -0.5")
    tell_refusal("attention", attention_ops.refusal(query_BHQD, key_BGKD, value_BGKE, scale))
    return attention_ops.attention(query_BHQD, key_BGKD, value_BGKE, ranges_B1Q2, bias, sinks_H, scale, softcap)


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
    _check_floating(x=x, residual=residual)
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
        softcap: logits become softcap * tanh(logits / softcap) first; positive.
        reduction: "mean" over the rows that count, "sum", or "none" for the loss of each row.

    A label that is no entry is an error of torch's on the host; a kernel, which cannot stop for one, gives NaN for its
    row's loss and gradients. Raises ValueError for shapes that do not fit together, and for options that are none.
    """
    _check_floating(logits_TV=logits_TV)
    _check_devices(logits_TV=logits_TV, labels_T=labels_T)
    _check_softcap(softcap)
    if logits_TV.dim() != 2 or labels_T.shape != logits_TV.shape[:1]:
        shapes = f"logits {tuple(logits_TV.shape)} and labels {tuple(labels_T.shape)}"
        raise ValueError(f"{shapes} do not fit: expected (T, V) and (T,); flatten what is before the vocabulary")
    if labels_T.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"labels_T has the dtype {labels_T.dtype}, expected torch.int64 or torch.int32")
    if reduction not in cross_entropy_ops.REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}, expected one of {', '.join(cross_entropy_ops.REDUCTIONS)}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}, expected a number from 0 to 1")
    options = (
        operator.index(ignore_index),
        float(label_smoothing),
        None if softcap is None else float(softcap),
        reduction,
    )
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
    _check_activation(activation)
    _check_floating(gate=gate, up=up)
    if not _broadcast(gate.shape, up.shape):
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} do not broadcast")
    tell_refusal("swiglu", swiglu_ops.refusal(gate, up))
    return swiglu_ops.swiglu(gate, up, activation)


def swiglu_halves(gate_up: torch.Tensor, *, up_is_first: bool = False, activation: str = "silu") -> torch.Tensor:
    """As `swiglu` of the halves of the last dimension: what a gated MLP with gate and up in one projection does.

    Args:
        gate_up: (..., 2 * W), floating point; the result is (..., W).
        up_is_first: the gate is the second half.
        activation: "silu", "gelu" (by the error function) or "gelu_tanh".

    Nothing is copied first, as it would be for `swiglu(*gate_up.chunk(2, -1))`. Raises ValueError for a last dimension
    that has no halves, and for another activation.
    """
    _check_activation(activation)
    _check_floating(gate_up=gate_up)
    if gate_up.dim() == 0 or gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up has the shape {tuple(gate_up.shape)}: its last dimension must be of two halves")
    tell_refusal("swiglu_halves", swiglu_ops.refusal_of_halves(gate_up))
    return swiglu_ops.swiglu_halves(gate_up, up_is_first, activation)


def _check_activation(activation: str) -> None:
    if activation not in swiglu_ops.ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, expected one of {', '.join(swiglu_ops.ACTIVATIONS)}")


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
    if bias is not None and (bias.dim() > 4 or not _expands(bias.shape, shape)):
        raise ValueError(f"bias has the shape {tuple(bias.shape)}, which does not broadcast to (B, H, Q, K) = {shape}")
    if bias is not None and not (bias.dtype == torch.bool or bias.is_floating_point()):
        raise ValueError(f"bias has the dtype {bias.dtype}, expected torch.bool or floating point")
    if sinks_H is not None and sinks_H.shape != (heads,):
        raise ValueError(f"sinks_H has the shape {tuple(sinks_H.shape)}, expected ({heads},)")
    if sinks_H is not None and not sinks_H.is_floating_point():
        raise ValueError(f"sinks_H has the dtype {sinks_H.dtype}, expected floating point")


def _check_softcap(softcap: float | None) -> None:
    if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
        raise ValueError(f"softcap={softcap}: expected a positive number, or None")


def _expands(given: torch.Size, wanted: tuple[int, ...]) -> bool:
    return all(size in (1, full) for size, full in zip(reversed(given), reversed(wanted), strict=False))


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
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in given.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has the dtype {tensor.dtype}, expected floating point")
    _check_devices(**given)


def _check_devices(**tensors: torch.Tensor | None) -> None:
    """On one device, and without what PyTorch's operators in Python would drop in silence."""
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    _check_forward_mode(**tensors)
    if len({tensor.device for tensor in tensors.values()}) > 1:
        places = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise ValueError(f"{places}: expected one device")


def _check_forward_mode(**tensors: torch.Tensor) -> None:
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"{name} has a forward-mode tangent (torch.func.jvp, torch.autograd.forward_ad), and kernels have "
                "gradients in reverse mode alone: use torch.autograd, or PyTorch's own functions"
            )
