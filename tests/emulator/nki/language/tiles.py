"""Runs a function on tiles of SBUF, so that a test is an expression and what it should give."""

from collections.abc import Callable
from typing import Any

import numpy as np

from optimum_neuron_torch.emulator.nki import install
from optimum_neuron_torch.emulator.nki.dtypes import as_dtype
from optimum_neuron_torch.emulator.nki.memory import MemoryRegion
from optimum_neuron_torch.emulator.nki.tracing import trace


install()

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402


def on_tiles(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """What `function` gives for the arrays as tiles of SBUF: its tile as an array, of the tile's dtype and shape.

    A run without data must say the same shape and dtype.
    """

    def kernel(*tensors: Any) -> Any:
        result = function(*map(nl.load, tensors))
        if result.buffer is MemoryRegion.psum:
            result = copied(result)
        out = nl.ndarray(result.shape, result.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=result)
        return out

    traced = trace(kernel, *arrays).outputs
    result = nki.simulate(kernel)(*arrays)
    assert (traced.shape, traced.dtype) == (result.shape, as_dtype(result.dtype))
    return result


def made(make: Callable[[], Any]) -> np.ndarray:
    """The tensor that `make` makes, wherever it is, as an array."""

    def kernel():
        tensor = make()
        if nl.is_psum(tensor.buffer):
            tensor = copied(tensor)
        out = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tensor)
        return out

    return nki.simulate(kernel)()


def copied(tile: Any) -> Any:
    copy = nl.ndarray(tile.shape, tile.dtype)
    nisa.tensor_copy(dst=copy, src=tile)
    return copy


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
