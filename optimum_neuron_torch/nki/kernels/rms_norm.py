"""RMSNorm, alone or of a sum with the residual, and its gradients.

Shape legend: T rows, W width, P partitions, R rows on one partition, C columns of a section.

A row is read once and written once. While DMA moves the next tile, the Scalar Engine sums the squares and the Vector
Engine scales: for 16-bit floats both take less time than the transfers.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import Rows, SumOverRows, loaded, on_all_partitions, repeated, sections, tiles


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
    NeuronCore-v3 and later, each core taking half of the rows.
    """
    output_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    scale_P1W = _scale(weight_W, offset, scales_in_float32, x_TW.dtype)
    for rows in tiles(*x_TW.shape):
        _store_normalised(output_TW, rows, loaded(x_TW, rows), scale_P1W, eps, scales_in_float32)
    return output_TW


@nki.jit
def add_rms_norm_kernel(x_TW, residual_TW, weight_W=None, eps=1e-6, offset=0.0, scales_in_float32=False):
    """`(rms_norm(x + residual), x + residual)`: the sum is rounded to the dtype of x, which that of residual is, too.

    Other arguments and limits as in `rms_norm_kernel`.
    """
    output_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    sum_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    scale_P1W = _scale(weight_W, offset, scales_in_float32, x_TW.dtype)
    for rows in tiles(*x_TW.shape):
        x_PRW, residual_PRW = loaded(x_TW, rows), loaded(residual_TW, rows)
        nisa.tensor_tensor(dst=x_PRW, data1=x_PRW, data2=residual_PRW, op=nl.add)
        nisa.dma_copy(dst=rows.of(sum_TW), src=x_PRW)
        _store_normalised(output_TW, rows, x_PRW, scale_P1W, eps, scales_in_float32)
    return output_TW, sum_TW


def _scale(weight_W: Any, offset: float, scales_in_float32: bool, dtype: Any) -> Any:
    """(128, 1, W): what normalised rows are multiplied with, on all partitions; None where that is 1."""
    if weight_W is None:
        return None
    weight_P1W = on_all_partitions(weight_W)
    if offset == 0.0 and (scales_in_float32 or weight_W.dtype == dtype):
        return weight_P1W
    scale_P1W = nl.ndarray(weight_P1W.shape, dtype=nl.float32 if scales_in_float32 else dtype)
    nisa.tensor_scalar(dst=scale_P1W, data=weight_P1W, op0=nl.add, operand0=float(offset))
    return scale_P1W


def _store_normalised(output_TW, rows: Rows, x_PRW, scale_P1W, eps: float, scales_in_float32: bool) -> None:
    reciprocal_PR = _reciprocal_rms(x_PRW, eps)
    partitions, each, width = x_PRW.shape
    output_PRW = nl.ndarray(x_PRW.shape, dtype=output_TW.dtype)
    for columns in sections(width):
        scale = None if scale_P1W is None else repeated(scale_P1W, rows, columns)
        for row in range(each):
            operands = {"data": x_PRW[:, row, columns], "op0": nl.multiply, "operand0": reciprocal_PR[:, row : row + 1]}
            result = output_PRW[:, row, columns]
            if scale is not None and scales_in_float32:
                nisa.scalar_tensor_tensor(dst=result, **operands, op1=nl.multiply, operand1=scale[:, row])
            else:
                nisa.tensor_scalar(dst=result, **operands)
        if scale is not None and not scales_in_float32:
            results = output_PRW[:, :, columns]
            nisa.tensor_tensor(dst=results, data1=results, data2=scale, op=nl.multiply)
    nisa.dma_copy(dst=rows.of(output_TW), src=output_PRW)


def _reciprocal_rms(x_PRW: Any, eps: float) -> Any:
    """(P, R) float32: rsqrt(mean(x^2) + eps) of each row."""
    partitions, each, width = x_PRW.shape
    sums_PR = nl.ndarray((partitions, each), dtype=nl.float32)
    for row in range(each):
        parts = sections(width)
        for columns in parts:
            data = x_PRW[:, row, columns]
            # The squares themselves are not used; float32, as float16 would overflow.
            squares = nl.ndarray(data.shape, dtype=nl.float32)
            nisa.activation(
                dst=squares,
                op=nl.square,
                data=data,
                reduce_op=nl.add,
                reduce_cmd=nisa.reduce_cmd.reset_reduce if columns is parts[0] else nisa.reduce_cmd.reduce,
                reduce_res=sums_PR[:, row : row + 1] if columns is parts[-1] else None,
            )
    reciprocal_PR = nl.ndarray((partitions, each), dtype=nl.float32)
    nisa.activation(dst=reciprocal_PR, op=nl.rsqrt, data=sums_PR, scale=1.0 / width, bias=float(eps))
    return reciprocal_PR


@nki.jit
def rms_norm_backward_kernel(
    grad_TW, x_TW, weight_W=None, eps=1e-6, offset=0.0, scales_in_float32=False, grad_sum_TW=None
):
    """Gradients of x, (T, W) in its dtype, and, with a weight, of that: `grad_x_TW` or `(grad_x_TW, grad_weight_W)`.

    Args:
        grad_TW: of the normalised rows, in the dtype of x.
        grad_sum_TW: added to the gradient of x; of `add_rms_norm`, x is the sum, and this is the gradient that it has
            from elsewhere.

    Other arguments and limits as in `rms_norm_kernel`. The gradient of the weight is float32. What the forward pass
    rounds to the dtype of x is rounded here as well, products with the weight included.
    """
    width = x_TW.shape[1]
    inner = nl.float32 if scales_in_float32 else x_TW.dtype
    grad_x_TW = nl.ndarray(x_TW.shape, dtype=x_TW.dtype, buffer=nl.shared_hbm)
    scale_P1W = _scale(weight_W, offset, scales_in_float32, x_TW.dtype)
    sums = None if weight_W is None else SumOverRows(width, inner)
    for rows in tiles(*x_TW.shape):
        grad_PRW, x_PRW = loaded(grad_TW, rows), loaded(x_TW, rows)
        reciprocal_PR = _reciprocal_rms(x_PRW, eps)
        projection_PR = _projection(rows, grad_PRW, x_PRW, reciprocal_PR, scale_P1W, sums, inner)
        if grad_sum_TW is not None:
            further_PRW = loaded(grad_sum_TW, rows)
        for columns in sections(width):
            result_PRC = _gradient(rows, grad_PRW, x_PRW, reciprocal_PR, projection_PR, scale_P1W, inner, columns)
            if grad_sum_TW is not None:
                further_PRC = further_PRW[:, :, columns]
                nisa.tensor_tensor(dst=result_PRC, data1=result_PRC, data2=further_PRC, op=nl.add)
            nisa.dma_copy(dst=rows.of(grad_x_TW)[:, :, columns], src=result_PRC)
    if sums is None:
        return grad_x_TW
    grad_weight_W = nl.ndarray((width,), dtype=nl.float32, buffer=nl.shared_hbm)
    sums.store(grad_weight_W)
    return grad_x_TW, grad_weight_W


def _projection(rows: Rows, grad_PRW, x_PRW, reciprocal_PR, scale_P1W, sums: SumOverRows | None, inner) -> Any:
    """(P, R) float32: minus the mean of normalised x times its gradient. Adds the weight's gradient to `sums`."""
    partitions, each, width = x_PRW.shape
    parts = sections(width)
    totals_PS = nl.ndarray((partitions, each, len(parts)), dtype=nl.float32)
    for index, columns in enumerate(parts):
        grad_PRC = grad_PRW[:, :, columns]
        normal_PRC = _normalised(x_PRW[:, :, columns], reciprocal_PR, inner)
        product_PRC = nl.ndarray(grad_PRC.shape, dtype=inner)
        # GpSimd takes part of the work from the Vector Engine, which has more than the transfers take.
        nisa.tensor_tensor(dst=product_PRC, data1=grad_PRC, data2=normal_PRC, op=nl.multiply, engine=nisa.engine.gpsimd)
        if sums is not None:
            sums.add(product_PRC, columns)
        if scale_P1W is not None:
            scale_PRC = repeated(scale_P1W, rows, columns)
            scaled_PRC = nl.ndarray(grad_PRC.shape, dtype=inner)
            nisa.tensor_tensor(dst=scaled_PRC, data1=product_PRC, data2=scale_PRC, op=nl.multiply)
            product_PRC = scaled_PRC
        for row in range(each):
            nisa.activation(
                dst=nl.ndarray((partitions, columns.stop - columns.start), dtype=inner),
                op=nl.copy,
                data=product_PRC[:, row],
                reduce_op=nl.add,
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
                reduce_res=totals_PS[:, row, index : index + 1],
            )
    projection_PR = nl.ndarray((partitions, each), dtype=nl.float32)
    nisa.tensor_reduce(dst=projection_PR, op=nl.add, data=totals_PS, axis=2)
    nisa.tensor_scalar(dst=projection_PR, data=projection_PR, op0=nl.multiply, operand0=-1.0 / width)
    return projection_PR


def _gradient(rows: Rows, grad_PRW, x_PRW, reciprocal_PR, projection_PR, scale_P1W, inner, columns: slice) -> Any:
    """(P, R, C) in the dtype of x: (grad * scale - normalised x * mean) / rms."""
    scaled_PRC = grad_PRW[:, :, columns]
    if scale_P1W is not None:
        scale_PRC = repeated(scale_P1W, rows, columns)
        grad_PRC, scaled_PRC = scaled_PRC, nl.ndarray(scaled_PRC.shape, dtype=inner)
        nisa.tensor_tensor(dst=scaled_PRC, data1=grad_PRC, data2=scale_PRC, op=nl.multiply, engine=nisa.engine.gpsimd)
    normal_PRC = _normalised(x_PRW[:, :, columns], reciprocal_PR, inner)
    inside_PRC = nl.ndarray(scaled_PRC.shape, dtype=inner)
    result_PRC = nl.ndarray(scaled_PRC.shape, dtype=x_PRW.dtype)
    for row in range(rows.each):
        nisa.scalar_tensor_tensor(
            dst=inside_PRC[:, row],
            data=normal_PRC[:, row],
            op0=nl.multiply,
            operand0=projection_PR[:, row : row + 1],
            op1=nl.add,
            operand1=scaled_PRC[:, row],
        )
        nisa.activation(
            dst=result_PRC[:, row], op=nl.copy, data=inside_PRC[:, row], scale=reciprocal_PR[:, row : row + 1]
        )
    return result_PRC


def _normalised(x_PRC: Any, reciprocal_PR: Any, dtype: Any) -> Any:
    normal_PRC = nl.ndarray(x_PRC.shape, dtype=dtype)
    for row in range(x_PRC.shape[1]):
        reciprocal = reciprocal_PR[:, row : row + 1]
        nisa.tensor_scalar(dst=normal_PRC[:, row], data=x_PRC[:, row], op0=nl.multiply, operand0=reciprocal)
    return normal_PRC
