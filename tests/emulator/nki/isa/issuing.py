"""Runs one instruction on given arrays, so that a test is a call and what the documentation says it gives."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from optimum_neuron_torch.emulator.nki import install
from optimum_neuron_torch.emulator.nki.chips import chip_of
from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.kernel import run_kernel


install()

import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402


FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


def storage(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype, None) or dtype)


def some(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Numbers that any dtype holds: small integers and halves, negative ones where the dtype has them."""
    values = np.random.default_rng(seed).integers(0 if dtype.startswith("u") else -8, 9, shape)
    return (values if "int" in dtype else values / 2).astype(storage(dtype))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 results as an engine stores them: to nearest even, integers saturated."""
    values = np.asarray(values)
    if "int" in dtype:
        info = np.iinfo(dtype)
        return np.clip(np.rint(values.astype(np.float64)), info.min, info.max).astype(dtype)
    return values.astype(np.float32).astype(storage(dtype))


def tile(array: np.ndarray, buffer: Any = None) -> Any:
    """A tile with the array's elements, in SBUF unless another memory is given."""
    staged = nl.ndarray(array.shape, array.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=staged, src=array)
    if buffer is None or buffer is nl.sbuf:
        return staged
    moved = nl.ndarray(array.shape, array.dtype, buffer=buffer)
    nisa.tensor_copy(dst=moved, src=staged)
    return moved


def out(source: Any) -> Any:
    """A result of the kernel with the tile's elements."""
    if source.buffer is nl.psum:
        staged = nl.ndarray(source.shape, source.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=staged, src=source)
        source = staged
    result = nl.ndarray(source.shape, source.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=source)
    return result


def run(kernel: Callable[..., Any], *arrays: Any, target: str = "trn2") -> Any:
    """What the kernel gives for arrays, as arrays; reading what nothing has written is an error."""
    return run_kernel(kernel, 1, arrays, {}, chip=chip_of(target), is_strict=True)


def issued(
    emit: Callable[..., Any],
    *arrays: np.ndarray,
    shape: tuple[int, ...] | None = None,
    dtype: str | None = None,
    target: str = "trn2",
    buffer: str = "sbuf",
    inputs: str = "sbuf",
) -> np.ndarray:
    """What `emit(dst, *tiles)` leaves in dst.

    dst is like the first array, unless `shape` and `dtype` say otherwise, in the memory `buffer`; the first array lies
    in the memory `inputs`, the others in SBUF.
    """

    def kernel(*tensors: Any) -> Any:
        tiles = [tile(each, getattr(nl, inputs) if i == 0 else None) for i, each in enumerate(tensors)]
        dst = nl.ndarray(shape or arrays[0].shape, dtype or arrays[0].dtype, buffer=getattr(nl, buffer))
        emit(dst, *tiles)
        return out(dst)

    return run(kernel, *arrays, target=target)


def refusal(emit: Callable[[], Any], target: str = "trn2") -> str:
    """The text of the error that an instruction in a kernel gives; empty where it gives none."""

    def kernel() -> Any:
        emit()

    try:
        run_kernel(kernel, 1, (), {}, chip=chip_of(target))
    except NkiError as error:
        return str(error)
    return ""


def sbuf(*shape: int, dtype: Any = "float32", buffer: Any = None) -> Any:
    """A tile of ones."""
    made = nl.ndarray(shape, dtype, buffer=buffer or nl.sbuf)
    nisa.memset(dst=made, value=1)
    return made


def psum(*shape: int, dtype: Any = "float32") -> Any:
    return sbuf(*shape, dtype=dtype, buffer=nl.psum)
