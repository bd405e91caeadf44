"""RMSNorm, alone or of a sum with the residual, and its gradients.

Shape legend: T rows, W width, P partitions, R rows on one partition, C columns of a section.

A row is read once and written once. While DMA moves the next tile, the Scalar Engine sums the squares and the Vector
Engine scales: for 16-bit floats both take less time than the transfers.
"""

from dataclasses import dataclass
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import (
    PSUM_BLOCK,
    Rows,
    SumOverRows,
    blocks,
    in_stages,
    loaded,
    multiply_rows,
    multiply_tiles,
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
def rms_norm_kernel(x_TW, weight_W=None, eps=1e-6, offset=0.0, scales_in_float32=False):
    """`x * rsqrt(mean(x^2) + eps) * (offset + weight)`, (T, W) in the dtype of x.

    Args:
        x_TW: float32, bfloat16 or float16. A row takes 32 KiB at most: W up to 8192 in float32, 16384 in 16 bits.
        weight_W: of any float dtype; None for no scale.
        offset: added to the weight, as Gemma's 1.
        scales_in_float32: the normalised row is multiplied in float32 and rounded once; else it is rounded to the
            dtype of x first, and so is offset + weight, and the product again.

    Mean and root are in float32; eps above 0, and mean(x^2) below 2^97, where the Scalar Engine's root ends. Runs on
    NeuronCore-v3 and later, each core taking a part of the rows.
    """
    output_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    norm = _Norm.of(x_TW, weight_W, eps, offset, scales_in_float32)

    def load(rows):
        return rows, loaded(x_TW, rows)

    def measure(state):
        rows, x_PRW = state
        return rows, x_PRW, norm.reciprocal_rms(x_PRW)

    def scale(state):
        norm.store(output_TW, *state)

    in_stages(tiles(*x_TW.shape), (load, measure, scale), row_bytes(x_TW))
    return output_TW


@nki.jit
def add_rms_norm_kernel(x_TW, residual_TW, weight_W=None, eps=1e-6, offset=0.0, scales_in_float32=False):
    """`(rms_norm(x + residual), x + residual)`: the sum is rounded to the dtype of x, which that of residual is, too.

    Other arguments and limits as in `rms_norm_kernel`.
    """
    output_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    sum_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    norm = _Norm.of(x_TW, weight_W, eps, offset, scales_in_float32)

    def load(rows):
        return rows, loaded(x_TW, rows), loaded(residual_TW, rows)

    def add(state):
        rows, x_PRW, residual_PRW = state
        nisa.tensor_tensor(dst=x_PRW, data1=x_PRW, data2=residual_PRW, op=nl.add)
        nisa.dma_copy(dst=rows.of(sum_TW), src=x_PRW)
        return rows, x_PRW

    def measure(state):
        rows, x_PRW = state
        return rows, x_PRW, norm.reciprocal_rms(x_PRW)

    def scale(state):
        norm.store(output_TW, *state)

    in_stages(tiles(*x_TW.shape), (load, add, measure, scale), row_bytes(x_TW, residual_TW))
    return output_TW, sum_TW


@nki.jit
def rms_norm_backward_kernel(
    grad_TW,
    x_TW,
    weight_W=None,
    eps=1e-6,
    offset=0.0,
    scales_in_float32=False,
    grad_sum_TW=None,
    needs_weight_gradient=True,
):
    """Gradients of x, (T, W) in its dtype, and of a weight, where it is needed: `grad_x_TW` or
    `(grad_x_TW, grad_weight_W)`.

    Args:
        grad_TW: of the normalised rows, in the dtype of x.
        grad_sum_TW: added to the gradient of x; of `add_rms_norm`, x is the sum, and this is the gradient that it has
            from elsewhere.

    Other arguments and limits as in `rms_norm_kernel`. The gradient of the weight is float32. What the forward pass
    rounds to the dtype of x is rounded here as well, products with the weight included.
    """
    width = x_TW.shape[1]
    grad_x_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    norm = _Norm.of(x_TW, weight_W, eps, offset, scales_in_float32)
    sums = SumOverRows(width, norm.inner) if weight_W is not None and needs_weight_gradient else None

    def load(rows):
        return rows, loaded(grad_TW, rows), loaded(x_TW, rows)

    def measure(state):
        return *state, norm.reciprocal_rms(state[-1])

    def project(state):
        return *state, norm.projections(*state[1:], sums)

    def store(state):
        rows, grad_PRW, x_PRW, reciprocal_PR, projections_PRS = state
        state = grad_PRW, x_PRW, reciprocal_PR, negative_means(projections_PRS, width)
        further_PRW = None if grad_sum_TW is None else loaded(grad_sum_TW, rows)
        for columns in sections(width):
            result_PRC = norm.gradient(*state, columns)
            if further_PRW is not None:
                further_PRC = further_PRW[:, :, columns]
                nisa.tensor_tensor(dst=result_PRC, data1=result_PRC, data2=further_PRC, op=nl.add)
            nisa.dma_copy(dst=rows.of(grad_x_TW)[:, :, columns], src=result_PRC)

    in_stages(tiles(*x_TW.shape), (load, measure, project, store), row_bytes(grad_TW, x_TW))
    if sums is None:
        return grad_x_TW
    grad_weight_W = nl.ndarray((width,), dtype=nl.float32, buffer=nl.shared_hbm)
    sums.store(grad_weight_W)
    return grad_x_TW, grad_weight_W


@dataclass(frozen=True)
class _Norm:
    """What a call multiplies rows with, `scale_P1W` on all partitions or None for 1, and how it rounds.

    `inner` is the dtype of normalised rows before they are scaled.
    """

    scale_P1W: Any
    eps: float
    scales_in_float32: bool
    inner: Any

    @classmethod
    def of(cls, x_TW: Any, weight_W: Any, eps: float, offset: float, scales_in_float32: bool) -> "_Norm":
        inner = nl.float32 if scales_in_float32 else x_TW.dtype
        scale_P1W = None if weight_W is None else on_all_partitions(weight_W)
        if weight_W is not None and (offset != 0.0 or not (scales_in_float32 or weight_W.dtype == x_TW.dtype)):
            weight_P1W, scale_P1W = scale_P1W, nl.ndarray(scale_P1W.shape, dtype=inner)
            nisa.tensor_scalar(dst=scale_P1W, data=weight_P1W, op0=nl.add, operand0=float(offset))
        return cls(scale_P1W, float(eps), scales_in_float32, inner)

    def reciprocal_rms(self, x_PRW: Any) -> Any:
        """(P, R) float32: rsqrt(mean(x^2) + eps) of each row."""
        return reciprocal_roots(sums_of_rows(x_PRW, nl.square), x_PRW.shape[2], self.eps)

    def store(self, output_TW: Any, rows: Rows, x_PRW: Any, reciprocal_PR: Any) -> None:
        """Scale a tile of rows, and write it to `output_TW`."""
        output_PRW = nl.ndarray(x_PRW.shape, dtype=output_TW.dtype)
        scale = self._store_in_float32 if self.scales_in_float32 and self.scale_P1W is not None else self._store
        scale(output_PRW, x_PRW, reciprocal_PR)
        nisa.dma_copy(dst=rows.of(output_TW), src=output_PRW)

    def _store(self, output_PRW: Any, x_PRW: Any, reciprocal_PR: Any) -> None:
        for columns in sections(x_PRW.shape[2]):
            output_PRC = output_PRW[:, :, columns]
            multiply_rows(output_PRC, x_PRW[:, :, columns], reciprocal_PR)
            if self.scale_P1W is not None:
                multiply_tiles(
                    output_PRC, output_PRC, repeated_like(self.scale_P1W, x_PRW, columns), nisa.engine.vector
                )

    def _store_in_float32(self, output_PRW: Any, x_PRW: Any, reciprocal_PR: Any) -> None:
        _, each, width = x_PRW.shape
        for rows, columns in blocks(each, width, PSUM_BLOCK):
            x_PRC = x_PRW[:, rows, columns]
            normal_PRC = nl.ndarray(x_PRC.shape, dtype=nl.float32, buffer=nl.psum)
            _scale_rows(normal_PRC, x_PRC, reciprocal_PR[:, rows])
            scale_PRC = repeated_like(self.scale_P1W, x_PRC, columns)
            multiply_tiles(output_PRW[:, rows, columns], normal_PRC, scale_PRC, nisa.engine.vector)

    def projections(self, grad_PRW, x_PRW, reciprocal_PR, sums: SumOverRows | None) -> Any:
        """Sums of normalised x times its gradient, of each section. The weight's gradient is added to `sums`.

        GpSimd takes a part of the products from the Vector Engine, which is what has most to do.
        """
        partitions, each, width = x_PRW.shape
        parts = sections(width)
        totals_PRS = nl.ndarray((partitions, each, len(parts)), dtype=nl.float32)
        engine = nisa.engine.gpsimd if self.scales_in_float32 else nisa.engine.vector
        for start in range(0, len(parts), 2):  # two at a time: the Vector Engine has work while GpSimd multiplies
            normals = {}
            for index, columns in enumerate(parts[start : start + 2], start):
                normals[index] = nl.ndarray(x_PRW[:, :, columns].shape, dtype=self.inner)
                multiply_rows(normals[index], x_PRW[:, :, columns], reciprocal_PR)
            for index, normal_PRC in normals.items():
                columns, product_PRC = parts[index], nl.ndarray(normal_PRC.shape, dtype=self.inner)
                multiply_tiles(product_PRC, grad_PRW[:, :, columns], normal_PRC, nisa.engine.gpsimd)
                if sums is not None:
                    sums.add(product_PRC, columns)
                if self.scale_P1W is not None:
                    multiply_tiles(normal_PRC, product_PRC, repeated_like(self.scale_P1W, x_PRW, columns), engine)
                    product_PRC = normal_PRC
                sums_of_rows(product_PRC, nl.copy, sums_PR=totals_PRS[:, :, index])
        return totals_PRS

    def gradient(self, grad_PRW, x_PRW, reciprocal_PR, projection_PR, columns: slice) -> Any:
        """(P, R, C) in the dtype of x: (grad * scale + normalised x * projection) / rms."""
        scaled_PRC = grad_PRW[:, :, columns]
        if self.scale_P1W is not None:
            grad_PRC, scaled_PRC = scaled_PRC, nl.ndarray(scaled_PRC.shape, dtype=self.inner)
            multiply_tiles(scaled_PRC, grad_PRC, repeated_like(self.scale_P1W, x_PRW, columns), nisa.engine.gpsimd)
        normal_PRC = nl.ndarray(scaled_PRC.shape, dtype=self.inner)
        multiply_rows(normal_PRC, x_PRW[:, :, columns], reciprocal_PR)
        multiply_rows(normal_PRC, normal_PRC, projection_PR, nl.add, scaled_PRC)
        result_PRC = nl.ndarray(scaled_PRC.shape, dtype=x_PRW.dtype)
        _scale_rows(result_PRC, normal_PRC, reciprocal_PR)
        return result_PRC


def _scale_rows(dst_PRC: Any, data_PRC: Any, factor_PR: Any) -> None:
    """Each row times a number, by the Scalar Engine."""
    for row in range(data_PRC.shape[1]):
        factor = factor_PR[:, row : row + 1]
        nisa.activation(dst=dst_PRC[:, row], op=nl.copy, data=data_PRC[:, row], scale=factor)
