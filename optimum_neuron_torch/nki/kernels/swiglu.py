"""Gated linear units between their projections, act(gate) * up, and their gradients.

Shape legend: T rows, W width, V both halves of a row, N elements, P partitions, R rows on one partition, C columns.

Of gate and up apart the shape does not matter: elements are spread over the partitions as they lie in memory, as rows
of one. The Scalar Engine activates, the Vector Engine multiplies, and both take less time for 16-bit floats than the
transfers.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import PSUM_BLOCK, TILE, Rows, blocks, in_stages, itemsize, loaded, multiply_tiles, sections, tiles


# gelu_tanh(x) = x / 2 * (1 + tanh(u)) with u = ROOT * (x + CUBE * x^3).
ROOT = 0.7978845608028654
CUBE = 0.044715
# Where the slope of gelu_tanh is 0 or 1 in float32: far beyond the 11 or so from where on it is.
FLAT = 64.0


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
    work = _blocks_of_rows(*_half_of(gate_up_TV))
    _differentiate(*inputs, *_halves(grad_gate_up_TV, up_is_first), activation, work)
    return grad_gate_up_TV


def _gate(gate: Part, up: Part, output: Part, activation: str, work: Iterable[Block]) -> None:
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

    in_stages(work, (load, activate, multiply), 2 * _tile_bytes(gate))


def _differentiate(
    grad: Part, gate: Part, up: Part, grad_gate: Part, grad_up: Part, activation: str, work: Iterable[Block]
) -> None:
    slope_of = {"silu": _Slope(nl.silu, nl.silu_dx), "gelu": _Slope(nl.gelu, nl.gelu_dx), "gelu_tanh": _SlopeOfTanh()}
    slope = slope_of[activation]

    def load(block):
        return block, *(block.loaded(part) for part in (grad, gate, up))

    def evaluate(state):
        block, grad_PRC, gate_PRC, up_PRC = state
        value_PRC = nl.ndarray(gate_PRC.shape, dtype=gate_PRC.dtype)
        nisa.activation(dst=value_PRC, op=slope.function, data=gate_PRC)
        return block, grad_PRC, up_PRC, value_PRC, slope.bounded(gate_PRC)

    def multiply(state):
        block, grad_PRC, up_PRC, value_PRC, gate_PRC = state
        multiply_tiles(up_PRC, grad_PRC, up_PRC, slope.engine)
        multiply_tiles(value_PRC, grad_PRC, value_PRC, nisa.engine.gpsimd)
        nisa.dma_copy(dst=block.of(grad_up), src=value_PRC)
        return block, up_PRC, slope.prepared(gate_PRC)

    def differentiate(state):
        block, grad_PRC, prepared = state
        return block, grad_PRC, slope.multiplied(grad_PRC, prepared)

    def store(state):
        block, grad_PRC, slope_PRC = state
        if slope_PRC is not None:
            multiply_tiles(grad_PRC, grad_PRC, slope_PRC, nisa.engine.gpsimd)
        nisa.dma_copy(dst=block.of(grad_gate), src=grad_PRC)

    tile, whole = _tile_bytes(gate), TILE * itemsize(nl.float32)
    kept_bytes = [3 * tile, 4 * tile, tile + slope.prepared_tiles * whole or 2 * tile, tile + slope.kept_tiles * whole]
    in_stages(work, (load, evaluate, multiply, differentiate, store), kept_bytes)


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


# ---- slopes ---------------------------------------------------------------------------------------------------------
# What multiplies them reads them in PSUM, where the Vector Engine reads a second tile at the same time.


@dataclass(frozen=True)
class _Slope:
    """An activation of which the Scalar Engine has the slope."""

    function: Any
    derivative: Any
    engine = nisa.engine.vector  # that multiplies gradients with `up`
    prepared_tiles = kept_tiles = 0  # of float32, in SBUF

    def bounded(self, gate_PRC: Any) -> Any:
        """What the following is given of the gate."""
        return gate_PRC

    def prepared(self, gate_PRC: Any) -> Any:
        return gate_PRC

    def multiplied(self, grad_PRC: Any, gate_PRC: Any) -> None:
        """Multiplies the gradient, in its place, or returns the slope."""
        for rows, columns in blocks(*gate_PRC.shape[1:], PSUM_BLOCK):
            slope_PRC = _in_psum(gate_PRC[:, rows, columns], self.derivative)
            part_PRC = grad_PRC[:, rows, columns]
            multiply_tiles(part_PRC, part_PRC, slope_PRC, nisa.engine.vector)


@dataclass(frozen=True)
class _SlopeOfTanh:
    """That of gelu_tanh, which the Scalar Engine has not: s * (1 + (1 - s) * w), with s = sigmoid(2 * u) and
    w = x * d(2 * u)/dx.

    With k = 6 * ROOT * CUBE and q = k * x^2, w is x * (q + 2 * ROOT), and 2 * u a third of v = x * (q + 6 * ROOT).
    The Vector Engine makes v, and GpSimd w = v - 4 * ROOT * x.
    """

    function = nl.gelu_apprx_tanh
    engine = nisa.engine.gpsimd
    prepared_tiles, kept_tiles = 2, 1

    def bounded(self, gate_PRC: Any) -> Any:
        """Beyond +-FLAT s is 0 or 1 and the slope, too, and squares might be more than float32 holds."""
        bounded_PRC = nl.ndarray(gate_PRC.shape, dtype=gate_PRC.dtype)
        limits = {"op0": nl.maximum, "operand0": -FLAT, "op1": nl.minimum, "operand1": FLAT}
        nisa.tensor_scalar(dst=bounded_PRC, data=gate_PRC, **limits)
        return bounded_PRC

    def prepared(self, gate_PRC: Any) -> tuple[Any, Any]:
        v_PRC, w_PRC = (nl.ndarray(gate_PRC.shape, dtype=nl.float32) for _ in range(2))
        for rows, columns in blocks(*gate_PRC.shape[1:], PSUM_BLOCK):
            part_PRC = gate_PRC[:, rows, columns]
            square_PRC = _in_psum(part_PRC, nl.square, math.sqrt(6 * ROOT * CUBE))
            nisa.scalar_tensor_tensor(
                dst=v_PRC[:, rows, columns],
                data=square_PRC,
                op0=nl.add,
                operand0=6 * ROOT,
                op1=nl.multiply,
                operand1=part_PRC,
            )
        nisa.activation(dst=w_PRC, op=nl.copy, data=gate_PRC, scale=4 * ROOT)
        nisa.tensor_tensor(dst=w_PRC, data1=v_PRC, data2=w_PRC, op=nl.subtract, engine=nisa.engine.gpsimd)
        return v_PRC, w_PRC

    def multiplied(self, grad_PRC: Any, prepared: tuple[Any, Any]) -> Any:
        v_PRC, w_PRC = prepared
        for rows, columns in blocks(*v_PRC.shape[1:], PSUM_BLOCK):
            sigmoid_PRC = _in_psum(v_PRC[:, rows, columns], nl.sigmoid, 1 / 3)
            part_PRC = w_PRC[:, rows, columns]
            for op0_is_reversed in (False, True):  # (s - 1) * w, then (1 - that) * s
                nisa.scalar_tensor_tensor(
                    dst=part_PRC,
                    data=part_PRC if op0_is_reversed else sigmoid_PRC,
                    op0=nl.subtract,
                    operand0=1.0,
                    reverse0=op0_is_reversed,
                    op1=nl.multiply,
                    operand1=sigmoid_PRC if op0_is_reversed else part_PRC,
                )
        return w_PRC


def _in_psum(data_PRC: Any, op: Any, scale: float = 1.0) -> Any:
    """Float32 results of the Scalar Engine."""
    result_PRC = nl.ndarray(data_PRC.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.activation(dst=result_PRC, op=op, data=data_PRC, scale=scale)
    return result_PRC
