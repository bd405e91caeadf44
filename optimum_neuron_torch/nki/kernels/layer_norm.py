"""LayerNorm and its gradients.

Shape legend: T rows, W width, P partitions, R rows on one partition, C columns of a section or a block.

All in float32 until the result is rounded. The mean is subtracted first and squared then, so that a mean that is large
does not take the variance's digits. Of 16-bit rows the forward pass computes

    x * weight / deviation + (bias - mean / deviation * weight)

as all engines have a part of that: GpSimd multiplies, exactly, the Tensor Engine makes the bracket, which is a product
of vectors, and the Vector Engine scales and adds in one instruction. A mean of many deviations takes digits of float32
there, and a row of 16 bits has fewer: but for rows of one number c, off by up to |c| / sqrt(eps) / 2^23, results are
those of rows that are centred first, as those of float32 are, by the Scalar Engine.
"""

from dataclasses import dataclass
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import (
    BANK,
    PSUM_BLOCK,
    SECTION,
    TILE,
    Rows,
    SumOverRows,
    blocks,
    in_stages,
    itemsize,
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


# Bfloat16 numbers that a float32 is split into.
PIECES = 3
# Rows whose coefficients are transposed into one bank of PSUM.
TURNED = 8
# Rows are shared by two engines from here on: shorter ones are summed in one instruction for all of a partition.
SHARED_WIDTH = 512


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
    vectors = [vector for vector in (weight_W, bias_W) if vector is not None]
    is_short = bool(vectors) and all(itemsize(tensor.dtype) == 2 for tensor in (x_TW, *vectors))
    is_short = is_short and vectors[0].dtype == vectors[-1].dtype
    summed_by_scalar_engine = 0.6 if is_short else 0.125

    def load(rows):
        return rows, loaded(x_TW, rows)

    def average(state):
        return *state, _sums(state[-1], summed_by_scalar_engine)

    def measure(state):
        rows, x_PRW, sums_PRS = state
        return rows, x_PRW, _Moments.of(x_PRW, sums_PRS, eps)

    if is_short:
        affine = _Affine.of(x_TW, weight_W, bias_W)
        vectors.append(affine.vectors_KW)
        further = (affine.split, affine.turn, lambda state: affine.store(output_TW, *state))
    else:
        weight_P1W, bias_P1W = (None if vector is None else on_all_partitions(vector) for vector in (weight_W, bias_W))
        further = (lambda state: _store_scaled(output_TW, *state, weight_P1W, bias_P1W),)
    vector_bytes = sum(x_TW.shape[1] * itemsize(vector.dtype) for vector in vectors)
    in_stages(tiles(*x_TW.shape), (load, average, measure, *further), row_bytes(x_TW), vector_bytes)
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

    keeps = width <= TILE

    def load(rows):
        grad_PRW, x_PRW = loaded(grad_TW, rows), loaded(x_TW, rows)
        return rows, grad_PRW, x_PRW, _sums(x_PRW, 0.4)

    def measure(state):
        rows, grad_PRW, x_PRW, sums_PRS = state
        return rows, _Gradient(grad_PRW, x_PRW, _Moments.of(x_PRW, sums_PRS, eps), weight_P1W)

    def factors(state):
        state[1].make_factors(sums, keeps)
        return state

    def project(state):
        return *state, state[1].projections(sums)

    def store(state):
        rows, gradient, projections = state
        gradient.store(grad_x_TW, rows, projections)

    kept_bytes = row_bytes(grad_TW, x_TW)
    if keeps and itemsize(x_TW.dtype) == 2:
        kept_bytes = [kept_bytes] * 2 + [2 * TILE * itemsize(nl.float32)] * 2
    vector_bytes = 0 if weight_W is None else width * itemsize(weight_W.dtype)
    in_stages(tiles(*x_TW.shape), (load, measure, factors, project, store), kept_bytes, vector_bytes)
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
    def of(cls, x_PRW: Any, sums_PRS: Any, eps: float) -> "_Moments":
        """Of sums of parts; not added where they are made: an engine would wait there for the other one."""
        sums_PR = sums_PRS[:, :, 0] if sums_PRS.shape[2] == 1 else sums_of_rows(sums_PRS, nl.copy)
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


@dataclass(frozen=True)
class _Affine:
    """Weight and bias of 16 bits, at least one of them, and what the Tensor Engine adds to scaled rows.

    `vectors_KW` are what each row's coefficients are multiplied with: the weight (or 1) for each of the `PIECES` of
    minus mean over deviation, and the bias for a coefficient of 1.
    """

    weight_P1W: Any
    vectors_KW: Any

    @classmethod
    def of(cls, x_TW: Any, weight_W: Any, bias_W: Any) -> "_Affine":
        width, count = x_TW.shape[1], PIECES + (bias_W is not None)
        vectors_KW = nl.ndarray((count, width), dtype=bias_W.dtype if weight_W is None else weight_W.dtype)
        weight_P1W = None
        if weight_W is None:
            nisa.memset(dst=vectors_KW, value=1.0)
        else:
            weight_P1W = on_all_partitions(weight_W)
            nisa.dma_copy(dst=vectors_KW[:PIECES], src=weight_W.ap(pattern=[[0, PIECES], [1, width]]))
        if bias_W is not None:
            nisa.dma_copy(dst=vectors_KW[PIECES:], src=bias_W.ap(pattern=[[0, 1], [1, width]]))
        return cls(weight_P1W, vectors_KW)

    def split(self, state: Any) -> Any:
        """Coefficients (P, R, K) of the rows, by GpSimd: three bfloat16 hold all digits of a float32."""
        rows, x_PRW, moments = state
        shape = moments.shift_PR.shape
        pieces_PRK = nl.ndarray((*shape, self.vectors_KW.shape[0]), dtype=nl.bfloat16)
        nisa.memset(dst=pieces_PRK, value=1.0, engine=nisa.engine.gpsimd)
        whole_PR, rest_PR = (nl.ndarray(shape, dtype=nl.float32) for _ in range(2))
        for dst in (whole_PR, pieces_PRK[:, :, 0]):
            multiply_tiles(dst, moments.shift_PR, moments.reciprocal_PR, nisa.engine.gpsimd)
        for dst, data1, data2 in (
            (rest_PR, whole_PR, pieces_PRK[:, :, 0]),
            (pieces_PRK[:, :, 1], whole_PR, pieces_PRK[:, :, 0]),
            (pieces_PRK[:, :, 2], rest_PR, pieces_PRK[:, :, 1]),
        ):
            nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=nl.subtract, engine=nisa.engine.gpsimd)
        return rows, x_PRW, moments.reciprocal_PR, pieces_PRK

    def turn(self, state: Any) -> Any:
        """Coefficients with K on the partitions, (K, R, P), as the Tensor Engine takes them."""
        rows, x_PRW, reciprocal_PR, pieces_PRK = state
        partitions, each, count = pieces_PRK.shape
        pieces_KRP = nl.ndarray((count, each, partitions), dtype=nl.bfloat16)
        for some in sections(each, TURNED):
            in_psum = nl.ndarray(pieces_KRP[:, some].shape, dtype=nl.bfloat16, buffer=nl.psum)
            for index, row in enumerate(range(some.start, some.stop)):
                nisa.nc_transpose(dst=in_psum[:, index], data=pieces_PRK[:, row], engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=pieces_KRP[:, some], src=in_psum)
        return rows, x_PRW, reciprocal_PR, pieces_KRP

    def store(self, output_TW: Any, rows: Rows, x_PRW: Any, reciprocal_PR: Any, pieces_KRP: Any) -> None:
        output_PRW = nl.ndarray(x_PRW.shape, dtype=output_TW.dtype)
        for each, columns in blocks(*x_PRW.shape[1:], SECTION):
            scaled_PRC = x_PRC = x_PRW[:, each, columns]
            if self.weight_P1W is not None:
                scaled_PRC = nl.ndarray(x_PRC.shape, dtype=nl.float32)
                weight_PRC = repeated_like(self.weight_P1W, x_PRC, columns)
                multiply_tiles(scaled_PRC, x_PRC, weight_PRC, nisa.engine.gpsimd)
            for index, row in enumerate(range(each.start, each.stop)):
                for part in sections(columns.stop - columns.start, PSUM_BLOCK):
                    shape = (rows.partitions, 1, part.stop - part.start)
                    further_P1C = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
                    for bank in sections(part.stop - part.start, BANK):
                        start = columns.start + part.start
                        nisa.nc_matmul(
                            dst=further_P1C[:, 0, bank],
                            stationary=pieces_KRP[:, row],
                            moving=self.vectors_KW[:, start + bank.start : start + bank.stop],
                            accumulate=False,
                        )
                    output_P1C = output_PRW[:, row : row + 1, columns][:, :, part]
                    scaled_P1C = scaled_PRC[:, index : index + 1, part]
                    multiply_rows(output_P1C, scaled_P1C, reciprocal_PR[:, row : row + 1], nl.add, further_P1C)
        nisa.dma_copy(dst=rows.of(output_TW), src=output_PRW)


def _sums(x_PRW: Any, share: float) -> Any:
    """(P, R, S) float32: sums of the parts of each row. Of long rows the Scalar Engine sums about a `share`, the
    Vector Engine the rest."""
    partitions, each, width = x_PRW.shape
    first = int(width * share) if width >= SHARED_WIDTH else 0
    sums_PRS = nl.ndarray((partitions, each, 2 if first else 1), dtype=nl.float32)
    nisa.tensor_reduce(dst=sums_PRS[:, :, 0], op=nl.add, data=x_PRW[:, :, first:], axis=2)
    if first:
        sums_of_rows(x_PRW[:, :, :first], nl.copy, sums_PR=sums_PRS[:, :, 1])
    return sums_PRS


def _store_scaled(output_TW, rows: Rows, x_PRW, moments: _Moments, weight_P1W, bias_P1W) -> None:
    output_PRW = nl.ndarray(x_PRW.shape, dtype=output_TW.dtype)
    for each, columns in blocks(*x_PRW.shape[1:], PSUM_BLOCK):
        x_PRC, output_PRC = x_PRW[:, each, columns], output_PRW[:, each, columns]
        scaled_PRC = output_PRC if bias_P1W is None else nl.ndarray(x_PRC.shape, dtype=nl.float32)
        if weight_P1W is None:
            moments.normalise(scaled_PRC, x_PRC, each)
        else:
            moments.scale(scaled_PRC, x_PRC, each, repeated_like(weight_P1W, x_PRC, columns))
        if bias_P1W is not None:
            bias_PRC = repeated_like(bias_P1W, x_PRC, columns)
            nisa.tensor_tensor(dst=output_PRC, data1=scaled_PRC, data2=bias_PRC, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.dma_copy(dst=rows.of(output_TW), src=output_PRW)


@dataclass
class _Gradient:
    """A tile of the backward pass: gradients of the output and rows, (P, R, W), and the two factors of their products.

    The factors, `normal` rows and gradients of normal rows (`scaled`), are float32. Rows that are not too long keep
    them, from a stage of their own on, so that no engine waits for another within a stage; else they are made twice.
    """

    grad_PRW: Any
    x_PRW: Any
    moments: _Moments
    weight_P1W: Any
    normal_PRW: Any = None
    scaled_PRW: Any = None

    def make_factors(self, sums: Any, keeps: bool) -> None:
        """And add to `sums` what needs none."""
        whole = slice(0, self.x_PRW.shape[1]), slice(0, self.x_PRW.shape[2])
        if keeps:
            self.normal_PRW, self.scaled_PRW = self._normal(*whole), self._scaled(*whole)
        if sums is not None:
            sums[1].add(self.grad_PRW, whole[1])

    def _normal(self, rows: slice, columns: slice) -> Any:
        if self.normal_PRW is not None:
            return self.normal_PRW[:, rows, columns]
        x_PRC = self.x_PRW[:, rows, columns]
        normal_PRC = nl.ndarray(x_PRC.shape, dtype=nl.float32)
        self.moments.normalise(normal_PRC, x_PRC, rows)
        return normal_PRC

    def _scaled(self, rows: slice, columns: slice) -> Any:
        if self.scaled_PRW is not None:
            return self.scaled_PRW[:, rows, columns]
        grad_PRC = self.grad_PRW[:, rows, columns]
        if self.weight_P1W is None:
            return grad_PRC
        scaled_PRC = nl.ndarray(grad_PRC.shape, dtype=nl.float32)
        multiply_tiles(scaled_PRC, grad_PRC, repeated_like(self.weight_P1W, grad_PRC, columns), nisa.engine.gpsimd)
        return scaled_PRC

    def projections(self, sums: Any) -> tuple[Any, Any]:
        """Sums of the normal rows' gradients, and of these times the rows, (P, R, S) of S blocks of columns.

        Gradients of the vectors are added to `sums`. GpSimd multiplies, the Vector and the Scalar Engine sum.
        """
        partitions, each, width = self.x_PRW.shape
        totals = tuple(nl.ndarray((partitions, each, len(sections(width))), dtype=nl.float32) for _ in range(2))
        for rows, columns in blocks(each, width, SECTION):
            grad_PRC, index = self.grad_PRW[:, rows, columns], columns.start // SECTION
            normal_PRC, scaled_PRC = self._normal(rows, columns), self._scaled(rows, columns)
            if sums is not None:
                product_PRC = nl.ndarray(grad_PRC.shape, dtype=nl.float32)
                multiply_tiles(product_PRC, grad_PRC, normal_PRC, nisa.engine.gpsimd)
                sums[0].add(product_PRC, columns)
            if sums is None or self.weight_P1W is not None:
                product_PRC = nl.ndarray(grad_PRC.shape, dtype=nl.float32)
                multiply_tiles(product_PRC, scaled_PRC, normal_PRC, nisa.engine.gpsimd)
            nisa.tensor_reduce(dst=totals[0][:, rows, index], op=nl.add, data=scaled_PRC, axis=2)
            sums_of_rows(product_PRC, nl.copy, sums_PR=totals[1][:, rows, index])
        return totals

    def store(self, grad_x_TW: Any, rows: Rows, projections: Any) -> None:
        """(scaled - mean - normal * product) over the standard deviation: the Scalar Engine makes what to subtract."""
        _, each, width = self.x_PRW.shape
        reciprocal_PR = self.moments.reciprocal_PR
        terms = []
        for totals_PRS in projections:
            terms.append(negative_means(totals_PRS, width))
            multiply_tiles(terms[-1], terms[-1], reciprocal_PR, nisa.engine.vector)
        result_PRW = nl.ndarray(self.x_PRW.shape, dtype=grad_x_TW.dtype)
        for some, columns in blocks(each, width, SECTION):
            normal_PRC, scaled_PRC = self._normal(some, columns), self._scaled(some, columns)
            for index, row in enumerate(range(some.start, some.stop)):
                mean, product = (term_PR[:, row : row + 1] for term_PR in terms)
                for part in sections(columns.stop - columns.start, PSUM_BLOCK):
                    normal_P1C = normal_PRC[:, index : index + 1, part]
                    further_P1C = nl.ndarray(normal_P1C.shape, dtype=nl.float32, buffer=nl.psum)
                    nisa.activation(dst=further_P1C, op=nl.copy, data=normal_P1C, scale=product, bias=mean)
                    result_P1C = result_PRW[:, row : row + 1, columns][:, :, part]
                    scaled_P1C = scaled_PRC[:, index : index + 1, part]
                    multiply_rows(result_P1C, scaled_P1C, reciprocal_PR[:, row : row + 1], nl.add, further_P1C)
        nisa.dma_copy(dst=rows.of(grad_x_TW), src=result_PRW)
