"""LayerNorm and its gradients.

Shape legend: T rows, W width, P partitions, R rows on one partition, C columns of a section or a block.

All in float32 until the result is rounded. The Scalar Engine sums, subtracts the mean first and squares then, so that
a mean that is large does not take the variance's digits, and hands normalised rows to the Vector Engine through PSUM.
"""

from dataclasses import dataclass
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import (
    PSUM_BLOCK,
    SECTION,
    Rows,
    SumOverRows,
    blocks,
    in_stages,
    itemsize,
    loaded,
    negative_means,
    on_all_partitions,
    reciprocal_roots,
    repeated_like,
    row_bytes,
    sections,
    sums_of_rows,
    tiles,
)


@nki.jit
def layer_norm_kernel(x_TW, weight_W=None, bias_W=None, eps=1e-5):
    """`(x - mean(x)) * rsqrt(var(x) + eps) * weight + bias`, (T, W) in the dtype of x.

    Args:
        x_TW: float32, bfloat16 or float16. A row takes 32 KiB at most: W up to 8192 in float32, 16384 in 16 bits.
        weight_W, bias_W: of any float dtype; None for 1 and 0.

    The variance is that of all elements, not of a sample; eps is above 0, and the variance below 2^97, where the
    Scalar Engine's root ends. Runs on NeuronCore-v3 and later, each core taking a part of the rows.
    """
    output_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    weight_P1W, bias_P1W = (None if vector is None else on_all_partitions(vector) for vector in (weight_W, bias_W))

    def load(rows):
        return rows, loaded(x_TW, rows)

    def average(state):
        return *state, sums_of_rows(state[-1], nl.copy)

    def measure(state):
        rows, x_PRW, sums_PR = state
        return rows, x_PRW, _Moments.of(x_PRW, sums_PR, eps)

    def scale(state):
        _store_scaled(output_TW, *state, weight_P1W, bias_P1W)

    vector_bytes = sum(x_TW.shape[1] * itemsize(vector.dtype) for vector in (weight_W, bias_W) if vector is not None)
    in_stages(tiles(*x_TW.shape), (load, average, measure, scale), row_bytes(x_TW), vector_bytes)
    return output_TW


@nki.jit
def layer_norm_backward_kernel(grad_TW, x_TW, weight_W=None, eps=1e-5, needs_vector_gradients=True):
    """Gradients `(grad_x_TW, grad_weight_W, grad_bias_W)`; `grad_x_TW` alone unless those of the vectors are needed.

    Args:
        grad_TW: of the output, in the dtype of x.

    Other arguments and limits as in `layer_norm_kernel`. The gradients of weight and bias are float32.
    """
    grad_x_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    weight_P1W = None if weight_W is None else on_all_partitions(weight_W)
    width = x_TW.shape[1]
    sums = (SumOverRows(width, nl.float32), SumOverRows(width, x_TW.dtype)) if needs_vector_gradients else None

    def load(rows):
        return rows, loaded(grad_TW, rows), loaded(x_TW, rows)

    def average(state):
        return *state, sums_of_rows(state[-1], nl.copy)

    def measure(state):
        rows, grad_PRW, x_PRW, sums_PR = state
        return rows, grad_PRW, x_PRW, _Moments.of(x_PRW, sums_PR, eps)

    def project(state):
        rows, grad_PRW, x_PRW, moments = state
        return *state, _projections(grad_PRW, x_PRW, moments, weight_P1W, sums)

    def store(state):
        _store_gradient(grad_x_TW, *state, weight_P1W)

    in_stages(tiles(*x_TW.shape), (load, average, measure, project, store), row_bytes(grad_TW, x_TW))
    if sums is None:
        return grad_x_TW
    vectors = [nl.ndarray((width,), dtype=nl.float32, buffer=nl.shared_hbm) for _ in sums]
    for pipe, (total, vector) in enumerate(zip(sums, vectors, strict=True)):
        total.store(vector, pipe)
    return grad_x_TW, *vectors


@dataclass(frozen=True)
class _Moments:
    """Of each row, (P, R) float32: minus the mean, and one over the standard deviation."""

    shift_PR: Any
    reciprocal_PR: Any

    @classmethod
    def of(cls, x_PRW: Any, sums_PR: Any, eps: float) -> "_Moments":
        shift_PR = nl.ndarray(sums_PR.shape, dtype=nl.float32)
        nisa.activation(dst=shift_PR, op=nl.copy, data=sums_PR, scale=-1.0 / x_PRW.shape[2])
        return cls(shift_PR, reciprocal_roots(sums_of_rows(x_PRW, nl.square, shift_PR), x_PRW.shape[2], eps))

    def normalise(self, dst_PRC: Any, x_PRC: Any, rows: slice) -> None:
        """Those rows of a tile, by the Vector Engine."""
        for index, row in enumerate(range(rows.start, rows.stop)):
            nisa.tensor_scalar(
                dst=dst_PRC[:, index],
                data=x_PRC[:, index],
                op0=nl.add,
                operand0=self.shift_PR[:, row : row + 1],
                op1=nl.multiply,
                operand1=self.reciprocal_PR[:, row : row + 1],
            )

    def scale(self, dst_PRC: Any, x_PRC: Any, rows: slice, weight_PRC: Any) -> None:
        """Those rows of a tile, normalised and multiplied; the Scalar Engine subtracts the mean."""
        centred_PRC = nl.ndarray(x_PRC.shape, dtype=nl.float32, buffer=nl.psum)
        for index, row in enumerate(range(rows.start, rows.stop)):
            nisa.activation(
                dst=centred_PRC[:, index], op=nl.copy, data=x_PRC[:, index], bias=self.shift_PR[:, row : row + 1]
            )
            nisa.scalar_tensor_tensor(
                dst=dst_PRC[:, index],
                data=centred_PRC[:, index],
                op0=nl.multiply,
                operand0=self.reciprocal_PR[:, row : row + 1],
                op1=nl.multiply,
                operand1=weight_PRC[:, index],
            )


def _store_scaled(output_TW, rows: Rows, x_PRW, moments: _Moments, weight_P1W, bias_P1W) -> None:
    output_PRW = nl.ndarray(x_PRW.shape, dtype=output_TW.dtype)
    for each, columns in blocks(*x_PRW.shape[1:], PSUM_BLOCK):
        x_PRC, output_PRC = x_PRW[:, each, columns], output_PRW[:, each, columns]
        scaled_PRC = output_PRC
        if bias_P1W is not None:
            scaled_PRC = nl.ndarray(x_PRC.shape, dtype=nl.float32, buffer=nl.psum)
        if weight_P1W is None:
            moments.normalise(scaled_PRC, x_PRC, each)
        else:
            moments.scale(scaled_PRC, x_PRC, each, repeated_like(weight_P1W, x_PRC, columns))
        if bias_P1W is not None:
            bias_PRC = repeated_like(bias_P1W, x_PRC, columns)
            nisa.tensor_tensor(dst=output_PRC, data1=scaled_PRC, data2=bias_PRC, op=nl.add)
    nisa.dma_copy(dst=rows.of(output_TW), src=output_PRW)


def _projections(grad_PRW, x_PRW, moments: _Moments, weight_P1W, sums) -> tuple[Any, Any]:
    """Sums of the normalised rows' gradients, and of these times the rows, of each block of columns.

    Gradients of the vectors are added to `sums`. GpSimd takes a part of the products from the Vector Engine.
    """
    partitions, each, width = x_PRW.shape
    count = len(sections(width))
    totals = tuple(nl.ndarray((partitions, each, count), dtype=nl.float32) for _ in range(2))
    for rows, columns in blocks(each, width, SECTION):
        grad_PRC = grad_PRW[:, rows, columns]
        product_PRC = nl.ndarray(grad_PRC.shape, dtype=nl.float32)
        moments.normalise(product_PRC, x_PRW[:, rows, columns], rows)
        _multiply(product_PRC, product_PRC, grad_PRC, nisa.engine.gpsimd)
        if sums is not None:
            sums[0].add(product_PRC, columns)
            sums[1].add(grad_PRC, columns)
        if weight_P1W is not None:
            weight_PRC = repeated_like(weight_P1W, grad_PRC, columns)
            # Not in place: the Tensor Engine still reads what it sums.
            unscaled, (grad_PRC, product_PRC) = (grad_PRC, product_PRC), _two_like(grad_PRC)
            for scaled_PRC, values_PRC in zip((grad_PRC, product_PRC), unscaled, strict=True):
                _multiply(scaled_PRC, values_PRC, weight_PRC, nisa.engine.gpsimd)
        index = columns.start // SECTION
        for totals_PRS, values_PRC in zip(totals, (grad_PRC, product_PRC), strict=True):
            sums_of_rows(values_PRC, nl.copy, sums_PR=totals_PRS[:, rows, index])
    return totals


def _store_gradient(grad_x_TW, rows: Rows, grad_PRW, x_PRW, moments: _Moments, projections, weight_P1W) -> None:
    """(grad * weight - mean - normalised x * product) over the standard deviation."""
    means_PR, products_PR = (negative_means(totals_PRS, x_PRW.shape[2]) for totals_PRS in projections)
    result_PRW = nl.ndarray(x_PRW.shape, dtype=grad_x_TW.dtype)
    for each, columns in blocks(*x_PRW.shape[1:], SECTION):
        scaled_PRC = grad_PRW[:, each, columns]
        if weight_P1W is not None:
            grad_PRC, scaled_PRC = scaled_PRC, nl.ndarray(scaled_PRC.shape, dtype=nl.float32)
            _multiply(scaled_PRC, grad_PRC, repeated_like(weight_P1W, grad_PRC, columns), nisa.engine.gpsimd)
        normal_PRC = nl.ndarray(scaled_PRC.shape, dtype=nl.float32)
        moments.normalise(normal_PRC, x_PRW[:, each, columns], each)
        for index, row in enumerate(range(each.start, each.stop)):
            nisa.scalar_tensor_tensor(
                dst=normal_PRC[:, index],
                data=normal_PRC[:, index],
                op0=nl.multiply,
                operand0=products_PR[:, row : row + 1],
                op1=nl.add,
                operand1=scaled_PRC[:, index],
            )
            nisa.tensor_scalar(
                dst=result_PRW[:, row, columns],
                data=normal_PRC[:, index],
                op0=nl.add,
                operand0=means_PR[:, row : row + 1],
                op1=nl.multiply,
                operand1=moments.reciprocal_PR[:, row : row + 1],
            )
    nisa.dma_copy(dst=rows.of(grad_x_TW), src=result_PRW)


def _two_like(tile_PRC: Any) -> tuple[Any, Any]:
    first, second = (nl.ndarray(tile_PRC.shape, dtype=nl.float32) for _ in range(2))
    return first, second


def _multiply(dst: Any, data1: Any, data2: Any, engine: Any) -> None:
    nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=nl.multiply, engine=engine)
