"""Softmax cross entropy over vocabularies of any size, and its gradient.

Shape legend: T rows, V vocabulary, P partitions, C entries of a section.

The vocabulary comes in sections. Forward, each is read once: a running maximum and a running sum of exponentials take
it in. The label's logit is gathered from HBM. Backward, a section is read and its gradient written, with the softmax
from the maximum and the sum of the forward pass: their log-sum-exp would be rounded to the digits of the maximum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import PARTITIONS, Rows, in_stages, itemsize, sections


# Entries that one DMA brings, as each transfer costs about 600 ns.
TILE = 4096
# Entries of which the softmax is in PSUM: float32 of them takes a quarter of it.
SECTION = 1024
LOWEST = -3.4028235e38  # float32's


@nki.jit
def cross_entropy_kernel(logits_TV, labels_T, label_smoothing=0.0, softcap=None):
    """`(loss_T, totals_T2)`, float32: minus the log of the label's share of the softmax of each row; minus the largest
    logit, and the sum of exp(logit - largest).

    Args:
        logits_TV: float32, bfloat16 or float16; any V below 2^24, and T * V below 2^31.
        labels_T: int32, of each row an entry in [0, V).
        label_smoothing: in [0, 1), the share of the label's weight that all entries have together.
        softcap: logits become softcap * tanh(logits / softcap) first.

    All in float32; totals are of what the softcap gives. A logit may be -inf, but not all of a row. Runs on
    NeuronCore-v3 and later, each core taking a part of the rows.
    """
    rows, vocabulary = logits_TV.shape
    loss_T = nl.ndarray((rows,), dtype=nl.float32, buffer=nl.shared_hbm)
    totals_T2 = nl.ndarray((rows, 2), dtype=nl.float32, buffer=nl.shared_hbm)

    def work():
        for part in _parts(rows):
            running = _Running.of(part, label_smoothing > 0.0)
            for section in sections(vocabulary, TILE):
                yield running, section

    def load(item):
        running, section = item
        if section.start == 0:
            running.label_P1 = _of_labels(logits_TV, _loaded_labels(labels_T, running.part), running.part)
        return running, _loaded(logits_TV, running.part, section), section.stop == vocabulary

    def compare(state):
        running, x_PC, is_last = state
        x_PC = _capped(x_PC, softcap)
        return running, x_PC, running.raise_maximum(x_PC), is_last

    def add(state):
        running, x_PC, maxima, is_last = state
        running.add(x_PC, *maxima)
        return running, is_last

    def finish(state):
        running, is_last = state
        if is_last:
            loss_P1 = running.loss(_capped(running.label_P1, softcap), label_smoothing, vocabulary)
            nisa.dma_copy(dst=_of_rows(loss_T, running.part), src=loss_P1)
            nisa.dma_copy(dst=_view(totals_T2, running.part, slice(0, 2)), src=running.totals())

    in_stages(work(), (load, compare, add, finish), TILE * (4 if softcap else itemsize(logits_TV.dtype)))
    return loss_T, totals_T2


@nki.jit
def cross_entropy_backward_kernel(grad_T, logits_TV, labels_T, totals_T2, label_smoothing=0.0, softcap=None):
    """The gradient of the logits, (T, V) in their dtype.

    Args:
        grad_T: float32, of each row's loss. totals_T2: of the forward pass.

    Other arguments and limits as in `cross_entropy_kernel`.
    """
    rows, vocabulary = logits_TV.shape
    grad_TV = nl.ndarray(logits_TV.shape, dtype=logits_TV.dtype, buffer=nl.shared_hbm)
    positions_PC = nl.ndarray((PARTITIONS, min(SECTION, vocabulary)), dtype=nl.float32)
    nisa.iota(dst=positions_PC, pattern=[[1, positions_PC.shape[1]]], offset=0, channel_multiplier=0)

    def work():
        for part in _parts(rows):
            row = _Row.of(part, grad_T, labels_T, totals_T2, label_smoothing, vocabulary, softcap)
            for section in sections(vocabulary, TILE):
                yield part, row, section

    def load(item):
        return *item, _loaded(logits_TV, item[0], item[2])

    def store(state):
        part, row, section, x_PC = state
        waiting = None
        for columns in [*sections(x_PC.shape[1], SECTION), None]:
            # The Scalar Engine has the next section's exponentials to do while the Vector Engine has this one.
            before, waiting = waiting, None
            if columns is not None:
                part_PC = x_PC[:, columns]
                waiting = part_PC, *row.differences(part_PC, section.start + columns.start, positions_PC)
            if before is not None:
                row.scale(*before)
        nisa.dma_copy(dst=_view(grad_TV, part, section), src=x_PC)

    in_stages(work(), (load, store), TILE * itemsize(logits_TV.dtype))
    return grad_TV


def _parts(rows: int) -> Iterator[Rows]:
    """The rows of this core, one on each partition."""
    cores, core = nl.num_programs(), nl.program_id(0)
    share = -(-rows // cores)
    for start in range(core * share, min(rows, (core + 1) * share), PARTITIONS):
        yield Rows(start, min(PARTITIONS, rows - start, (core + 1) * share - start), 1)


def _view(matrix_TV: Any, part: Rows, section: slice) -> Any:
    """(P, C) in HBM."""
    return matrix_TV[part.start : part.start + part.partitions, section]


def _loaded(matrix_TV: Any, part: Rows, section: slice) -> Any:
    source = _view(matrix_TV, part, section)
    tile = nl.ndarray(source.shape, dtype=matrix_TV.dtype)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def _of_rows(vector_T: Any, part: Rows) -> Any:
    """(P, 1) in HBM: a number of each row."""
    return vector_T.ap(pattern=[[1, part.partitions], [1, 1]], offset=part.start)


def _loaded_numbers(vector_T: Any, part: Rows) -> Any:
    """(P, 1), in float32."""
    tile = nl.ndarray((part.partitions, 1), dtype=nl.float32)
    nisa.dma_copy(dst=tile, src=_of_rows(vector_T, part))
    return tile


def _loaded_labels(labels_T: Any, part: Rows) -> Any:
    tile = nl.ndarray((part.partitions, 1), dtype=nl.int32)
    nisa.dma_copy(dst=tile, src=_of_rows(labels_T, part))
    return tile


def _of_labels(logits_TV: Any, labels_P1: Any, part: Rows) -> Any:
    """(P, 1): each row's logit of its label, gathered."""
    rows, vocabulary = logits_TV.shape
    index_P1 = nl.ndarray(labels_P1.shape, dtype=nl.int32)
    nisa.iota(dst=index_P1, pattern=[[1, 1]], offset=part.start * vocabulary, channel_multiplier=vocabulary)
    nisa.tensor_tensor(dst=index_P1, data1=index_P1, data2=labels_P1, op=nl.add)  # integers, on GpSimd: exact
    label_P1 = nl.ndarray(labels_P1.shape, dtype=logits_TV.dtype)
    entries = logits_TV.reshape((rows * vocabulary, 1))
    pattern = [[1, part.partitions], [1, 1]]
    nisa.dma_copy(dst=label_P1, src=entries.ap(pattern=pattern, vector_offset=index_P1, indirect_dim=0))
    return label_P1


def _capped(x: Any, softcap: float | None) -> Any:
    if softcap is None:
        return x
    capped = nl.ndarray(x.shape, dtype=nl.float32)
    nisa.activation(dst=capped, op=nl.tanh, data=x, scale=1.0 / softcap)
    nisa.tensor_scalar(dst=capped, data=capped, op0=nl.multiply, operand0=float(softcap))
    return capped


@dataclass
class _Running:
    """What has been seen of some rows, (P, 1) float32: minus the maximum, the sum of exp(x - maximum), and that of
    x - first, with minus the maximum of the first section, which is near to the others.

    Sums of x are None where they are not asked for. The maximum is a new tensor each time, as it runs ahead.
    """

    part: Rows
    negative_P1: Any
    sum_P1: Any
    total_P1: Any
    label_P1: Any = None
    first_P1: Any = None

    @classmethod
    def of(cls, part: Rows, needs_total: bool) -> "_Running":
        numbers = [nl.ndarray((part.partitions, 1), dtype=nl.float32) for _ in range(3)]
        for number, value in zip(numbers, (-LOWEST, 0.0, 0.0), strict=True):
            nisa.memset(dst=number, value=value)
        return cls(part, *numbers[:2], numbers[2] if needs_total else None)

    def raise_maximum(self, x_PC: Any) -> tuple[Any, Any]:
        """Minus the maxima before and after."""
        partitions, size = x_PC.shape
        if size % 2 == 0:
            # GpSimd compares halves: the Vector Engine alone would take longer than the transfers.
            half = size // 2
            larger_PC = nl.ndarray((partitions, half), dtype=x_PC.dtype)
            nisa.tensor_tensor(
                dst=larger_PC, data1=x_PC[:, :half], data2=x_PC[:, half:], op=nl.maximum, engine=nisa.engine.gpsimd
            )
            x_PC = larger_PC
        largest_P1, after_P1 = (nl.ndarray((partitions, 1), dtype=nl.float32) for _ in range(2))
        nisa.tensor_reduce(dst=largest_P1, op=nl.maximum, data=x_PC, axis=1, negate=True)
        before_P1, self.negative_P1 = self.negative_P1, after_P1
        nisa.tensor_tensor(dst=after_P1, data1=before_P1, data2=largest_P1, op=nl.minimum)
        if self.first_P1 is None:
            self.first_P1 = after_P1
        return before_P1, after_P1

    def add(self, x_PC: Any, before_P1: Any, after_P1: Any) -> None:
        """What is known as a sum of exp(x - maximum before) becomes one with the maximum after, with x."""
        added_P1 = _sum(x_PC, nl.exp, after_P1)
        factor_P1 = nl.ndarray(added_P1.shape, dtype=nl.float32)
        nisa.activation(dst=factor_P1, op=nl.exp, data=before_P1, scale=-1.0, bias=after_P1)
        nisa.scalar_tensor_tensor(
            dst=self.sum_P1, data=self.sum_P1, op0=nl.multiply, operand0=factor_P1, op1=nl.add, operand1=added_P1
        )
        if self.total_P1 is not None:
            nisa.tensor_tensor(
                dst=self.total_P1, data1=self.total_P1, data2=_sum(x_PC, nl.copy, self.first_P1), op=nl.add
            )

    def totals(self) -> Any:
        """(P, 2): minus the maximum, and the sum."""
        totals_P2 = nl.ndarray((self.sum_P1.shape[0], 2), dtype=nl.float32)
        for column, number_P1 in enumerate((self.negative_P1, self.sum_P1)):
            nisa.tensor_copy(dst=totals_P2[:, column : column + 1], src=number_P1)
        return totals_P2

    def loss(self, label_P1: Any, smoothing: float, vocabulary: int) -> Any:
        """log(sum) - (1 - smoothing) * (label - maximum) - smoothing * (mean - maximum).

        The maximum is taken off first, which rounds nothing, as in PyTorch.
        """
        loss_P1, below_P1 = (nl.ndarray(label_P1.shape, dtype=nl.float32) for _ in range(2))
        nisa.activation(dst=loss_P1, op=nl.log, data=self.sum_P1)
        nisa.tensor_tensor(dst=below_P1, data1=label_P1, data2=self.negative_P1, op=nl.add)
        terms = [(below_P1, smoothing - 1.0)]
        if self.total_P1 is not None:
            first_P1 = nl.ndarray(label_P1.shape, dtype=nl.float32)
            nisa.tensor_tensor(dst=first_P1, data1=self.negative_P1, data2=self.first_P1, op=nl.subtract)
            terms += [(first_P1, -smoothing), (self.total_P1, -smoothing / vocabulary)]
        for data, factor in terms:
            nisa.scalar_tensor_tensor(
                dst=loss_P1, data=data, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=loss_P1
            )
        return loss_P1


def _sum(x_PC: Any, op: Any, bias_P1: Any = None) -> Any:
    """(P, 1) float32: the sum of `op` of each row, to which a number was added."""
    sum_P1 = nl.ndarray((x_PC.shape[0], 1), dtype=nl.float32)
    nisa.activation(
        dst=nl.ndarray(x_PC.shape, dtype=nl.float32),
        op=op,
        data=x_PC,
        bias=bias_P1,
        reduce_op=nl.add,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_res=sum_P1,
    )
    return sum_P1


@dataclass(frozen=True)
class _Row:
    """What the gradient of each row needs, (P, 1) float32.

    The gradient is -grad / sum * (is_label * weight + share - exp(x - maximum)): weight and share are those of the
    label and of all entries, times the sum.
    """

    label_P1: Any
    negative_P1: Any
    weight_P1: Any
    share_P1: Any
    factor_P1: Any
    softcap: float | None

    @classmethod
    def of(cls, part, grad_T, labels_T, totals_T2, smoothing: float, vocabulary: int, softcap) -> "_Row":
        label, factor = (_loaded_numbers(vector, part) for vector in (labels_T, grad_T))
        totals_P2 = _loaded(totals_T2, part, slice(0, 2))
        negative, total = totals_P2[:, 0:1], totals_P2[:, 1:2]
        weight, share, reciprocal = (nl.ndarray(label.shape, dtype=nl.float32) for _ in range(3))
        nisa.tensor_scalar(dst=weight, data=total, op0=nl.multiply, operand0=1.0 - smoothing)
        nisa.tensor_scalar(dst=share, data=total, op0=nl.multiply, operand0=smoothing / vocabulary)
        nisa.reciprocal(dst=reciprocal, data=total)
        nisa.scalar_tensor_tensor(
            dst=factor, data=factor, op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=reciprocal
        )
        return cls(label, negative, weight, share, factor, softcap)

    def differences(self, x_PC: Any, start: int, positions_PC: Any) -> tuple[Any, Any]:
        """Of the entries from `start` on: what is in the brackets above, and what the softcap gives."""
        partitions, size = x_PC.shape
        capped_PC = _capped(x_PC, self.softcap)
        exponential_PC = nl.ndarray(x_PC.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.activation(dst=exponential_PC, op=nl.exp, data=capped_PC, bias=self.negative_P1)
        label_P1 = nl.ndarray((partitions, 1), dtype=nl.float32)
        nisa.tensor_scalar(dst=label_P1, data=self.label_P1, op0=nl.subtract, operand0=float(start))
        weights_PC, difference_PC = (nl.ndarray(x_PC.shape, dtype=nl.float32) for _ in range(2))
        nisa.tensor_scalar(
            dst=weights_PC,
            data=positions_PC[:partitions, :size],
            op0=nl.equal,
            operand0=label_P1,
            op1=nl.multiply,
            operand1=self.weight_P1,
        )
        nisa.scalar_tensor_tensor(
            dst=difference_PC,
            data=weights_PC,
            op0=nl.add,
            operand0=self.share_P1,
            op1=nl.subtract,
            operand1=exponential_PC,
        )
        return difference_PC, capped_PC

    def scale(self, x_PC: Any, difference_PC: Any, capped_PC: Any) -> None:
        """Entries become their gradients; by the Scalar Engine, as the Vector Engine has as much to do."""
        result_PC = x_PC if self.softcap is None else difference_PC
        nisa.activation(dst=result_PC, op=nl.copy, data=difference_PC, scale=self.factor_P1)
        if self.softcap is not None:
            _multiply_by_slope(x_PC, capped_PC, difference_PC, self.softcap)


def _multiply_by_slope(dst_PC: Any, capped_PC: Any, grad_PC: Any, softcap: float) -> None:
    """Times the softcap's slope, 1 - tanh^2, of the gradient of what it gave."""
    nisa.activation(dst=capped_PC, op=nl.square, data=capped_PC, scale=1.0 / softcap)
    nisa.tensor_scalar(dst=capped_PC, data=capped_PC, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    nisa.tensor_tensor(dst=dst_PC, data1=capped_PC, data2=grad_PC, op=nl.multiply)
