"""Gated linear units between their projections, act(gate) * up, and their gradients.

Shape legend: T rows, W width, V both halves of a row, N elements, P partitions, R rows on one partition, C columns.

Of gate and up apart the shape does not matter: elements are spread over the partitions as they lie in memory, as rows
of one. The Scalar Engine activates, the Vector Engine multiplies, and both take less time for 16-bit floats than the
transfers.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import TILE, Rows, in_stages, itemsize, loaded, sections, tiles


# gelu_tanh(x) = x / 2 * (1 + tanh(u)) with u = ROOT * (x + CUBE * x^3).
ROOT = 0.7978845608028654
CUBE = 0.044715


class Part(NamedTuple):
    """Columns of a matrix in HBM, from `first` on."""

    matrix_TC: Any
    first: int = 0


class Block(NamedTuple):
    """Rows, and columns counted from the first one of each part."""

    rows: Rows
    columns: slice

    def of(self, part: Part) -> Any:
        return self.rows.of(part.matrix_TC, self._columns_of(part))

    def loaded(self, part: Part) -> Any:
        return loaded(part.matrix_TC, self.rows, self._columns_of(part))

    def _columns_of(self, part: Part) -> slice:
        return slice(part.first + self.columns.start, part.first + self.columns.stop)


@nki.jit
def swiglu_kernel(gate_TW, up_TW, activation="silu"):
    """`act(gate) * up`, (T, W) in their dtype.

    Args:
        gate_TW, up_TW: float32, bfloat16 or float16, of one shape and dtype; any size.
        activation: "silu", "gelu" (by the error function) or "gelu_tanh".

    The activation is computed in float32 and rounded to the dtype before it is multiplied. Runs on NeuronCore-v3 and
    later, each core taking a part of the elements.
    """
    output_TW = nl.ndarray(gate_TW.shape, dtype=gate_TW.dtype, buffer=nl.shared_hbm)
    _gate(_flat(gate_TW), _flat(up_TW), _flat(output_TW), activation, _blocks_of_elements(gate_TW))
    return output_TW


@nki.jit
def swiglu_halves_kernel(gate_up_TV, up_is_first=False, activation="silu"):
    """As `swiglu_kernel` of the halves of `gate_up_TV`, which is as wide as both, V = 2 * W: (T, W).

    The gate is the first half, or the second where `up_is_first`. Rows are read where they are; each core takes a part
    of them.
    """
    shape = _half_of(gate_up_TV)
    output_TW = nl.ndarray(shape, dtype=gate_up_TV.dtype, buffer=nl.shared_hbm)
    gate, up = _halves(gate_up_TV, up_is_first)
    _gate(gate, up, Part(output_TW), activation, _blocks_of_rows(*shape))
    return output_TW


@nki.jit
def swiglu_backward_kernel(grad_TW, gate_TW, up_TW, activation="silu"):
    """Gradients `(grad_gate_TW, grad_up_TW)` from that of the product; arguments as in `swiglu_kernel`."""
    grad_gate_TW, grad_up_TW = (nl.ndarray(gate_TW.shape, dtype=gate_TW.dtype, buffer=nl.shared_hbm) for _ in range(2))
    inputs = (_flat(grad_TW), _flat(gate_TW), _flat(up_TW))
    _differentiate(*inputs, _flat(grad_gate_TW), _flat(grad_up_TW), activation, _blocks_of_elements(gate_TW))
    return grad_gate_TW, grad_up_TW


@nki.jit
def swiglu_halves_backward_kernel(grad_TW, gate_up_TV, up_is_first=False, activation="silu"):
    """The gradient of `gate_up_TV`, (T, V), from that of the product; arguments as in `swiglu_halves_kernel`."""
    grad_gate_up_TV = nl.ndarray(gate_up_TV.shape, dtype=gate_up_TV.dtype, buffer=nl.shared_hbm)
    inputs = (Part(grad_TW), *_halves(gate_up_TV, up_is_first))
    blocks = _blocks_of_rows(*_half_of(gate_up_TV))
    _differentiate(*inputs, *_halves(grad_gate_up_TV, up_is_first), activation, blocks)
    return grad_gate_up_TV


def _gate(gate: Part, up: Part, output: Part, activation: str, blocks: Iterable[Block]) -> None:
    function = {"silu": nl.silu, "gelu": nl.gelu, "gelu_tanh": nl.gelu_apprx_tanh}[activation]

    def load(block):
        return block, block.loaded(gate), block.loaded(up)

    def activate(state):
        block, gate_PRC, up_PRC = state
        nisa.activation(dst=gate_PRC, op=function, data=gate_PRC)
        return block, gate_PRC, up_PRC

    def multiply(state):
        block, activated_PRC, up_PRC = state
        nisa.tensor_tensor(dst=up_PRC, data1=activated_PRC, data2=up_PRC, op=nl.multiply)
        nisa.dma_copy(dst=block.of(output), src=up_PRC)

    in_stages(blocks, (load, activate, multiply), 2 * _tile_bytes(gate))


def _differentiate(
    grad: Part, gate: Part, up: Part, grad_gate: Part, grad_up: Part, activation: str, blocks: Iterable[Block]
) -> None:
    activate = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}[activation]

    def load(block):
        return block, *(block.loaded(part) for part in (grad, gate, up))

    def differentiate(state):
        block, grad_PRC, gate_PRC, up_PRC = state
        value_PRC, slope_PRC = activate(gate_PRC)
        return block, grad_PRC, up_PRC, value_PRC, slope_PRC

    def multiply(state):
        block, grad_PRC, up_PRC, value_PRC, slope_PRC = state
        nisa.tensor_tensor(dst=value_PRC, data1=grad_PRC, data2=value_PRC, op=nl.multiply)
        nisa.dma_copy(dst=block.of(grad_up), src=value_PRC)
        nisa.tensor_tensor(dst=up_PRC, data1=grad_PRC, data2=up_PRC, op=nl.multiply)
        nisa.tensor_tensor(dst=up_PRC, data1=up_PRC, data2=slope_PRC, op=nl.multiply)
        nisa.dma_copy(dst=block.of(grad_gate), src=up_PRC)

    in_stages(blocks, (load, differentiate, multiply), 6 * _tile_bytes(gate))


# ---- parts and blocks -----------------------------------------------------------------------------------------------


def _flat(tensor_TW: Any) -> Part:
    """(N, 1): all elements, as rows of which a partition has thousands."""
    return Part(tensor_TW.reshape((tensor_TW.shape[0] * tensor_TW.shape[1], 1)))


def _half_of(matrix_TV: Any) -> tuple[int, int]:
    return matrix_TV.shape[0], matrix_TV.shape[1] // 2


def _halves(matrix_TV: Any, up_is_first: bool) -> tuple[Part, Part]:
    """Those of the gate and of up."""
    first, second = Part(matrix_TV), Part(matrix_TV, _half_of(matrix_TV)[1])
    return (second, first) if up_is_first else (first, second)


def _blocks_of_elements(tensor_TW: Any) -> Iterator[Block]:
    for rows in tiles(tensor_TW.shape[0] * tensor_TW.shape[1], 1):
        yield Block(rows, slice(0, 1))


def _blocks_of_rows(rows: int, width: int) -> Iterator[Block]:
    """Of rows that do not fit into a tile some columns."""
    for columns in sections(width, TILE):
        for tile in tiles(rows, columns.stop - columns.start):
            yield Block(tile, columns)


def _tile_bytes(part: Part) -> int:
    return TILE * itemsize(part.matrix_TC.dtype)


# ---- activations ----------------------------------------------------------------------------------------------------
# Values, in the dtype of the gate, and slopes, in float32


def _silu(gate: Any) -> tuple[Any, Any]:
    return _activated(gate, nl.silu, gate.dtype), _activated(gate, nl.silu_dx)


def _gelu(gate: Any) -> tuple[Any, Any]:
    return _activated(gate, nl.gelu, gate.dtype), _activated(gate, nl.gelu_dx)


def _gelu_tanh(gate: Any) -> tuple[Any, Any]:
    """The Scalar Engine has no slope of it: (1 + t) / 2 + x / 2 * (1 - t^2) * du/dx, with t = tanh(u)."""
    square = _activated(gate, nl.square)
    slope = _affine(square, ROOT * CUBE, ROOT)
    _multiply(slope, slope, gate)
    tanh = _activated(slope, nl.tanh)
    nisa.activation(dst=slope, op=nl.square, data=tanh)
    # By x last: times du/dx it may be more than float32 holds, where 1 - t^2 is 0.
    _multiply(slope, _affine(slope, -1.0, 1.0), _affine(square, 1.5 * ROOT * CUBE, 0.5 * ROOT))
    _multiply(slope, slope, gate)
    half = _affine(tanh, 0.5, 0.5)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=half, op=nl.add)
    return _activated(gate, nl.gelu_apprx_tanh, gate.dtype), slope


def _activated(data: Any, op: Any, dtype: Any = nl.float32) -> Any:
    result = nl.ndarray(data.shape, dtype=dtype)
    nisa.activation(dst=result, op=op, data=data)
    return result


def _affine(data: Any, factor: float, summand: float) -> Any:
    """`data * factor + summand`, in float32."""
    result = nl.ndarray(data.shape, dtype=nl.float32)
    nisa.tensor_scalar(dst=result, data=data, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=summand)
    return result


def _multiply(dst: Any, data1: Any, data2: Any) -> None:
    nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=nl.multiply, engine=nisa.engine.gpsimd)
