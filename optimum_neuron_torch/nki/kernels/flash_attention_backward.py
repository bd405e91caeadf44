"""The gradients of flash attention, an NKI kernel: probabilities again from the logsumexp, nothing of (Q, K) in HBM.

How: keys are taken in blocks of up to 512. For each block the queries pass by in tiles of 128, and the gradients of
the block's keys and values grow in PSUM; those of the queries grow in SBUF, in float32, block by block. Queries that
share a key head, of all its query heads, are one list; where SBUF does not hold what belongs to all of them it is cut
into sections, and the gradients of keys and values are summed over sections in HBM, in float32.

The engines run side by side, each in the order of the program. So a tile against a block, a step, is done in parts,
and between them come the parts of other steps:

    step i      Tensor Engine   scores               Scalar Engine   probabilities
    step i - 1  Tensor Engine   gradients of those   Vector Engine   gradients of the scores
    step i - 2  Tensor Engine   to the sums of the block's values and keys
                DMA             transposes the gradients of the scores; the Tensor Engine does where DMA has no time
    step i - 7  Tensor Engine   product with the keys, which the Vector Engine adds to the sums of the queries

Two cores share the work by (batch row, key head). Where one of those is left over, as with a single head, the cores
take its key blocks in turns and exchange the sums for the queries through HBM.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size of q and k, E head size of v;
on chip N tiles of 128 queries, M tiles of 128 keys, C parts of up to 128 of a head size; the partition comes first.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from .flash_attention_backward_plan import (
    TILE,
    Block,
    Problem,
    QueryTile,
    Section,
    Step,
    itemsize,
    key_sums,
    keys_seen,
    parts_of,
    pieces_of,
    plan,
    runs_of,
)
from .heads import LOWEST, broadcast, ceil, check_heads


LOAD_TILES = 8  # one transfer: large enough to be efficient, small enough to start early
GROUP_TILES = 4  # tiles whose vectors one instruction makes
ZERO_KEYS = 2048
# In steps: what is issued long before its use finds time between DMA's transposes, a transfer every few steps.
KEYS_AHEAD = 8
QUERIES_AHEAD = 100
STEPS_PER_LOAD = 3
STEPS_TO_SCORES = 1  # from a tile's probabilities to the gradients of its scores
STEPS_TO_KEYS = 2  # from there, and from the probabilities, to the gradients of keys and values


@nki.jit
def flash_attention_backward_kernel(
    grad_BHQE,
    query_BHQD,
    key_BGKD,
    value_BGKE,
    output_BHQE,
    logsumexp_BHQ,
    ranges_BQ2=None,
    mask_BHQK=None,
    bias_BHQK=None,
    sinks_H=None,
    scale=1.0,
    softcap=None,
    is_causal=False,
    needs_bias_gradient=False,
    weights_BHQ=None,
):
    """Gradients of `flash_attention_kernel`, whose arguments, output and logsumexp these are.

    Args:
        grad_BHQE: of the output. It, query_BHQD, key_BGKD, value_BGKE and output_BHQE have one dtype: float32,
            bfloat16 or float16. H is a multiple of G; D and E are at most 256; every length is 1 or more.
        logsumexp_BHQ: float32, of all logits of a query, its sink included; of a query that sees nothing -inf, or a
            number so low that no logit is.
        ranges_BQ2: int32, the keys [start, end) that a query sees; batch 1 or B. Below 2**24.
        mask_BHQK: uint8, not 0 where a query sees a key; batch 1 or B, heads 1 or H.
        bias_BHQK: float32, bfloat16 or float16, finite; batch 1 or B, heads 1 or H.
        sinks_H: float32, a logit of each head.
        scale: of the products, positive. softcap: positive, or None.
        is_causal: a query sees the keys up to its own place; Q is K.
        weights_BHQ: float32, beside a bias: what the scaled and capped scores of a query count in its probabilities,
            0 where the bias is so large that it takes them up; batch 1 or B, heads 1 or H. None is 1. What goes from
            the scores on to query and key does not change with it.

    Returns:
        grad_query_BHQD, grad_key_BGKD, grad_value_BGKE in the dtype of the inputs; with needs_bias_gradient
        grad_bias_BHQK, float32, of every batch row and head; with sinks grad_sinks_BH, float32, of every batch row.

    Products are of the inputs' dtype with sums in float32; probabilities and their gradients are rounded to it before
    they are multiplied. A query that sees no key adds nothing anywhere. The logsumexp is a float32: where logits lift
    it to 1e5, probabilities are good to about 1%.
    """
    problem = Problem(
        grad_BHQE,
        query_BHQD,
        key_BGKD,
        value_BGKE,
        output_BHQE,
        logsumexp_BHQ,
        ranges_BQ2,
        mask_BHQK,
        bias_BHQK,
        sinks_H,
        float(scale),
        None if softcap is None else float(softcap),
        is_causal,
        needs_bias_gradient,
        weights_BHQ,
    )
    _check(problem)
    gradients = _allocate_gradients(problem)
    # Engines work in the order of the instructions. So each step is cut where one would wait for what the others make
    # of its last result, and has the parts of other steps in between.
    steps = plan(problem)
    to_queries = _steps_to_queries(problem)
    for number in range(len(steps) + to_queries):
        if number < len(steps):
            _load_ahead(problem, steps, number, steps[max(0, number - to_queries)].section)
            _find_probabilities(problem, steps[number])
        if 0 <= number - STEPS_TO_SCORES < len(steps):
            _differentiate_scores(problem, gradients, steps[number - STEPS_TO_SCORES])
        if 0 <= number - STEPS_TO_KEYS < len(steps):
            _add_to_keys(problem, gradients, steps[number - STEPS_TO_KEYS])
        if 0 <= number - to_queries:
            _add_to_queries(problem, gradients, steps[number - to_queries])
    return tuple(gradient for gradient in gradients if gradient is not None)


class _Gradients(NamedTuple):
    """In HBM, what the kernel returns; None is left out."""

    query_BHQD: Any
    key_BGKD: Any
    value_BGKE: Any
    bias_BHQK: Any
    sinks_BH: Any


def _check(problem: Problem) -> None:
    check_heads(problem.query_BHQD, problem.key_BGKD, problem.value_BGKE, problem.is_causal)
    batch, heads, queries, _ = problem.query_BHQD.shape
    value_depth = problem.value_depth
    expected = {
        "grad_BHQE": (problem.grad_BHQE, (batch, heads, queries, value_depth)),
        "output_BHQE": (problem.output_BHQE, (batch, heads, queries, value_depth)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape or tensor.dtype != problem.dtype:
            raise ValueError(
                f"{name} is {tensor.dtype}{list(tensor.shape)}; beside query_BHQD, {problem.dtype}"
                f"{list(problem.query_BHQD.shape)}, it has to be {problem.dtype}{list(shape)}"
            )
    if problem.scale <= 0 or (problem.softcap is not None and problem.softcap <= 0):
        raise ValueError(f"scale={problem.scale} and softcap={problem.softcap} have to be positive")


def _allocate_gradients(problem: Problem) -> _Gradients:
    query, key, value = problem.query_BHQD, problem.key_BGKD, problem.value_BGKE
    bias = sinks = None
    if problem.needs_bias_gradient:
        bias = nl.ndarray((*query.shape[:3], problem.keys), nl.float32, buffer=nl.shared_hbm)
    if problem.sinks_H is not None:
        sinks = nl.ndarray(tuple(query.shape[:2]), nl.float32, buffer=nl.shared_hbm)
    like = [nl.ndarray(tuple(tensor.shape), tensor.dtype, buffer=nl.shared_hbm) for tensor in (query, key, value)]
    return _Gradients(*like, bias, sinks)


# What is loaded


class _Queries(NamedTuple):
    """Of a section."""

    query_QND: Any
    query_DCQ: Any
    grad_QNE: Any
    grad_ECQ: Any
    output_QNE: Any
    logsumexp_QN1: Any
    ranges_QN2: Any
    weights_QN1: Any
    # Made of these, a group of tiles at a time.
    delta_QN: Any  # of each query, the sum of grad * output
    offset_QN: Any  # what its probabilities' exponents begin with: - logsumexp
    bounds_QN2: Any  # the first key that it sees, and one behind the last
    query_grad_QND: Any


class _Keys(NamedTuple):
    """Of a block."""

    key_KMD: Any
    key_DCK: Any
    value_ECK: Any


def _load_ahead(problem: Problem, steps: list[Step], number: int, oldest: Section) -> None:
    """Loads what this step needs, and some of what steps to come need: no more than the next section's queries."""
    step = steps[number]
    for each in (step, steps[min(number + KEYS_AHEAD, len(steps) - 1)]):
        if each.block is not None and each.block.loaded is None:
            each.block.loaded = _load_keys(problem, each.block)
    section = step.section
    if section.loading is None:
        section.loading = _load_queries(problem, section)
    needed = len(section.tiles) if step.tile is None else step.tile.place + 1
    while section.arrived < needed:
        next(section.loading)
    next(section.loading, None)
    following = steps[min(number + QUERIES_AHEAD, len(steps) - 1)].section
    if following.number > oldest.number + 1 or number % STEPS_PER_LOAD:
        return
    if following.loading is None:
        following.loading = _load_queries(problem, following)
    next(following.loading, None)


def _load_queries(problem: Problem, section: Section) -> Iterator[None]:
    """Issues one transfer after the other; the first tiles have all of theirs before the next ones have any."""
    count, dtype, batch = len(section.tiles), problem.dtype, section.unit.batch
    depth, value_depth = problem.depth, problem.value_depth
    loaded = section.loaded = _Queries(
        query_QND=nl.ndarray((TILE, count, depth), dtype),
        query_DCQ=_transposed(depth, count * TILE, dtype),
        grad_QNE=nl.ndarray((TILE, count, value_depth), dtype),
        grad_ECQ=_transposed(value_depth, count * TILE, dtype),
        output_QNE=nl.ndarray((TILE, count, value_depth), dtype),
        logsumexp_QN1=nl.ndarray((TILE, count, 1), nl.float32),
        ranges_QN2=None if problem.ranges_BQ2 is None else nl.ndarray((TILE, count, 2), nl.int32),
        weights_QN1=None if problem.weights_BHQ is None else nl.ndarray((TILE, count, 1), nl.float32),
        delta_QN=nl.ndarray((TILE, count), nl.float32),
        offset_QN=nl.ndarray((TILE, count), nl.float32),
        bounds_QN2=None if problem.ranges_BQ2 is None else nl.ndarray((TILE, count, 2), nl.float32),
        query_grad_QND=nl.ndarray((TILE, count, depth), nl.float32),
    )
    if any(tile.rows < TILE for tile in section.tiles):
        # Rows that no query has: they count for nothing where rows are summed.
        nisa.memset(dst=loaded.offset_QN, value=LOWEST)
        nisa.memset(dst=loaded.delta_QN, value=0.0)
    for head, start, rows, place in runs_of(section.tiles, LOAD_TILES):
        _load_transposed(loaded.query_DCQ, problem.query_BHQD[batch, head], start, rows, place)
        yield
        _load_transposed(loaded.grad_ECQ, problem.grad_BHQE[batch, head], start, rows, place)
        yield
        logsumexp_Q1 = problem.logsumexp_BHQ[batch, head].reshape((problem.queries, 1))
        _load_rows(loaded.logsumexp_QN1, logsumexp_Q1, start, rows, place)
        yield
        if problem.ranges_BQ2 is not None:
            ranges_Q2 = problem.ranges_BQ2[batch if problem.ranges_BQ2.shape[0] > 1 else 0]
            _load_rows(loaded.ranges_QN2, ranges_Q2, start, rows, place)
            yield
        if problem.weights_BHQ is not None:
            weights_BHQ = problem.weights_BHQ
            weights_Q = weights_BHQ[broadcast(weights_BHQ, 0, batch), broadcast(weights_BHQ, 1, head)]
            _load_rows(loaded.weights_QN1, weights_Q.reshape((problem.queries, 1)), start, rows, place)
            yield
        _load_rows(loaded.grad_QNE, problem.grad_BHQE[batch, head], start, rows, place)
        yield
        _load_rows(loaded.output_QNE, problem.output_BHQE[batch, head], start, rows, place)
        yield
        _load_rows(loaded.query_QND, problem.query_BHQD[batch, head], start, rows, place)
        section.arrived = place + ceil(rows, TILE)
        yield


def _load_keys(problem: Problem, block: Block) -> _Keys:
    unit, dtype, rows = block.section.unit, problem.dtype, block.keys
    key_KD = problem.key_BGKD[unit.batch, unit.group]
    value_KE = problem.value_BGKE[unit.batch, unit.group]
    chunks = ceil(rows, TILE)
    loaded = _Keys(
        key_KMD=nl.ndarray((TILE, chunks, problem.depth), dtype),
        key_DCK=_transposed(problem.depth, rows, dtype),
        value_ECK=_transposed(problem.value_depth, rows, dtype),
    )
    _load_transposed(loaded.key_DCK, key_KD, block.start, rows, 0)
    _load_transposed(loaded.value_ECK, value_KE, block.start, rows, 0)
    _load_rows(loaded.key_KMD, key_KD, block.start, rows, 0)
    return loaded


def _load_rows(dst_PNX: Any, src_RX: Any, start: int, rows: int, place: int) -> None:
    """Rows from `start` on, 128 of them beside each other, to the tiles from `place` on."""
    for partitions, first, stop in pieces_of(rows, LOAD_TILES):
        piece = src_RX[start + first * TILE : start + first * TILE + partitions * (stop - first)]
        piece_PNX = piece.reshape_dim(0, (stop - first, partitions)).permute((1, 0, 2))
        nisa.dma_copy(dst=dst_PNX[0:partitions, place + first : place + stop], src=piece_PNX)


def _load_transposed(dst_XCR: Any, src_RX: Any, start: int, rows: int, place: int) -> None:
    """Rows from `start` on as columns, from those of the tile `place` on."""
    for part, (first, size) in enumerate(parts_of(src_RX.shape[1])):
        if itemsize(src_RX.dtype) == 2:
            for row in range(0, rows, LOAD_TILES * TILE):
                count = min(LOAD_TILES * TILE, rows - row)
                src = src_RX[start + row : start + row + count, first : first + size]
                column = place * TILE + row
                nisa.dma_transpose(dst=dst_XCR[0:size, part, column : column + count], src=src)
            continue
        # Transposes by DMA are of elements of two bytes: the Tensor Engine does the others.
        for partitions, tile, _ in pieces_of(rows, 1):
            row, column = start + tile * TILE, (place + tile) * TILE
            rows_RX = nl.ndarray((partitions, size), src_RX.dtype)
            nisa.dma_copy(dst=rows_RX, src=src_RX[row : row + partitions, first : first + size])
            columns_XR = nl.ndarray((size, partitions), src_RX.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=columns_XR, data=rows_RX, engine=nisa.engine.tensor)
            nisa.tensor_copy(
                dst=dst_XCR[0:size, part, column : column + partitions], src=columns_XR, engine=nisa.engine.vector
            )


def _prepare(problem: Problem, section: Section, tile: QueryTile) -> None:
    """What the engines make of a group of tiles, when the first of them needs it: engines wait in their order."""
    loaded = section.loaded
    stop = tile.place + 1
    while stop % GROUP_TILES and stop < section.arrived and section.tiles[stop].rows == tile.rows == TILE:
        stop += 1
    section.prepared.update(range(tile.place, stop))
    group = (slice(0, tile.rows), slice(tile.place, stop))
    _negate_logsumexp(loaded.offset_QN[group], loaded.logsumexp_QN1[group])
    if problem.weights_BHQ is not None:
        weights_QN = loaded.weights_QN1[group][:, :, 0]
        factor = problem.scale if problem.softcap is None else problem.softcap
        nisa.tensor_scalar(dst=weights_QN, data=weights_QN, op0=nl.multiply, operand0=factor)
    if problem.ranges_BQ2 is not None:
        nisa.tensor_copy(dst=loaded.bounds_QN2[group], src=loaded.ranges_QN2[group])
        for each in section.tiles[tile.place : stop] if problem.is_causal else ():
            _leave_out_later(loaded.bounds_QN2[0 : each.rows, each.place, 1:2], each.start)
    products_QNE = nl.ndarray((tile.rows, stop - tile.place, problem.value_depth), nl.float32)
    # GpSimd has nothing else to do.
    nisa.tensor_tensor(
        dst=products_QNE,
        data1=loaded.grad_QNE[group],
        data2=loaded.output_QNE[group],
        op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )
    nisa.tensor_reduce(dst=loaded.delta_QN[group], data=products_QNE, op=nl.add, axis=2)


def _negate_logsumexp(offset_QN: Any, logsumexp_QN1: Any) -> None:
    """But 0 for a query that sees nothing, so that exp() of its masked scores is 0 and not exp(inf - inf)."""
    values_QN = logsumexp_QN1[:, :, 0]
    lowest_QN = nl.ndarray(values_QN.shape, nl.float32)
    nisa.tensor_scalar(dst=lowest_QN, data=values_QN, op0=nl.less, operand0=LOWEST, op1=nl.multiply, operand1=LOWEST)
    nisa.tensor_scalar(dst=offset_QN, data=values_QN, op0=nl.maximum, operand0=LOWEST)
    nisa.tensor_tensor(dst=offset_QN, data1=lowest_QN, data2=offset_QN, op=nl.subtract)


def _leave_out_later(stop_Q1: Any, start: int) -> None:
    """A query sees no key after its own place."""
    after_Q1 = nl.ndarray(stop_Q1.shape, nl.float32)
    nisa.iota(dst=after_Q1, pattern=[[1, 1]], offset=start + 1, channel_multiplier=1)
    nisa.tensor_tensor(dst=stop_Q1, data1=stop_Q1, data2=after_Q1, op=nl.minimum)


# A step: probabilities, and the gradient of the scores


def _find_probabilities(problem: Problem, step: Step) -> None:
    """exp(logits - logsumexp) of a tile of queries over a block of keys; of keys that are not seen it may be anything,
    where _leave_out_unseen is to come."""
    section, tile = step.section, step.tile
    if tile is None:
        return
    if tile.place not in section.prepared:
        _prepare(problem, section, tile)
    if problem.mask_BHQK is not None:
        step.mask_QK = _load_part(problem.mask_BHQK, step)
    scores_QK = _product(section.loaded.query_DCQ, step.block.loaded.key_DCK, problem.depth, step)
    logits_QK, factor = _logits(problem, step, scores_QK)
    step.probabilities_QK = nl.ndarray(scores_QK.shape, problem.dtype)
    nisa.activation(
        dst=step.probabilities_QK,
        op=nl.exp,
        data=logits_QK,
        scale=factor,
        bias=section.loaded.offset_QN[0 : tile.rows, tile.place : tile.place + 1],
    )


def _product(rows_XCQ: Any, keys_XCK: Any, depth: int, step: Step) -> Any:
    """Of each query with each key, over the parts of the head size."""
    product_QK = nl.ndarray((step.tile.rows, step.seen), nl.float32, buffer=nl.psum)
    for part, (_, size) in enumerate(parts_of(depth)):
        nisa.nc_matmul(
            dst=product_QK,
            stationary=rows_XCQ[0:size, part, step.tile.columns],
            moving=keys_XCK[0:size, part, 0 : step.seen],
            accumulate=part > 0,
        )
    return product_QK


def _logits(problem: Problem, step: Step, scores_QK: Any) -> tuple[Any, float]:
    """And a factor that they still lack."""
    if problem.softcap is not None:
        logits_QK, factor = nl.ndarray(scores_QK.shape, nl.float32), problem.softcap
        nisa.activation(dst=logits_QK, op=nl.tanh, data=scores_QK, scale=problem.scale / problem.softcap)
        # In PSUM, from where the Vector Engine reads them at the same time as the probabilities.
        step.squares_QK = nl.ndarray(scores_QK.shape, nl.float32, buffer=nl.psum)
        nisa.activation(dst=step.squares_QK, op=nl.square, data=logits_QK)
    else:
        logits_QK, factor = scores_QK, problem.scale
    if problem.bias_BHQK is not None:
        bias_QK = _load_part(problem.bias_BHQK, step)
        if problem.weights_BHQ is not None:
            factor = step.section.loaded.weights_QN1[0 : step.tile.rows, step.tile.place]
        biased_QK = nl.ndarray(scores_QK.shape, nl.float32)
        nisa.scalar_tensor_tensor(
            dst=biased_QK, data=logits_QK, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=bias_QK
        )
        logits_QK, factor = biased_QK, 1.0
    if problem.ranges_BQ2 is not None:
        logits_QK = _select_ranges(step, logits_QK)
    return logits_QK, factor


def _select_ranges(step: Step, logits_QK: Any) -> Any:
    bounds_Q2 = step.section.loaded.bounds_QN2[0 : step.tile.rows, step.tile.place]
    selected_QK = nl.ndarray(logits_QK.shape, nl.float32)
    nisa.range_select(
        dst=selected_QK,
        on_true_tile=logits_QK,
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=bounds_Q2[:, 0:1],
        bound1=bounds_Q2[:, 1:2],
        range_start=step.block.start,
        on_false_value=LOWEST,
    )
    return selected_QK


def _leave_out_unseen(problem: Problem, step: Step) -> None:
    """By the mask, and by the order where ranges have not done it."""
    if step.mask_QK is not None:
        nisa.tensor_copy_predicated(dst=step.probabilities_QK, src=0.0, predicate=step.mask_QK, reverse_pred=True)
    first = max(0, step.tile.start - step.block.start)
    if problem.is_causal and problem.ranges_BQ2 is None and step.seen > first:
        last_QK = step.probabilities_QK[:, first : step.seen]
        nisa.affine_select(
            dst=last_QK,
            pattern=[[-1, step.seen - first]],
            offset=step.tile.start - step.block.start - first,
            channel_multiplier=1,
            on_true_tile=last_QK,
            on_false_value=0.0,
            cmp_op=nl.greater_equal,
        )


def _load_part(tensor_BHQK: Any, step: Step) -> Any:
    """What a mask or bias has for a tile of queries and the keys that it may see."""
    batches, heads = tensor_BHQK.shape[:2]
    batch, head = step.section.unit.batch if batches > 1 else 0, step.tile.head if heads > 1 else 0
    start, tile = step.block.start, step.tile
    part_QK = nl.ndarray((tile.rows, step.seen), tensor_BHQK.dtype)
    nisa.dma_copy(
        dst=part_QK,
        src=tensor_BHQK[batch, head, tile.start : tile.start + tile.rows, start : start + step.seen],
    )
    return part_QK


def _differentiate_scores(problem: Problem, gradients: _Gradients, step: Step) -> None:
    """probabilities * (grads - delta): of the logits, so of the bias; through the softcap, of the scaled scores."""
    if step.tile is None:
        return
    grads_QK = _product(step.section.loaded.grad_ECQ, step.block.loaded.value_ECK, problem.value_depth, step)
    _leave_out_unseen(problem, step)
    slope_QK = step.probabilities_QK
    if step.squares_QK is not None:
        slope_QK = nl.ndarray(grads_QK.shape, nl.float32)
        nisa.scalar_tensor_tensor(
            dst=slope_QK,
            data=step.squares_QK,
            op0=nl.subtract,
            operand0=1.0,
            op1=nl.multiply,
            operand1=step.probabilities_QK,
        )
    step.score_grads_QK = nl.ndarray(grads_QK.shape, problem.dtype)
    _multiply_centred(step, step.score_grads_QK, grads_QK, slope_QK, is_negative=step.squares_QK is not None)
    if gradients.bias_BHQK is not None:
        bias_grads_QK = nl.ndarray(grads_QK.shape, nl.float32)
        _multiply_centred(step, bias_grads_QK, grads_QK, step.probabilities_QK, is_negative=False)
        _store_bias_gradient(gradients, step, bias_grads_QK)


def _multiply_centred(step: Step, dst_QK: Any, grads_QK: Any, slope_QK: Any, is_negative: bool) -> None:
    """(grads - delta) * slope, of a slope whose sign may be the other one."""
    tile = step.tile
    nisa.scalar_tensor_tensor(
        dst=dst_QK,
        data=grads_QK,
        op0=nl.subtract,
        operand0=step.section.loaded.delta_QN[0 : tile.rows, tile.place : tile.place + 1],
        reverse0=is_negative,
        op1=nl.multiply,
        operand1=slope_QK,
    )


def _store_bias_gradient(gradients: _Gradients, step: Step, bias_grads_QK: Any) -> None:
    tile, block = step.tile, step.block
    rows_QK = gradients.bias_BHQK[step.section.unit.batch, tile.head, tile.start : tile.start + tile.rows]
    nisa.dma_copy(dst=rows_QK[:, block.start : block.start + step.seen], src=bias_grads_QK)


def _clear_bias_gradient(problem: Problem, gradients: _Gradients, section: Section) -> None:
    """What no step passes: the keys that order hides from whole tiles."""
    zeros_QK = nl.ndarray((TILE, min(problem.keys, ZERO_KEYS)), nl.float32)
    nisa.memset(dst=zeros_QK, value=0.0)
    for tile in section.tiles:
        rows_QK = gradients.bias_BHQK[section.unit.batch, tile.head, tile.start : tile.start + tile.rows]
        for start in range(keys_seen(problem, tile, 0, problem.keys), problem.keys, ZERO_KEYS):
            count = min(ZERO_KEYS, problem.keys - start)
            nisa.dma_copy(dst=rows_QK[:, start : start + count], src=zeros_QK[0 : tile.rows, 0:count])


# A step: its products


def _add_to_keys(problem: Problem, gradients: _Gradients, step: Step) -> None:
    """To the gradients of the block's keys and values; and the gradients of the scores, transposed."""
    block, tile = step.block, step.tile
    if tile is None:
        return
    queries = step.section.loaded
    if block.sums is None:
        block.sums = key_sums(problem, block.keys, nl.psum)
    begun, block.chunks = block.chunks, max(block.chunks, ceil(step.seen, TILE))
    _add_chunks(block.sums.value_KME, step, step.probabilities_QK, queries.grad_QNE, begun)
    if step.ends_block:
        _finish_values(problem, gradients, block)
    _add_chunks(block.sums.key_KMD, step, step.score_grads_QK, queries.query_QND, begun)
    if step.ends_block:
        _finish_keys(problem, gradients, block)
    step.score_grads_KMQ = _transpose_chunks(problem, step)


def _add_chunks(sums_KMX: Any, step: Step, left_QK: Any, right_QNX: Any, begun: int) -> None:
    """left.T @ right; the chunks of the block from `begun` on have no sums yet."""
    for partitions, chunk, _ in pieces_of(step.seen, 1):
        nisa.nc_matmul(
            dst=sums_KMX[0:partitions, chunk],
            stationary=left_QK[:, chunk * TILE : chunk * TILE + partitions],
            moving=right_QNX[0 : step.tile.rows, step.tile.place],
            accumulate=chunk < begun,
        )


def _transposes_by_dma(problem: Problem) -> bool:
    """Where DMA has nothing else to do in every step: else its descriptors, 600 ns a transfer, would set the pace."""
    return itemsize(problem.dtype) == 2 and problem.mask_BHQK is None and problem.bias_BHQK is None


def _has_dma_time(problem: Problem, step: Step) -> bool:
    """Not while it brings in the section's own queries; and two times of three for wide heads, with more to load, and
    for narrow ones, whose products take less time."""
    is_loading = step.section.arrived < len(step.section.tiles)
    sets_the_pace = not TILE // 2 < max(problem.depth, problem.value_depth) <= TILE
    return not is_loading and not (sets_the_pace and step.tile.place % 3 == 0)


def _steps_to_queries(problem: Problem) -> int:
    """From a tile's probabilities to the product with the transposed gradients: DMA takes 2.6 us, a step 1.1."""
    return 7 if _transposes_by_dma(problem) else 3


def _transpose_chunks(problem: Problem, step: Step) -> Any:
    """The gradients of the scores with the keys on the partitions."""
    shape = (TILE, ceil(step.seen, TILE), step.tile.rows)
    transposed_KMQ = nl.ndarray(shape, problem.dtype)
    if _transposes_by_dma(problem) and _has_dma_time(problem, step):
        for partitions, first, stop in pieces_of(step.seen):
            chunks_QK = step.score_grads_QK[:, first * TILE : first * TILE + partitions * (stop - first)]
            chunks_QMK = chunks_QK.reshape_dim(1, (stop - first, partitions))
            nisa.dma_transpose(dst=transposed_KMQ[0:partitions, first:stop], src=chunks_QMK)
        return transposed_KMQ
    columns_KMQ = nl.ndarray(shape, problem.dtype, buffer=nl.psum)
    for partitions, chunk, _ in pieces_of(step.seen, 1):
        nisa.nc_transpose(
            dst=columns_KMQ[0:partitions, chunk],
            data=step.score_grads_QK[:, chunk * TILE : chunk * TILE + partitions],
            engine=nisa.engine.tensor,
        )
    # Of the two that read PSUM, the one with less to do: the softcap is the Scalar Engine's.
    engine = nisa.engine.scalar if problem.softcap is None else nisa.engine.vector
    for partitions, first, stop in pieces_of(step.seen):
        part = (slice(0, partitions), slice(first, stop))
        nisa.tensor_copy(dst=transposed_KMQ[part], src=columns_KMQ[part], engine=engine)
    return transposed_KMQ


def _add_to_queries(problem: Problem, gradients: _Gradients, step: Step) -> None:
    section, tile = step.section, step.tile
    if tile is not None:
        sums_QD = nl.ndarray((tile.rows, problem.depth), nl.float32, buffer=nl.psum)
        for partitions, chunk, _ in pieces_of(step.seen, 1):
            nisa.nc_matmul(
                dst=sums_QD,
                stationary=step.score_grads_KMQ[0:partitions, chunk],
                moving=step.block.loaded.key_KMD[0:partitions, chunk],
                accumulate=chunk > 0,
            )
        total_QD = section.loaded.query_grad_QND[0 : tile.rows, tile.place]
        _add_to_total(problem, total_QD, sums_QD, tile.place in section.begun)
        section.begun.add(tile.place)
    if step.ends_section:
        _finish_section(problem, gradients, section)


def _add_to_total(problem: Problem, total_QD: Any, sums_QD: Any, has_begun: bool) -> None:
    is_vector_busy = problem.ranges_BQ2 is not None and problem.softcap is None
    if not has_begun:
        nisa.tensor_copy(
            dst=total_QD, src=sums_QD, engine=nisa.engine.scalar if is_vector_busy else nisa.engine.vector
        )
    elif not is_vector_busy:
        nisa.tensor_tensor(dst=total_QD, data1=total_QD, data2=sums_QD, op=nl.add, engine=nisa.engine.vector)
    else:  # GpSimd does not read PSUM
        copied_QD = nl.ndarray(sums_QD.shape, nl.float32)
        nisa.tensor_copy(dst=copied_QD, src=sums_QD, engine=nisa.engine.scalar)
        nisa.tensor_tensor(dst=total_QD, data1=total_QD, data2=copied_QD, op=nl.add, engine=nisa.engine.gpsimd)


# What is stored


def _finish_values(problem: Problem, gradients: _Gradients, block: Block) -> None:
    stored_KME = None if block.stored is None else block.stored.sums.value_KME
    # The Scalar Engine, while the Vector Engine has the scores' gradients to make.
    _finish_sums(block, block.sums.value_KME, stored_KME, gradients.value_BGKE, 1.0, nisa.engine.scalar)


def _finish_keys(problem: Problem, gradients: _Gradients, block: Block) -> None:
    stored_KMD = None if block.stored is None else block.stored.sums.key_KMD
    _finish_sums(block, block.sums.key_KMD, stored_KMD, gradients.key_BGKD, problem.scale, nisa.engine.vector)
    if block.stored is not None:
        block.stored.chunks = max(block.stored.chunks, block.chunks)


def _finish_sums(block: Block, sums_KMX: Any, stored_KMX: Any, gradient_BGKX: Any, factor: float, engine: Any) -> None:
    """The sums of the block's keys go to HBM: as gradients if no other section adds to them."""
    gradient_KX = gradient_BGKX[block.section.unit.batch, block.section.unit.group]
    result_KMX = nl.ndarray(sums_KMX.shape, gradient_KX.dtype if block.is_last else nl.float32)
    summed = 0 if stored_KMX is None else block.stored.chunks
    for partitions, first, stop in pieces_of(block.keys, 1 if 0 < summed < block.chunks else block.chunks):
        if first >= block.chunks:
            break
        part = (slice(0, partitions), slice(first, stop))
        if first < summed:
            earlier_KMX = nl.ndarray((partitions, stop - first, sums_KMX.shape[2]), nl.float32)
            nisa.dma_copy(dst=earlier_KMX, src=stored_KMX[part])
            nisa.scalar_tensor_tensor(
                dst=result_KMX[part],
                data=sums_KMX[part],
                op0=nl.multiply,
                operand0=factor,
                op1=nl.add,
                operand1=earlier_KMX,
            )
        else:
            nisa.tensor_scalar(
                dst=result_KMX[part], data=sums_KMX[part], op0=nl.multiply, operand0=factor, engine=engine
            )
        if block.is_last:
            _store_rows(gradient_KX, result_KMX, block.start, partitions, first, stop, 0)
        else:
            nisa.dma_copy(dst=stored_KMX[part], src=result_KMX[part])


def _finish_section(problem: Problem, gradients: _Gradients, section: Section) -> None:
    """The gradients of the section's queries go to HBM, and its part of those of the sinks is summed."""
    unit, sums_QND = section.unit, section.loaded.query_grad_QND
    for tile in section.tiles:
        if tile.place not in section.begun:  # it sees none of this core's keys
            nisa.memset(dst=sums_QND[0 : tile.rows, tile.place], value=0.0)
    tiles = section.tiles if unit.cores == 1 else _exchange_sums(section)
    result_QND = nl.ndarray(sums_QND.shape, problem.dtype)
    for head, start, rows, place in runs_of(tiles):
        for partitions, first, stop in pieces_of(rows, LOAD_TILES):
            part = (slice(0, partitions), slice(place + first, place + stop))
            nisa.activation(dst=result_QND[part], op=nl.copy, data=sums_QND[part], scale=problem.scale)
            gradient_QD = gradients.query_BHQD[unit.batch, head]
            _store_rows(gradient_QD, result_QND, start, partitions, first, stop, place)
    if unit.cores > 1 and nl.program_id(0) > 0:
        return  # the core with the first keys, which all queries may see, does the rest
    if gradients.sinks_BH is not None:
        _add_sinks(problem, gradients, section)
    if gradients.bias_BHQK is not None and problem.is_causal:
        _clear_bias_gradient(problem, gradients, section)


def _store_rows(dst_RX: Any, src_PNX: Any, start: int, partitions: int, first: int, stop: int, place: int) -> None:
    """The tiles from `first` to `stop`, counted from `place`, as rows; those of tile 0 are from `start` on."""
    row = start + first * TILE
    rows = dst_RX[row : row + partitions * (stop - first)]
    rows_PNX = rows.reshape_dim(0, (stop - first, partitions)).permute((1, 0, 2))
    nisa.dma_copy(dst=rows_PNX, src=src_PNX[0:partitions, place + first : place + stop])


def _exchange_sums(section: Section) -> list[QueryTile]:
    """Adds the other core's sums for one half of the tiles, which it returns, and gives it those of the other half."""
    sums_QND, core = section.loaded.query_grad_QND, nl.program_id(0)
    middle = ceil(len(section.tiles), 2)
    halves = (section.tiles[:middle], section.tiles[middle:])
    shared_SQND = nl.ndarray((2, *sums_QND.shape), nl.float32, buffer=nl.shared_hbm)
    for part in _pieces_of_tiles(halves[1 - core]):
        nisa.dma_copy(dst=shared_SQND[(core, *part)], src=sums_QND[part])
    nisa.core_barrier(data=shared_SQND, cores=(0, 1))
    for part in _pieces_of_tiles(halves[core]):
        others_QND = nl.ndarray(sums_QND[part].shape, nl.float32)
        nisa.dma_copy(dst=others_QND, src=shared_SQND[(1 - core, *part)])
        nisa.tensor_tensor(dst=sums_QND[part], data1=sums_QND[part], data2=others_QND, op=nl.add)
    return halves[core]


def _add_sinks(problem: Problem, gradients: _Gradients, section: Section) -> None:
    """- sum of exp(sink - logsumexp) * delta over the queries of each head."""
    unit, loaded, heads = section.unit, section.loaded, problem.heads_per_group
    first_head = unit.group * heads
    if unit.sink_sums_PH is None:
        unit.sink_sums_PH = nl.ndarray((TILE, heads), nl.float32)
        nisa.memset(dst=unit.sink_sums_PH, value=0.0)
    for head, _, rows, place in runs_of(section.tiles):
        places = slice(place, place + ceil(rows, TILE))
        sink_P1 = nl.ndarray((TILE, 1), nl.float32)
        nisa.dma_copy(dst=sink_P1, src=problem.sinks_H.ap(pattern=[[0, TILE], [1, 1]], offset=head))
        shares_QN = nl.ndarray((TILE, places.stop - places.start), nl.float32)
        nisa.activation(dst=shares_QN, op=nl.exp, data=loaded.offset_QN[:, places], bias=sink_P1)
        nisa.tensor_tensor(dst=shares_QN, data1=shares_QN, data2=loaded.delta_QN[:, places], op=nl.multiply)
        shares_Q1 = nl.ndarray((TILE, 1), nl.float32)
        nisa.tensor_reduce(dst=shares_Q1, data=shares_QN, op=nl.add, axis=1)
        sums_P1 = unit.sink_sums_PH[:, head - first_head : head - first_head + 1]
        nisa.tensor_tensor(dst=sums_P1, data1=sums_P1, data2=shares_Q1, op=nl.subtract)
    if section.is_last:
        total_1H = nl.ndarray((1, heads), nl.float32)
        nisa.tensor_partition_reduce(dst=total_1H, op=nl.add, data=unit.sink_sums_PH)
        sinks_1H = gradients.sinks_BH[unit.batch : unit.batch + 1, first_head : first_head + heads]
        nisa.dma_copy(dst=sinks_1H, src=total_1H)


def _pieces_of_tiles(tiles: list[QueryTile]) -> list[tuple[slice, slice]]:
    """Of the section's sums, in few pieces."""
    return [
        (slice(0, partitions), slice(place + first, place + stop))
        for _, _, rows, place in runs_of(tiles)
        for partitions, first, stop in pieces_of(rows, LOAD_TILES)
    ]


def _transposed(depth: int, columns: int, dtype: Any) -> Any:
    return nl.ndarray((min(depth, TILE), ceil(depth, TILE), columns), dtype)
