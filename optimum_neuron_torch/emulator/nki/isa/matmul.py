"""The product of two tiles as the Tensor Engine sums it into PSUM: exact products of operands, sums in float32."""

import sys
from typing import Any

import numpy as np

from ..core import warn_once
from ..dtypes import float32, to_float32
from ..marks import Marks, View
from ..tensor import NkiTensor


def multiply(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    sizes: tuple[int, int, int],
    accumulate: bool | None,
) -> None:
    """`stationary.T @ moving` into dst; `sizes` is (k, m, n), k may be spread over partitions and a free dimension."""
    k, m, n = sizes
    left = to_float32(stationary.read(), stationary.dtype).reshape(k, m)
    right = to_float32(moving.read(), moving.dtype).reshape(k, n)
    torch = _torch_for(left, right)
    earlier = _earlier(dst, accumulate)
    is_direct = dst.dtype is float32 and dst.ndim == 2 and isinstance(earlier, bool) and dst.indirection is None
    if torch is None or not is_direct:
        values = left.T @ right if torch is None else torch.mm(*_torch_pair(torch, left, right)).numpy()
        store_product(dst, values, accumulate)
        return
    # PyTorch's product is up to three times as fast where NumPy's BLAS has threads of its own.
    if earlier:
        torch.from_numpy(dst.read()).addmm_(*_torch_pair(torch, left, right))
    else:
        torch.mm(*_torch_pair(torch, left, right), out=torch.from_numpy(dst.array))
    dst.note_write()
    mark_accumulated(dst)


def _torch_for(*arrays: np.ndarray) -> Any:
    """torch where it is loaded and takes these arrays as they are, without a warning."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "mm") and all(array.flags.writeable for array in arrays) else None


def _torch_pair(torch: Any, left: np.ndarray, right: np.ndarray) -> tuple[Any, Any]:
    return torch.from_numpy(left).T, torch.from_numpy(right)


def store_product(dst: NkiTensor, values: np.ndarray, accumulate: bool | None) -> None:
    """Writes or adds `values`. Without `accumulate` an element is added to where a matmul has written it before."""
    earlier = _earlier(dst, accumulate)
    if earlier is not False:
        total = values + dst.read_float32().reshape(values.shape)
        values = total if earlier is True else np.where(earlier.reshape(values.shape), total, values)
    dst.write(values)
    mark_accumulated(dst)


def _earlier(dst: NkiTensor, accumulate: bool | None) -> bool | np.ndarray:
    """Whether dst's elements are added to: all, none, or those that are true."""
    if dst.is_indirect():
        return bool(accumulate)
    marks, view = dst.storage.accumulated, _view(dst)
    if accumulate:
        if marks is None or not marks.cover(view):
            warn_once(
                f"nc_matmul(accumulate=True) adds to {dst.describe()}, which no matmul has written: undefined on the "
                "chip; the first matmul takes accumulate=False"
            )
        return True
    if accumulate is False or marks is None or not marks.touch(view):
        return False
    return marks.cover(view) or marks.mask(view).all(-1)


def mark_accumulated(dst: NkiTensor) -> None:
    """Remembers that a matmul has written all of dst; of columns chosen by an index nothing is remembered."""
    if dst.is_indirect():
        return
    storage = dst.storage
    if storage.accumulated is None:
        storage.accumulated = Marks(storage.nbytes, storage.row_nbytes)
    storage.accumulated.note(_view(dst))


def _view(dst: NkiTensor) -> View:
    """dst in the bytes of its allocated tensor, one partition behind the other."""
    storage, row = dst.storage, dst.storage.row_nbytes
    partition, start = divmod(dst.byte_offset - storage.base, storage.pitch)
    strides = (dst.byte_strides[0] // storage.pitch * row, *dst.byte_strides[1:])
    return View(partition * row + start, dst.shape, strides, dst.dtype.itemsize)
