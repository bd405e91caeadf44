"""Attention "nki" for Transformers: which calls the op takes, where the others go, and who never asks.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size.
"""

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

from ..buckets.blocks import CROSSINGS_OF_TENSORS
from ..buckets.notes import count, note
from ..nki.masks import NAME, SEEN, seen_in
from ..nki.modes import kernels_run
from ..nki.ops import attention as ops
from .masks_in_blocks import MaskCrossing


CROSSINGS_OF_TENSORS[SEEN] = MaskCrossing()


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
    reason = refusal(dropout, softcap, s_aux)
    if reason is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if not kernels_run(query):  # where they do, PyTorch's function, exchanged for ours, says so
            refused(reason)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal,
            position_bias=position_bias, **kwargs,
        )  # fmt: skip
    if torch.is_autocast_enabled(query.device.type):  # as for PyTorch's own attention
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and is_causal and key.shape[2] > query.shape[2] > 1:
        # Keys behind the queries, of a store that is still empty: none is seen.
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        position_bias = None if position_bias is None else position_bias[..., : query.shape[2]]
    ranges, bias, is_causal, whole = what_is_seen(query, key, attention_mask, is_causal)
    if position_bias is not None:
        bias = _added(position_bias, bias)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    record_call(query, key, value, bias, s_aux, scale, whole)
    output_BHQD = ops.attention(query, key, value, ranges, bias, s_aux, scale, softcap, is_causal)
    return output_BHQD.transpose(1, 2).contiguous(), None


def record_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    sinks: torch.Tensor | None,
    scale: float,
    *further: str,
) -> None:
    """Count a call of the op by who computes it, and by what else tells it from others; where kernels run and none
    takes it, tell whoever listens.
    """
    reason = ops.refusal(query, key, value, scale) if kernels_run(query) else None
    if reason is None:
        record_path(ops.computed_by(query, key, value, bias, sinks, scale), *further)
    else:
        refused(reason)


def record_path(who: str, *further: str) -> None:
    """Count a call of the op: `who` computes it; `further` tells it from others."""
    count(", ".join([f"{NAME} ({who})", *filter(None, further)]))


def refused(reason: str) -> None:
    """Count a call that no kernel takes, and tell whoever listens."""
    count(f"sdpa ({reason})")
    note(f"no kernel takes it ({reason}): PyTorch's attention does")


def refusal(dropout: float, softcap: float | None, sinks: torch.Tensor | None) -> str | None:
    """Why the op cannot take a call, which PyTorch's attention takes then, or None.

    Raises NotImplementedError for a call that neither takes.
    """
    if not dropout > 0:
        return None
    if softcap is not None or sinks is not None:
        raise NotImplementedError(
            f"attention {NAME!r} with dropout {dropout} has neither sinks nor a softcap: set attention_dropout=0.0 in "
            "the model's configuration, or choose attn_implementation='eager'"
        )
    return "dropout"


def what_is_seen(
    query: torch.Tensor, key: torch.Tensor, mask: Any, is_causal: bool
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool, str]:
    """`(ranges, bias, is_causal)` as the op takes them, and in words for reports why a mask goes whole, or "".

    `is_causal` given: what the model is where it has no mask.
    """
    queries, keys = query.shape[2], key.shape[2]
    if mask is not None and not isinstance(mask, torch.Tensor):  # a BlockMask of PyTorch
        from .flex import mask_of

        mask = mask_of(mask, query.device)
    if mask is None:
        if not is_causal or queries == 1:
            return None, None, False, ""
        if queries == keys:
            return None, None, True, ""
        return None, _causal_mask(queries, keys, query.device), False, ""
    seen = seen_in(mask)
    if seen.unknown is None and mask.shape[-2:] == (queries, keys):
        if seen.ranges_B1Q2 is None or kernels_run(query):
            return seen.ranges_B1Q2, seen.padding_B11K, seen.is_causal, ""
        # Torch attends with a mask, and the one that all layers share is at hand.
        return None, mask, False, ""
    mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    return None, mask, False, f"whole mask ({seen.unknown or 'for other keys'})"


def _added(position_bias: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A bias of positions, with the mask that goes with it."""
    if bias is None:
        return position_bias
    if bias.dtype == torch.bool:
        return position_bias.masked_fill(~bias, torch.finfo(position_bias.dtype).min)
    return position_bias + bias


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
