"""FlexAttention on neuron, which PyTorch refuses there: by the attention op, for calls that only mask scores.

A mask whose rows are one stretch of keys each goes as key ranges, looked up once for each BlockMask; any other goes
whole. Functions that change scores have no kernel: such calls are refused.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size, E of values.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .. import runtime
from ..nki.masks import SEEN, Seen, nki_mask, seen_in_values, with_known
from ..nki.ops import attention as ops
from .attention import nki_attention_forward, record_call, what_is_seen


FUNCTION = "flex_attention"


def on_neuron(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`stock`, PyTorch's flex_attention, but for tensors on neuron."""

    @wraps(stock)
    def flex_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Callable[..., Any] | None = None,
        block_mask: Any = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        kernel_options: Any = None,
        *,
        return_aux: Any = None,
    ) -> Any:
        if not runtime.is_neuron(query):
            return stock(
                query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options,
                return_aux=return_aux,
            )  # fmt: skip
        check(query, key, enable_gqa, score_mod, return_lse or return_aux is not None)
        mask = None if block_mask is None else mask_of(block_mask, query.device)
        ranges, bias, is_causal, whole = what_is_seen(query, key, mask, False)
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
        record_call(query, key, value, bias, None, scale, FUNCTION, whole)
        return ops.attention(query, key, value, ranges, bias, None, scale, None, is_causal)

    return flex_attention


def naming_the_order(stock: Callable[..., None]) -> Callable[..., None]:
    """`stock`, PyTorch's check of devices, which says why a function that was taken by name does not know neuron."""

    @wraps(stock)
    def validate_device(query: torch.Tensor, *args: Any) -> None:
        if runtime.is_neuron(query):
            raise ValueError(
                f"{FUNCTION} of a tensor on neuron: this is PyTorch's own, taken by name before neuron was added to "
                "it; import optimum_neuron_torch before the line that takes it"
            )
        stock(query, *args)

    return validate_device


def check(query: torch.Tensor, key: torch.Tensor, enable_gqa: bool, score_mod: Any, wants_more: bool) -> None:
    """Raises NotImplementedError for calls that no attention on neuron takes, ValueError for heads that do not fit."""
    if score_mod is not None:
        raise NotImplementedError(
            f"{FUNCTION} on neuron takes no score_mod: mask scores with block_mask, or call "
            "optimum_neuron_torch.nki.attention, which has a bias and a softcap"
        )
    if wants_more:
        raise NotImplementedError(
            f"{FUNCTION} on neuron returns the output alone: leave return_lse and return_aux out"
        )
    heads, groups = query.shape[1], key.shape[1]
    if heads % groups or (heads != groups and not enable_gqa):
        raise ValueError(
            f"{heads} query heads and {groups} key heads: give as many, or a divisor with enable_gqa=True"
        )


def mask_of(block_mask: Any, device: torch.device) -> torch.Tensor:
    """(1 or B, 1 or H, Q, K) boolean, with what is known of it."""
    from torch.nn.attention.flex_attention import create_mask

    kept = getattr(block_mask, SEEN, None)
    if kept is not None:
        return kept
    rows, heads, queries, keys = block_mask.shape
    mask = create_mask(block_mask.mask_mod, rows, heads, queries, keys, device=device)
    if torch.compiler.is_compiling():
        return with_known(mask, Seen(unknown="a block mask in a graph"))
    mask = with_known(mask, seen_in_values(mask))
    setattr(block_mask, SEEN, mask)
    return mask


# ---- Transformers' attention of this name ---------------------------------------------------------------------------


def forward_on_neuron(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`stock`, in the form of Transformers' AttentionInterface, but for tensors on neuron."""

    @wraps(stock)
    def flex_attention_forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not runtime.is_neuron(query) or args:
            return stock(module, query, key, value, attention_mask, *args, **kwargs)
        if attention_mask is None:  # nothing is hidden then, whatever the module is
            kwargs["is_causal"] = False
        return nki_attention_forward(module, query, key, value, attention_mask, **kwargs)

    return flex_attention_forward


def mask_on_neuron(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`stock`, in the form of Transformers' AttentionMaskInterface, but for masks on neuron."""

    @wraps(stock)
    def flex_attention_mask(*args: Any, **kwargs: Any) -> Any:
        device = torch.device(kwargs.get("device", "cpu"))
        return (nki_mask if device.type == runtime.DEVICE_TYPE else stock)(*args, **kwargs)

    return flex_attention_mask
