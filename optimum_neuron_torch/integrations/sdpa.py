"""PyTorch's scaled_dot_product_attention on neuron, by our kernels where they run and can take the call.

This is the way to the kernels of all code that asks for no attention by name: Diffusers, models of Transformers that
call PyTorch's function themselves, torch.nn.MultiheadAttention, a user's own.

Shape legend: ... leading sizes, B their product, H query heads, G key/value heads, Q queries, K keys, D head size of
queries and keys, E of values.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from .. import runtime
from ..nki.modes import kernels_run
from ..nki.ops import attention as attention_ops
from .attention import record_path, refused


FUNCTION = "scaled_dot_product_attention"

# What other subclasses of a tensor make of attention is their own affair.
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)


def by_kernels(stock: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`stock`, PyTorch's function, but for calls on neuron that the kernels take. Dynamo traces the choice."""

    # The parameters of PyTorch's own, which is built in and has no signature to copy.
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if runtime.is_neuron(query) and kernels_run():
            reason = refusal(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
            if reason is None:
                tensors = _four_dimensions(*_as_autocast(query, key, value, attn_mask), is_causal)
                reason = attention_ops.refusal(*tensors[:3], 1.0 if scale is None else scale)
            if reason is None:
                record_path(attention_ops.computed_by(*tensors), FUNCTION)
                scale = query.shape[-1] ** -0.5 if scale is None else scale
                return _attend(*tensors, scale, is_causal).reshape(*query.shape[:-1], value.shape[-1])
            refused(reason)
        return stock(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    scaled_dot_product_attention.__doc__ = stock.__doc__
    return scaled_dot_product_attention


def _attend(query_BHQD, key_BGKD, value_BGKE, mask, scale, is_causal) -> torch.Tensor:
    return attention_ops.attention(query_BHQD, key_BGKD, value_BGKE, None, mask, None, scale, None, is_causal)


# ---- which calls ----------------------------------------------------------------------------------------------------


def refusal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str | None:
    """Why a call is none for attention ops, or None. What PyTorch answers with an error is left to it."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if any(type(tensor) not in _PLAIN or tensor.is_nested for tensor in tensors):
        return "a subclass of torch.Tensor, or a nested tensor"
    if any(tensor.device != query.device for tensor in tensors):
        return "tensors on other devices"
    if dropout_p > 0:
        return "dropout"
    if not _fit(query, key, value, enable_gqa):
        return "shapes of query, key and value that are broadcast, or do not fit"
    if is_causal and (attn_mask is not None or query.shape[-2] > key.shape[-2]):
        return "is_causal with a mask, or with more queries than keys"
    if attn_mask is not None and not _is_mask_of(attn_mask, query, key):
        return "a mask whose dtype or shape does not fit"
    return _why_not_here()


def _fit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    if query.dim() < 2 or not query.dim() == key.dim() == value.dim():
        return False
    if key.shape[:-1] != value.shape[:-1] or query.shape[-1] != key.shape[-1] or query.shape[:-3] != key.shape[:-3]:
        return False
    if query.dim() == 2 or query.shape[-3] == key.shape[-3]:
        return True
    if key.shape[-3] == 1:  # one key head for all, which PyTorch broadcasts
        return True
    return enable_gqa and key.shape[-3] > 0 and query.shape[-3] % key.shape[-3] == 0


def _is_mask_of(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> bool:
    if mask.dtype not in (torch.bool, torch.float32, query.dtype) or not 2 <= mask.dim() <= query.dim():
        return False
    wanted = (*query.shape[:-1], key.shape[-2])
    return all(size in (1, full) for size, full in zip(reversed(mask.shape), reversed(wanted), strict=False))


def _why_not_here() -> str | None:
    """What surrounds the call that an operator of ours does not know."""
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return "a transform of torch.func, or forward-mode differentiation"
    if not torch._C._get_overrideable_sdp_enabled():
        return "sdpa_kernel() without the device's own backend"
    return None


# As torch.compiler.assume_constant_result() marks it, which would import Dynamo: run once, while tracing.
_why_not_here._dynamo_marked_constant = True  # type: ignore[attr-defined]


# ---- as the ops take them -------------------------------------------------------------------------------------------


def _as_autocast(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """In the dtype that autocast gives PyTorch's own function."""
    if not torch.is_autocast_enabled(runtime.DEVICE_TYPE):
        return tensors
    dtype = torch.get_autocast_dtype(runtime.DEVICE_TYPE)
    return tuple(
        tensor
        if tensor is None or not tensor.is_floating_point() or tensor.dtype is torch.float64
        else tensor.to(dtype)
        for tensor in tensors
    )


def _four_dimensions(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Query (B, H, Q, D), key, value and mask, with B of all leading sizes, and without the keys that nobody sees."""
    if is_causal and query.shape[-2] < key.shape[-2]:  # position 0 of both is the same (PyTorch's convention)
        key, value = key[..., : query.shape[-2], :], value[..., : query.shape[-2], :]
    if mask is not None:
        if mask.dim() > 3 and query.dim() > 4:
            mask = mask.expand(*query.shape[:-3], *mask.shape[-3:])
        mask = _with_one_batch(mask)
    return _with_one_batch(query), _with_one_batch(key), _with_one_batch(value), mask


def _with_one_batch(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 4:
        return tensor[(None,) * (4 - tensor.dim())]
    return tensor if tensor.dim() == 4 else tensor.flatten(0, -4)


# ---- where it is called ---------------------------------------------------------------------------------------------


class Exchange:
    """PyTorch's function exchanged for ours while at least one wants it: that is, while kernels run in some thread,
    and once a model with simulated kernels was compiled by its user, whose graphs know the function by identity.

    Before that, and where none run, PyTorch's own is called, at no cost.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._users = 0
        self._stock: Any = None
        self._ours: Any = None

    def put(self) -> None:
        """Exchange the function, for one more user."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                stock = getattr(self._module, FUNCTION)
                if stock is not self._stock:  # the same function each time, by which Dynamo knows its graphs again
                    self._stock, self._ours = stock, by_kernels(stock)
                setattr(self._module, FUNCTION, self._ours)

    def take_back(self) -> None:
        """For one user less; what somebody else put there since stays."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and getattr(self._module, FUNCTION) is self._ours:
                setattr(self._module, FUNCTION, self._stock)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """`put()` for the block."""
        self.put()
        try:
            yield
        finally:
            self.take_back()
