"""Flash attention, forward: softmax(query key^T) value in tiles, the scores of which never leave the chip.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size of q and k, E head size of v.
In the names of views on the chip, the partition comes first: R the queries of a tile, C the keys of a chunk, up to 128
of both.

The work is cut into steps: a tile of 128 queries of one head against a block of up to 2048 keys. The engines of a
NeuronCore run side by side, each in the order of the program, so the order below is the schedule:

    Tensor Engine   scores of step i, a PSUM bank of 512 keys at a time, among the products with values of step i - 4
    Vector Engine   the largest score of each row, with the mask where there is one; results joined across blocks
    Scalar Engine   exp(scale * score - largest) with its sum, written in the inputs' dtype
    DMA             transposes most of those weights within SBUF, so that the keys are on the partitions; the Tensor
                    and the Scalar Engine do the rest, a step before the products

Keys and values of a key head stay in SBUF for all of its query heads where they fit; else they come in sections, once
for every 2048 queries.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .heads import BANK, FLOOR, LOWEST, PARTITIONS, SMALLEST, broadcast, ceil, check_heads


BLOCK = 2048  # keys that share one maximum: four of the eight banks, so that the next step's scores find room
BLOCK_FLOAT32 = 1024  # half of it where all is twice as large, and the Tensor Engine four times as slow
GROUP = 16  # tiles of queries that see a section of keys before the next one replaces it
SECTIONS_BYTES = 112 * 1024  # keys and values per partition, of all sections that are on the chip at a time
DELAY = 4  # steps between scores and their products with values: the time that exp and the transposes take
PREFETCH = 6  # steps that loads run ahead, so that they do not queue behind transposes
LOAD = 1024  # keys in a transfer: the first scores need not wait for all of a section
DMA_SHARE = 0.75  # of the transposes; more, and DMA is what sets the pace


@nki.jit
def flash_attention_kernel(
    query_BHQD,
    key_BGKD,
    value_BGKE,
    ranges_BQ2=None,
    mask_BHQK=None,
    bias_BHQK=None,
    sinks_H=None,
    scale=1.0,
    softcap=None,
    is_causal=False,
):
    """Attention of any length: `(output_BHQE, logsumexp_BHQ)`, the first in the query's dtype, the second float32.

    Args:
        query_BHQD, key_BGKD, value_BGKE: float32, bfloat16 or float16, all the same; H is a multiple of G, D and E are
            256 at most. Products are in this dtype with sums in float32, the softmax is in float32.
        ranges_BQ2: int32, the keys [start, end) that each query sees; batch 1 or B.
        mask_BHQK: uint8, not 0 where a query sees a key; batch 1 or B, heads 1 or H.
        bias_BHQK: a float dtype, added to the scaled and capped scores; batch 1 or B, heads 1 or H. Finite; what is
            below -1e30 counts as a key that is not seen.
        sinks_H: float32, one logit per head that takes part in the softmax and has no value.
        scale: of the scores. softcap: scores become softcap * tanh(scores / softcap).
        is_causal: query q sees keys up to q; as many queries as keys. Tiles behind the diagonal are not computed.

    A key is seen that all of range, mask and causality let through. A row that sees none gives 0, and for its
    logsumexp the sink, or without one about -1e30 times what scales the scores last (scale, softcap or 1). Runs on
    NeuronCore-v3 and later, on one core or two.
    """
    call = _Call.of(
        query_BHQD, key_BGKD, value_BGKE, ranges_BQ2, mask_BHQK, bias_BHQK, sinks_H, scale, softcap, is_causal
    )
    pipeline: list[_Step | None] = [None] * (DELAY + 1)  # the newest first
    for step in chain(_ahead(_steps(call), call.sizes.prefetch), [None] * DELAY):
        pipeline = [step, *pipeline[:DELAY]]
        oldest = pipeline[DELAY]
        _transpose_on_chip(call, pipeline[DELAY - 1])
        for bank in range(call.sizes.block // BANK):
            _score(call, step, bank)
            _multiply_values(call, oldest, bank)
        _join(call, oldest)  # while the last maximum of this step is on its way
        _weigh(call, step)
    return call.output_BHQE, call.logsumexp_BHQ


def _ahead(steps: Iterator["_Step"], count: int) -> Iterator["_Step"]:
    """Takes steps, and so issues their loads, before those that come before them have run."""
    waiting = deque(islice(steps, count))
    for step in steps:
        waiting.append(step)
        yield waiting.popleft()
    yield from waiting


# What is asked for


@dataclass(frozen=True)
class _Call:
    """The arguments, the results, and what all tiles share.

    `factor` is what the scores are multiplied with on their way into the exponential. What the Tensor Engine gives, it
    scales; after softcap's tanh it is the cap; 1 where an instruction before has scaled already.
    """

    query_BHQD: Any
    key_BGKD: Any
    value_BGKE: Any
    ranges_BQ2: Any
    mask_BHQK: Any
    bias_BHQK: Any
    scale: float
    softcap: float | None
    is_causal: bool
    output_BHQE: Any
    logsumexp_BHQ: Any
    zeros_R1: Any
    ones_R1: Any
    negative_sinks_RH: Any
    sizes: "_Sizes"

    @classmethod
    def of(cls, query, key, value, ranges, mask, bias, sinks, scale, softcap, is_causal) -> "_Call":
        check_heads(query, key, value, is_causal)
        batch, heads, queries, _ = query.shape
        output = nl.ndarray((batch, heads, queries, value.shape[3]), dtype=query.dtype, buffer=nl.shared_hbm)
        logsumexp = nl.ndarray((batch, heads, queries), dtype=nl.float32, buffer=nl.shared_hbm)
        zeros, ones, negative_sinks = None, None, None
        if is_causal:
            zeros = nl.ndarray((PARTITIONS, 1), dtype=nl.float32)
            nisa.memset(dst=zeros, value=0.0)
        if sinks is not None:
            ones = nl.ndarray((PARTITIONS, 1), dtype=nl.float32)
            nisa.memset(dst=ones, value=1.0)
            loaded = nl.ndarray((PARTITIONS, heads), dtype=nl.float32)
            nisa.dma_copy(dst=loaded, src=sinks.reshape((1, heads)).broadcast(0, PARTITIONS))
            negative_sinks = nl.ndarray((PARTITIONS, heads), dtype=nl.float32)
            nisa.tensor_scalar(dst=negative_sinks, data=loaded, op0=nl.multiply, operand0=-1.0)
        return cls(
            query, key, value, ranges, mask, bias, scale, softcap, is_causal, output, logsumexp, zeros, ones,
            negative_sinks, _Sizes.of(query, key, value),
        )  # fmt: skip

    @property
    def factor(self) -> float:
        if self.bias_BHQK is not None or self.multiplier <= 0:
            return 1.0
        return self.multiplier

    @property
    def multiplier(self) -> float:
        """From what the Tensor Engine, or softcap's tanh, gives to scaled scores."""
        return self.scale if self.softcap is None else self.softcap

    @property
    def can_be_empty(self) -> bool:
        """Whether a row may see no key, and no sink either."""
        is_masked = not (self.ranges_BQ2 is None and self.mask_BHQK is None and self.bias_BHQK is None)
        return is_masked and self.negative_sinks_RH is None


@dataclass(frozen=True)
class _Sizes:
    """Keys in a block and in a section, and the steps that loads run ahead, so that what is on the chip fits there."""

    block: int
    section: int
    prefetch: int

    @classmethod
    def of(cls, query, key, value) -> "_Sizes":
        (_, heads, queries, depth), (_, groups, keys, _) = query.shape, key.shape
        itemsize = _itemsize(key)
        block = BLOCK_FLOAT32 if itemsize == 4 else BLOCK
        of_block = (ceil(depth, PARTITIONS) + ceil(value.shape[3], PARTITIONS)) * block * itemsize
        tiles = max(1, heads // groups * ceil(queries, PARTITIONS) // nl.num_programs(0))
        for prefetch in (PREFETCH, 1):
            blocks = min(ceil(keys, block), SECTIONS_BYTES // of_block)
            while blocks > 1:
                seeing = tiles if blocks * block >= keys else min(tiles, GROUP)
                # The one in use, one more at either end, and those that steps in flight reach.
                if (2 + ceil(prefetch + DELAY, seeing * blocks)) * blocks * of_block <= SECTIONS_BYTES:
                    return cls(block, blocks * block, prefetch)
                blocks = ceil(blocks, 2)
        return cls(block, block, 1)


# Steps


@dataclass
class _Section:
    """Keys [start, stop) of one key head in SBUF: transposed, in parts of up to 128 of D; and their values."""

    start: int
    stop: int
    keys_DK: list[Any]
    values_CNE: Any  # chunk n has keys from start + 128 * n on


@dataclass
class _Group:
    """Consecutive tiles of queries of one head, and the softmax's sums and offsets of them, a column each."""

    batch: int
    head: int
    start: int
    stop: int
    queries_DQ: list[Any]
    totals_RT: Any
    offsets_RT: Any
    output_RTE: Any = None
    tiles: list["_Tile"] = field(default_factory=list)
    unfinished: int = 0


@dataclass
class _Tile:
    """Up to 128 queries, and what is known of them after the blocks so far.

    `offset_R1` is minus the largest logit so far, or a number where there is none; `total_R1` the sum of the weights
    and `result_RE` of weighted values, both relative to it.
    """

    group: _Group
    column: int
    start: int
    stop: int
    last_key: int  # keys from here on are not seen by any row
    first_R1: Any = None  # per row: the first key in its range, and the one behind the last
    bound_R1: Any = None
    offset_R1: Any = None
    total_R1: Any = None
    result_RE: Any = None

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass
class _Step:
    """A tile of queries against keys [start, stop), and what the engines hand on."""

    tile: _Tile
    section: _Section
    start: int
    stop: int
    scores_RK: list[Any] = field(default_factory=list)  # by bank, in PSUM or SBUF
    bias_RK: Any = None
    mask_RK: Any = None
    maxima_RN: Any = None  # by bank
    weights_RK: Any = None
    transposed_CR: list[Any] = field(default_factory=list)  # by chunk
    decay_R1: Any = None  # what earlier results shrink by
    sum_RE: Any = None  # of weighted values, in PSUM

    @property
    def banks(self) -> list[tuple[int, int]]:
        return _pieces(self.start, self.stop, BANK)

    @property
    def is_last(self) -> bool:
        return self.stop == self.tile.last_key


def _pieces(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def _blocks(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Blocks of about the same size: a small last one would cost as many instructions as a large one."""
    count = ceil(stop - start, size)
    return _pieces(start, stop, ceil(ceil(stop - start, count), PARTITIONS) * PARTITIONS)


def _steps(call: _Call) -> Iterator[_Step]:
    """The work of this core, in its order. What a step reads is loaded when it is reached, which DMA does early."""
    batch, groups, keys, _ = call.key_BGKD.shape
    sections = _pieces(0, keys, call.sizes.section)
    for row in range(batch):
        for key_head in range(groups):
            section = None
            for parts in _queries_of_core(call, row, key_head):
                loaded = [_load_queries(call, row, head, starts) for head, starts in parts]
                tiles = _mixed([tile for group in loaded for tile in group.tiles])
                for start, stop in sections:
                    seeing = [tile for tile in tiles if tile.last_key > start]
                    if seeing and (section is None or section.start != start):
                        section = _load_section(call, row, key_head, start, stop)
                    for tile in seeing:
                        for block in _blocks(start, min(stop, tile.last_key), call.sizes.block):
                            yield _load_step(call, tile, section, *block)


def _mixed(tiles: list[_Tile]) -> list[_Tile]:
    """From both ends in turn: under a causal mask short steps, which wait for each other, come between long ones."""
    count = len(tiles)
    return [tiles[count - 1 - i // 2 if i % 2 else i // 2] for i in range(count)]


def _itemsize(tensor: Any) -> int:
    return 4 if tensor.dtype == nl.float32 else 2


def _queries_of_core(call: _Call, row: int, key_head: int) -> Iterator[list[tuple[int, list[int]]]]:
    """(head, starts of tiles) of up to GROUP tiles at a time: what this core computes of a key head's query heads."""
    repeats = call.query_BHQD.shape[1] // call.key_BGKD.shape[1]
    parts, room = [], GROUP
    for head in range(key_head * repeats, (key_head + 1) * repeats):
        starts = _tiles_of_core(call, row, head)
        while starts:
            parts.append((head, starts[:room]))
            starts, room = starts[room:], room - len(parts[-1][1])
            if not room:
                yield parts
                parts, room = [], GROUP
    if parts:
        yield parts


def _tiles_of_core(call: _Call, row: int, head: int) -> list[int]:
    """Whole heads where the cores can share them evenly; else tiles, back and forth, as causal ones grow."""
    batch, heads, queries, _ = call.query_BHQD.shape
    cores, core = nl.num_programs(0), nl.program_id(0)
    starts = list(range(0, queries, PARTITIONS))
    if batch * heads % cores == 0:
        return starts if (row * heads + head) // (batch * heads // cores) == core else []
    turns = [tile % cores if tile // cores % 2 == 0 else cores - 1 - tile % cores for tile in range(len(starts))]
    return [start for start, turn in zip(starts, turns, strict=True) if (turn + head) % cores == core]


# Loading


def _load_section(call: _Call, row: int, key_head: int, start: int, stop: int) -> _Section:
    keys_KD, values_KE = call.key_BGKD[row, key_head], call.value_BGKE[row, key_head]
    keys_DK = _empty_transposed(keys_KD, stop - start)
    values_CNE = nl.ndarray((PARTITIONS, ceil(stop - start, PARTITIONS), values_KE.shape[1]), dtype=values_KE.dtype)
    for first, last in _pieces(start, stop, LOAD):
        _load_transposed(keys_DK, keys_KD, first, last, first - start)
        _load_chunks(values_CNE, values_KE, first, last, (first - start) // PARTITIONS)
    return _Section(start, stop, keys_DK, values_CNE)


def _empty_transposed(source_SD: Any, rows: int) -> list[Any]:
    """Tiles for rows with D on the partitions, in parts of up to 128 of D."""
    parts = _pieces(0, source_SD.shape[1], PARTITIONS)
    return [nl.ndarray((last - first, rows), dtype=source_SD.dtype) for first, last in parts]


def _load_transposed(parts_DS: list[Any], source_SD: Any, start: int, stop: int, at: int) -> None:
    """Rows [start, stop) into the columns of `parts_DS` from `at` on."""
    for part, part_DS in enumerate(parts_DS):
        first = part * PARTITIONS
        source = source_SD[start:stop, first : first + part_DS.shape[0]]
        nisa.dma_transpose(dst=part_DS[:, at : at + stop - start], src=source)


def _load_chunks(values_CNE: Any, source_KE: Any, start: int, stop: int, at: int) -> None:
    """Keys [start, stop) by chunks of 128, from chunk `at` on."""
    whole = (stop - start) // PARTITIONS
    middle = start + whole * PARTITIONS
    if whole:
        chunks = source_KE[start:middle, :].reshape_dim(0, (whole, PARTITIONS)).permute((1, 0, 2))
        nisa.dma_copy(dst=values_CNE[:, at : at + whole, :], src=chunks)
    if middle < stop:
        nisa.dma_copy(dst=values_CNE[0 : stop - middle, at + whole, :], src=source_KE[middle:stop, :])


def _load_queries(call: _Call, row: int, head: int, starts: list[int]) -> _Group:
    queries, keys = call.query_BHQD.shape[2], call.key_BGKD.shape[2]
    start, stop = starts[0], min(starts[-1] + PARTITIONS, queries)
    queries_QD = call.query_BHQD[row, head]
    queries_DQ = _empty_transposed(queries_QD, stop - start)
    for first, last in _pieces(start, stop, LOAD):
        _load_transposed(queries_DQ, queries_QD, first, last, first - start)
    totals, offsets = (nl.ndarray((PARTITIONS, len(starts)), dtype=nl.float32) for _ in range(2))
    if queries - starts[-1] < PARTITIONS:  # rows that no query fills
        nisa.memset(dst=totals, value=1.0)
        nisa.memset(dst=offsets, value=0.0)
    group = _Group(row, head, start, stop, queries_DQ, totals, offsets, unfinished=len(starts))
    for column, start in enumerate(starts):
        stop = min(start + PARTITIONS, queries)
        tile = _Tile(group, column, start, stop, min(stop, keys) if call.is_causal else keys)
        tile.offset_R1 = FLOOR * call.factor
        if call.negative_sinks_RH is not None:  # a key before all others, which has no value
            tile.offset_R1 = call.negative_sinks_RH[0 : tile.rows, head : head + 1]
            tile.total_R1 = call.ones_R1[0 : tile.rows, :]
        _find_range(call, tile)
        group.tiles.append(tile)
    return group


def _find_range(call: _Call, tile: _Tile) -> None:
    """The keys that each row may see, as numbers that range_select takes; they are exact up to 2^24."""
    rows = tile.rows
    if call.is_causal:
        after_R1 = nl.ndarray((rows, 1), dtype=nl.float32)
        nisa.iota(dst=after_R1, pattern=[[0, 1]], offset=tile.start + 1, channel_multiplier=1)
        tile.first_R1, tile.bound_R1 = call.zeros_R1[0:rows, :], after_R1
    if call.ranges_BQ2 is not None:
        range_R2 = nl.ndarray((rows, 2), dtype=nl.float32)
        source = call.ranges_BQ2[broadcast(call.ranges_BQ2, 0, tile.group.batch)]
        nisa.dma_copy(dst=range_R2, src=source[tile.start : tile.stop, :])
        tile.first_R1, tile.bound_R1 = range_R2[:, 0:1], range_R2[:, 1:2]
        if call.is_causal:
            tile.bound_R1 = nl.ndarray((rows, 1), dtype=nl.float32)
            nisa.tensor_tensor(dst=tile.bound_R1, data1=range_R2[:, 1:2], data2=after_R1, op=nl.minimum)


def _load_step(call: _Call, tile: _Tile, section: _Section, start: int, stop: int) -> _Step:
    step = _Step(tile, section, start, stop)
    step.bias_RK, step.mask_RK = _load_pairs(call.bias_BHQK, step), _load_pairs(call.mask_BHQK, step)
    return step


def _load_pairs(tensor_BHQK: Any, step: _Step) -> Any:
    """The part of a mask or a bias that belongs to a step, (R, K)."""
    if tensor_BHQK is None:
        return None
    tile = step.tile
    loaded_RK = nl.ndarray((tile.rows, step.stop - step.start), dtype=tensor_BHQK.dtype)
    batch, head = broadcast(tensor_BHQK, 0, tile.group.batch), broadcast(tensor_BHQK, 1, tile.group.head)
    nisa.dma_copy(dst=loaded_RK, src=tensor_BHQK[batch, head, tile.start : tile.stop, step.start : step.stop])
    return loaded_RK


# Scores


def _score(call: _Call, step: _Step | None, index: int) -> None:
    """The scores of one bank of keys, masked, and their maximum per row."""
    if step is None or index >= len(step.banks):
        return
    tile, section = step.tile, step.section
    if index == 0:
        step.maxima_RN = nl.ndarray((tile.rows, len(step.banks)), dtype=nl.float32)
    start, stop = step.banks[index]
    scores_RK = nl.ndarray((tile.rows, stop - start), dtype=nl.float32, buffer=nl.psum)
    first_query = tile.start - tile.group.start
    for part, (queries_DQ, keys_DK) in enumerate(zip(tile.group.queries_DQ, section.keys_DK, strict=True)):
        nisa.nc_matmul(
            dst=scores_RK,
            stationary=queries_DQ[:, first_query : first_query + tile.rows],
            moving=keys_DK[:, start - section.start : stop - section.start],
            accumulate=part > 0,
        )
    scores_RK = _scaled(call, step, scores_RK, start, stop)
    scores_RK = _masked(call, step, scores_RK, start, stop, step.maxima_RN[:, index : index + 1])
    step.scores_RK.append(scores_RK)


def _scaled(call: _Call, step: _Step, scores_RK: Any, start: int, stop: int) -> Any:
    """Scores that `call.factor` is left to scale."""
    if call.softcap is not None:
        capped_RK = _in_sbuf(scores_RK)
        nisa.activation(dst=capped_RK, op=nl.tanh, data=scores_RK, scale=call.scale / call.softcap)
        scores_RK = capped_RK
    if step.bias_RK is not None:
        biased_RK = _in_sbuf(scores_RK)
        bias_RK = step.bias_RK[:, start - step.start : stop - step.start]
        nisa.scalar_tensor_tensor(
            dst=biased_RK, data=scores_RK, op0=nl.multiply, operand0=call.multiplier, op1=nl.add, operand1=bias_RK
        )
        return biased_RK
    if call.multiplier <= 0:  # the maximum is then not that of the scores as they are
        scaled_RK = _in_sbuf(scores_RK)
        nisa.tensor_scalar(dst=scaled_RK, data=scores_RK, op0=nl.multiply, operand0=call.multiplier)
        return scaled_RK
    return scores_RK


def _in_sbuf(scores_RK: Any) -> Any:
    """Where the next form of the scores goes: into the same place, but out of PSUM, which the Tensor Engine needs."""
    return nl.ndarray(scores_RK.shape, dtype=nl.float32) if scores_RK.buffer == nl.psum else scores_RK


def _masked(call: _Call, step: _Step, scores_RK: Any, start: int, stop: int, maximum_R1: Any) -> Any:
    """LOWEST where a key is not seen. The Vector Engine finds the maximum on the way."""
    tile = step.tile
    crosses_diagonal = call.is_causal and stop > tile.start + 1
    if call.ranges_BQ2 is not None or crosses_diagonal:
        ranged_RK = _in_sbuf(scores_RK)
        nisa.range_select(
            dst=ranged_RK,
            on_true_tile=scores_RK,
            comp_op0=nl.greater_equal,
            comp_op1=nl.less,
            bound0=tile.first_R1,
            bound1=tile.bound_R1,
            range_start=start,
            on_false_value=LOWEST,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=maximum_R1,
        )
        scores_RK = ranged_RK
    elif step.mask_RK is None:
        nisa.tensor_reduce(dst=maximum_R1, op=nl.maximum, data=scores_RK, axis=1)
    if step.mask_RK is not None:
        chosen_RK = _in_sbuf(scores_RK)
        nisa.select_reduce(
            dst=chosen_RK,
            predicate=step.mask_RK[:, start - step.start : stop - step.start],
            on_true=scores_RK,
            on_false=LOWEST,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=maximum_R1,
        )
        scores_RK = chosen_RK
    return scores_RK


# Weights


def _weigh(call: _Call, step: _Step | None) -> None:
    """exp(scores - maximum), its sum, and the transposes that DMA does."""
    if step is None:
        return
    tile, rows = step.tile, step.tile.rows
    offset_R1 = _offset(call, step)
    total_R1 = tile.group.totals_RT[0:rows, tile.column : tile.column + 1] if step.is_last else _column(rows)
    sum_R1 = total_R1
    if tile.total_R1 is not None:
        step.decay_R1, sum_R1 = _column(rows), _column(rows)
        nisa.activation(dst=step.decay_R1, op=nl.exp, data=tile.offset_R1, scale=-1.0, bias=offset_R1)
    step.weights_RK = nl.ndarray((rows, step.stop - step.start), dtype=call.query_BHQD.dtype)
    for index, (start, stop) in enumerate(step.banks):
        nisa.activation(
            dst=step.weights_RK[:, start - step.start : stop - step.start],
            op=nl.exp,
            data=step.scores_RK[index],
            scale=call.factor,
            bias=offset_R1,
            reduce_op=nl.add,
            reduce_cmd=nisa.reduce_cmd.reduce if index else nisa.reduce_cmd.reset_reduce,
            reduce_res=sum_R1 if index == len(step.banks) - 1 else None,
        )
    if tile.total_R1 is not None:
        nisa.tensor_scalar(
            dst=total_R1,
            data=tile.total_R1,
            op0=nl.multiply,
            operand0=step.decay_R1,
            op1=nl.add,
            operand1=sum_R1,
            engine=nisa.engine.scalar,
        )
    tile.offset_R1, tile.total_R1 = offset_R1, total_R1
    _transpose_by_dma(call, step)


def _column(rows: int) -> Any:
    return nl.ndarray((rows, 1), dtype=nl.float32)


def _offset(call: _Call, step: _Step) -> Any:
    """Minus the largest scaled score of the tile so far."""
    tile, rows = step.tile, step.tile.rows
    highest_R1 = step.maxima_RN
    if len(step.banks) > 1:
        highest_R1 = _column(rows)
        nisa.tensor_reduce(dst=highest_R1, op=nl.maximum, data=step.maxima_RN, axis=1)
    offset_R1 = tile.group.offsets_RT[0:rows, tile.column : tile.column + 1] if step.is_last else _column(rows)
    nisa.tensor_scalar(
        dst=offset_R1,
        data=highest_R1,
        op0=nl.multiply,
        operand0=-call.factor,
        op1=nl.minimum,
        operand1=tile.offset_R1,
    )
    return offset_R1


def _transpose_by_dma(call: _Call, step: _Step) -> None:
    """Whole chunks of whole tiles, of elements of two bytes; the rest is left to the Tensor Engine."""
    count = int((step.stop - step.start) // PARTITIONS * DMA_SHARE)
    if step.tile.rows < PARTITIONS or _itemsize(call.query_BHQD) != 2 or not count:
        return
    chunks_RNC = step.weights_RK[:, 0 : count * PARTITIONS].reshape_dim(1, (count, PARTITIONS))
    transposed_CNR = nl.ndarray((PARTITIONS, count, PARTITIONS), dtype=step.weights_RK.dtype)
    nisa.dma_transpose(dst=transposed_CNR, src=chunks_RNC)
    step.transposed_CR = [transposed_CNR[:, chunk, :] for chunk in range(count)]


# Values


def _transpose_on_chip(call: _Call, step: _Step | None) -> None:
    """What DMA has not transposed. A step before its use: the copies queue behind exponentials of other steps."""
    if step is None:
        return
    rows = step.tile.rows
    first_left = step.start + len(step.transposed_CR) * PARTITIONS
    for start, stop in _pieces(first_left, step.stop, BANK):
        pieces = _pieces(start, stop, PARTITIONS)
        shape = (min(PARTITIONS, stop - start), len(pieces), rows)
        in_psum = nl.ndarray(shape, dtype=step.weights_RK.dtype, buffer=nl.psum)
        copied = nl.ndarray(shape, dtype=step.weights_RK.dtype)
        for chunk, (first, last) in enumerate(pieces):
            weights_RC = step.weights_RK[:, first - step.start : last - step.start]
            nisa.nc_transpose(dst=in_psum[0 : last - first, chunk, :], data=weights_RC, engine=nisa.engine.tensor)
            step.transposed_CR.append(copied[0 : last - first, chunk, :])
        whole = (stop - start) // PARTITIONS or 1
        # Softcap's tanh keeps the Scalar Engine longest: then the Vector Engine copies.
        engine = nisa.engine.scalar if call.softcap is None else nisa.engine.vector
        nisa.tensor_copy(dst=copied[:, 0:whole, :], src=in_psum[:, 0:whole, :], engine=engine)
        if whole < len(pieces):
            rest = pieces[-1][1] - pieces[-1][0]
            nisa.tensor_copy(dst=copied[0:rest, whole, :], src=in_psum[0:rest, whole, :], engine=engine)


def _multiply_values(call: _Call, step: _Step | None, index: int) -> None:
    """Weighted values of one bank of keys, added to those of the step."""
    if step is None or index >= len(step.banks):
        return
    tile, section = step.tile, step.section
    if index == 0:
        step.sum_RE = nl.ndarray((tile.rows, call.value_BGKE.shape[3]), dtype=nl.float32, buffer=nl.psum)
    for first, last in _pieces(*step.banks[index], PARTITIONS):
        nisa.nc_matmul(
            dst=step.sum_RE,
            stationary=step.transposed_CR[(first - step.start) // PARTITIONS],
            moving=section.values_CNE[0 : last - first, (first - section.start) // PARTITIONS, :],
            accumulate=first > step.start,
        )


def _join(call: _Call, step: _Step | None) -> None:
    """Adds the step's weighted values to its tile's; the last step finishes the tile, and the last tile the group."""
    if step is None:
        return
    tile, sum_RE = step.tile, step.sum_RE
    if tile.result_RE is None and step.is_last:
        tile.result_RE = sum_RE
    else:
        joined_RE = nl.ndarray(sum_RE.shape, dtype=nl.float32)
        if tile.result_RE is None:
            nisa.tensor_copy(dst=joined_RE, src=sum_RE, engine=nisa.engine.scalar)
        else:
            nisa.scalar_tensor_tensor(
                dst=joined_RE,
                data=tile.result_RE,
                op0=nl.multiply,
                operand0=step.decay_R1,
                op1=nl.add,
                operand1=sum_RE,
            )
        tile.result_RE = joined_RE
    if step.is_last:
        _finish(call, tile)


def _finish(call: _Call, tile: _Tile) -> None:
    """Divides by the sum of the weights; the last tile stores the group, as every transfer takes its time."""
    group, rows = tile.group, tile.rows
    total_R1 = group.totals_RT[0:rows, tile.column : tile.column + 1]
    if call.can_be_empty:
        nisa.tensor_scalar(dst=total_R1, data=total_R1, op0=nl.maximum, operand0=SMALLEST)
    share_R1 = _column(rows)
    nisa.reciprocal(dst=share_R1, data=total_R1)
    if group.output_RTE is None:
        shape = (PARTITIONS, len(group.tiles), call.output_BHQE.shape[3])
        group.output_RTE = nl.ndarray(shape, dtype=call.output_BHQE.dtype)
    output_RE = group.output_RTE[0:rows, tile.column, :]
    nisa.activation(dst=output_RE, op=nl.copy, data=tile.result_RE, scale=share_R1)
    group.unfinished -= 1
    if not group.unfinished:
        _store_output(call, group)
        _store_logsumexp(call, group)


def _store_output(call: _Call, group: _Group) -> None:
    destination_QE = call.output_BHQE[group.batch, group.head]
    for run in _runs(group.tiles):
        rows, columns = run[0].rows, slice(run[0].column, run[-1].column + 1)
        destination = destination_QE[run[0].start : run[-1].stop, :].reshape_dim(0, (len(run), rows))
        nisa.dma_copy(dst=destination.permute((1, 0, 2)), src=group.output_RTE[0:rows, columns, :])


def _store_logsumexp(call: _Call, group: _Group) -> None:
    """log(total) - offset of all tiles at once: the Scalar Engine changes its tables between exp and log.

    Transposed first, so that what lies together in HBM lies together in SBUF.
    """
    tiles = len(group.tiles)
    logsumexp_RT = nl.ndarray((PARTITIONS, tiles), dtype=nl.float32)
    nisa.activation(dst=logsumexp_RT, op=nl.log, data=group.totals_RT)
    nisa.tensor_tensor(dst=logsumexp_RT, data1=logsumexp_RT, data2=group.offsets_RT, op=nl.subtract)
    in_psum = nl.ndarray((tiles, PARTITIONS), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=in_psum, data=logsumexp_RT, engine=nisa.engine.tensor)
    logsumexp_TR = nl.ndarray((tiles, PARTITIONS), dtype=nl.float32)
    nisa.tensor_copy(dst=logsumexp_TR, src=in_psum)
    destination_Q = call.logsumexp_BHQ[group.batch, group.head]
    for run in _runs(group.tiles):
        rows = run[0].rows
        destination = destination_Q[run[0].start : run[-1].stop].reshape_dim(0, (len(run), rows))
        nisa.dma_copy(dst=destination, src=logsumexp_TR[run[0].column : run[-1].column + 1, 0:rows])


def _runs(tiles: list[_Tile]) -> list[list[_Tile]]:
    """Whole tiles that follow each other, together; one that is not whole alone."""
    runs: list[list[_Tile]] = []
    for tile in tiles:
        if runs and runs[-1][-1].stop == tile.start and tile.rows == PARTITIONS:
            runs[-1].append(tile)
        else:
            runs.append([tile])
    return runs
