"""Attention of a few new tokens over a long cache, which is read once, as it lies in memory.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size of q and k, E head size of v.
R are the H / G * Q rows of queries that share a key head, W those of several key heads, up to 128. On the chip the
partition comes first: a block of keys is (P, T), with key p * T + t of it on partition p, so that a partition reads
T keys that lie together in HBM; a chunk is the P keys of one t.

What takes the time is reading keys and values, so everything else is laid out to stay below it:

    Tensor Engine   transposes chunks of keys; with them as the stationary operand, scores have the keys on the
                    partitions: softmax is then spread over 128 partitions, whatever the number of rows, and its
                    weights need no transpose to be multiplied with the values
    Vector Engine   copies transposed keys from PSUM, masks, finds the maxima, joins blocks
    Scalar Engine   the exponential, and part of the copies

A maximum over the keys crosses partitions: the Tensor Engine transposes the maxima of the partitions, and back. Sums
cross them as a product with ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .heads import BANK, FLOOR, PARTITIONS, SMALLEST, broadcast, ceil, check_heads


BANK_BYTES = 2048  # of PSUM; a product on NeuronCore-v3 stays inside one
PIECE_BYTES = 8192  # of one head that a partition reads in one piece: the larger, the less DMA's cost of each piece
BLOCK_BYTES = 16384  # keys and values of a block, per partition: 2 MiB, some thousand times what starting DMA takes
TURN_BYTES = 4 * 2**20  # of a loop's turn, in which nothing is computed while its first block is on its way
SHARED_BYTES = 2**22  # of keys and values: below, two cores gain less than they spend to join their results
MANY_ROWS = 32  # from here on the Vector Engine would take longer than DMA: others take over what they can
STAGES = 6  # of a step, from its scores to the output

UNSEEN = 1.7e38  # taken off the logits of keys that are not seen; twice that is still finite


@nki.jit
def decode_attention_kernel(
    query_BHQD,
    key_BGKD,
    value_BGKE,
    ranges_BQ2=None,
    mask_BHQK=None,
    bias_BHQK=None,
    sinks_H=None,
    scale=1.0,
    softcap=None,
):
    """Attention of few queries over many keys: `output_BHQE`, in the query's dtype.

    Args:
        query_BHQD, key_BGKD, value_BGKE: float32, bfloat16 or float16, all the same; H is a multiple of G, H / G * Q
            is 128 at most, D and E are 256 at most. Products are in this dtype with sums in float32, the softmax is in
            float32.
        ranges_BQ2: int32, the keys [start, end) that each query sees; batch 1 or B.
        mask_BHQK: uint8, not 0 where a query sees a key; batch 1 or B, heads 1 or H.
        bias_BHQK: a float dtype, added to the scaled and capped scores; batch 1 or B, heads 1 or H. Finite; what is
            below -1e30 counts as a key that is not seen.
        sinks_H: float32, one logit per head that takes part in the softmax and has no value.
        scale: of the scores. softcap: scores become softcap * tanh(scores / softcap).

    A key is seen that both range and mask let through. A row that sees none gives 0. Of a long cache, keys before and
    behind the ranges of a batch row are not read: a `fori_loop` over registers, of NKI 0.6, goes over the others. How
    far loads run ahead from one turn of such a loop to the next is the compiler's, and not documented.

    Runs on NeuronCore-v3 and later, on one core or two: these share the key heads, or where their number is odd and
    there is enough to read, the keys.
    """
    call = _Call.of(query_BHQD, key_BGKD, value_BGKE, ranges_BQ2, mask_BHQK, bias_BHQK, sinks_H, scale, softcap)
    if call.loop_chunks:
        _attend_to_seen_keys(call)
    else:
        _run(call, _steps(call))
    return call.output_BHQE


def _run(call: "_Call", steps: "Iterator[_Step]") -> None:
    stages: list[_Step | None] = [None] * STAGES
    for step in chain(steps, [None] * (STAGES - 1)):
        stages = [step, *stages[:-1]]
        _advance(call, *stages)


def _advance(
    call: "_Call",
    scored: "_Step | None",
    weighed: "_Step | None",
    joined: "_Step | None",
    finished: "_Step | None",
    waiting: "_Step | None",
    stored: "_Step | None",
) -> None:
    """One turn of the steps that are under way, the newest first; the last three are done but for their unit's output.

    Each engine works in the order of the program: while a step waits for another engine, the others go on. Outputs
    wait one turn more, as a small transfer among the loads holds up some of DMA's engines.
    """
    if weighed is not None:
        _gather_maxima(weighed)
    if scored is not None:
        _transpose_keys(call, scored)
    if finished is not None and finished.is_last:
        _arrange_output(call, finished.unit)
    if weighed is not None:
        _weigh(call, weighed)
    if joined is not None:
        _join(call, joined)
    if scored is not None:
        _score(call, scored)
    if joined is not None and joined.is_last:
        _divide(call, joined.unit)
    if stored is not None and stored.is_last:
        _store(call, stored.unit)


# What is asked for


@dataclass(frozen=True)
class _Call:
    """The arguments, the result, and what all steps share.

    `factor` is what logits are multiplied with on their way into the exponential: the scale of what the Tensor Engine
    gives, softcap after its tanh, 1 where an instruction before has scaled already.
    """

    query_BHQD: Any
    key_BGKD: Any
    value_BGKE: Any
    ranges_BQ2: Any
    mask_BHQK: Any
    bias_BHQK: Any
    sinks_H: Any
    scale: float
    softcap: float | None
    output_BHQE: Any
    ones_PP: Any
    has_many_rows: bool  # then the Tensor Engine sums the weights and the Scalar Engine copies more: Vector is busy
    positions: dict[int, Any] = field(default_factory=dict)  # by T: (P, T), the number of a key in its block

    @classmethod
    def of(cls, query, key, value, ranges, mask, bias, sinks, scale, softcap) -> "_Call":
        check_heads(query, key, value)
        _check_rows(query, key)
        output = nl.ndarray((*query.shape[:3], value.shape[3]), dtype=query.dtype, buffer=nl.shared_hbm)
        has_many_rows = query.shape[1] // key.shape[1] * query.shape[2] >= MANY_ROWS
        ones = nl.ndarray((PARTITIONS, PARTITIONS), dtype=query.dtype if has_many_rows else nl.float32)
        nisa.memset(dst=ones, value=1.0)
        return cls(query, key, value, ranges, mask, bias, sinks, scale, softcap, output, ones, has_many_rows)

    @property
    def is_masked(self) -> bool:
        return not (self.ranges_BQ2 is None and self.mask_BHQK is None and self.bias_BHQK is None)

    @property
    def multiplier(self) -> float:
        """From what the Tensor Engine, or softcap's tanh, gives to scaled scores."""
        return self.scale if self.softcap is None else self.softcap

    @property
    def factor(self) -> float:
        return 1.0 if self.is_masked or self.multiplier <= 0 else self.multiplier

    @property
    def queries(self) -> int:
        return self.query_BHQD.shape[2]

    @property
    def rows(self) -> int:
        """R, of a key head."""
        return self.query_BHQD.shape[1] // self.key_BGKD.shape[1] * self.queries

    @property
    def depth_parts(self) -> list[tuple[int, int]]:
        return _pieces(0, self.key_BGKD.shape[3], PARTITIONS)

    @property
    def width_parts(self) -> list[tuple[int, int]]:
        return _pieces(0, self.value_BGKE.shape[3], PARTITIONS)

    @property
    def itemsize(self) -> int:
        return 4 if self.key_BGKD.dtype == nl.float32 else 2

    @property
    def row_bytes(self) -> int:
        """Of a key or a value, what is larger."""
        return max(self.key_BGKD.shape[3], self.value_BGKE.shape[3]) * self.itemsize

    @property
    def shares_keys(self) -> bool:
        """Whether each core reads every other part of the keys, for want of an even number of key heads."""
        batch, groups, keys, depth = self.key_BGKD.shape
        size = batch * groups * keys * (depth + self.value_BGKE.shape[3]) * self.itemsize
        return batch * groups % nl.num_programs(0) > 0 and size >= SHARED_BYTES and keys >= 2 * PARTITIONS

    @property
    def loop_chunks(self) -> int:
        """T of a turn of the loop that leaves out keys which no query sees; 0 without one."""
        if self.ranges_BQ2 is None:
            return 0
        _, groups, keys, depth = self.key_BGKD.shape
        together = min(groups, PARTITIONS // self.rows)
        chunk_bytes = together * PARTITIONS * (depth + self.value_BGKE.shape[3]) * self.itemsize
        most = max(1, min(TURN_BYTES // chunk_bytes, PIECE_BYTES // self.row_bytes))
        chunks = 1 << most.bit_length() - 1
        sharing = nl.num_programs(0) if self.shares_keys else 1
        return chunks if keys >= 2 * chunks * PARTITIONS * sharing else 0

    @property
    def pack(self) -> int:
        """Chunks that are transposed together: D of each on its own quadrants of the partitions."""
        depth = self.key_BGKD.shape[3]
        return PARTITIONS // depth if depth in (32, 64) else 1


def _check_rows(query, key) -> None:
    (_, heads, queries, _), groups = query.shape, key.shape[1]
    if heads // groups * queries > PARTITIONS:
        raise ValueError(
            f"{queries} queries of {heads // groups} heads for each key head: up to {PARTITIONS} rows are possible; "
            "flash_attention_kernel takes more"
        )


# Steps


@dataclass(frozen=True)
class _Place:
    """Keys of a block: (P, T) of the key heads [first, last), from key `start` on, or from where a register says."""

    first_head: int
    last_head: int
    partitions: int
    chunks: int
    start: int
    register: Any = None

    @property
    def heads(self) -> int:
        return self.last_head - self.first_head


@dataclass
class _Unit:
    """Rows of one batch row and some of its key heads, W of them, and what is known of them after the steps so far.

    `state` has the same maximum and sum on each partition, and the weighted values with E on the partitions:
    (P, 2 + parts of E, W). The maximum is that of logits before `factor`.
    """

    batch: int
    first_head: int  # key heads [first, last)
    last_head: int
    queries_DW: list[Any]
    state: Any
    ranges_PQ2: Any
    bounds_PQ2: Any = None  # in a loop: the ranges relative to the first key of the turn
    output_WE: Any = None

    @property
    def maximum_PW(self) -> Any:
        return self.state[:, 0, :]


@dataclass
class _Block:
    """Keys and values of some key heads of a unit in SBUF: N of them, (P, N, T, D)."""

    place: _Place
    keys_PNTD: Any
    values_PNTE: Any
    added_PWT: Any  # what is added to logits; W, or Q if it is the same for all heads


@dataclass
class _Step:
    """Chunks [first, last) of a block, as many as have room for their scores in a bank, and what engines hand on."""

    unit: _Unit
    block: _Block
    first: int
    last: int
    columns: tuple[int, int]  # of the unit's rows
    is_last: bool
    transposed: dict[tuple[int, int, int], Any] = field(default_factory=dict)  # by head, chunk, part of D
    logits_PWT: Any = None
    maxima_PW: Any = None
    highest_W1: Any = None
    decay_PW: Any = None  # what earlier results shrink by
    weights_PWT: Any = None
    sums_PW: Any = None


def _pieces(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def _steps(call: _Call) -> Iterator[_Step]:
    """The work of this core, in its order. What a step reads is loaded when it is reached, which DMA does early."""
    for batch, first, last in _heads_of_core(call):
        unit = _load_unit(call, batch, first, last)
        places = [place for part in _parts(call) for place in _places(call, unit, *part)]
        yield from _steps_of(call, unit, places, is_all=True)


def _steps_of(call: _Call, unit: _Unit, places: list[_Place], is_all: bool) -> Iterator[_Step]:
    for place in places:
        block = _load_block(call, unit, place)
        together = max(1, BANK // (place.heads * call.rows) // call.pack * call.pack)
        column = (place.first_head - unit.first_head) * call.rows
        columns = (column, column + place.heads * call.rows)
        for first, last in _pieces(0, place.chunks, together):
            is_last = is_all and place is places[-1] and last == place.chunks
            yield _Step(unit, block, first, last, columns, is_last)


def _heads_of_core(call: _Call) -> list[tuple[int, int, int]]:
    """(batch row, first, last) of the key heads that this core computes, up to 128 rows of queries at once."""
    batch, groups = call.key_BGKD.shape[:2]
    cores, core = (1, 0) if call.shares_keys else (nl.num_programs(0), nl.program_id(0))
    first, last = batch * groups * core // cores, batch * groups * (core + 1) // cores
    together = PARTITIONS // call.rows
    return [
        (row, *heads)
        for row in range(batch)
        for heads in _pieces(max(first - row * groups, 0), min(last - row * groups, groups), together)
    ]


def _parts(call: _Call) -> list[tuple[int, int, int]]:
    """(first key, P, T) of all keys that this core reads: as many chunks at once as are worth it, then the rest."""
    whole, rest = divmod(call.key_BGKD.shape[2], PARTITIONS)
    cores = nl.num_programs(0) if call.shares_keys else 1
    count = ceil(ceil(whole, max(1, PIECE_BYTES // call.row_bytes)), cores) * cores
    pieces = _pieces(0, whole, ceil(whole, count)) if whole else []
    parts = [(first * PARTITIONS, PARTITIONS, last - first) for first, last in pieces]
    if rest:
        parts.append((whole * PARTITIONS, rest, 1))
    return _of_core(call, parts)


def _of_core(call: _Call, parts: list[Any]) -> list[Any]:
    return parts[nl.program_id(0) :: nl.num_programs(0)] if call.shares_keys else parts


def _places(call: _Call, unit: _Unit, start: int, partitions: int, chunks: int, register: Any = None) -> list[_Place]:
    """A block for as many key heads as BLOCK_BYTES hold, and a bank the scores of a chunk."""
    both = (call.key_BGKD.shape[3] + call.value_BGKE.shape[3]) * call.itemsize
    heads = max(1, min(BLOCK_BYTES // (chunks * both), BANK // call.rows))
    pieces = _pieces(unit.first_head, unit.last_head, heads)
    return [_Place(*heads, partitions, chunks, start, register) for heads in pieces]


# Loading


def _load_unit(call: _Call, batch: int, first: int, last: int) -> _Unit:
    width = (last - first) * call.rows
    state = nl.ndarray((PARTITIONS, 2 + len(call.width_parts), width), dtype=nl.float32)
    nisa.memset(dst=state, value=0.0, engine=nisa.engine.gpsimd)
    ranges_PQ2 = None
    if call.ranges_BQ2 is not None:
        ranges_PQ2 = nl.ndarray((PARTITIONS, call.queries, 2), dtype=nl.float32)
        source = call.ranges_BQ2[broadcast(call.ranges_BQ2, 0, batch)]
        nisa.dma_copy(dst=ranges_PQ2, src=source.expand_dim(0).broadcast(0, PARTITIONS))
    unit = _Unit(batch, first, last, _load_queries(call, batch, first, last), state, ranges_PQ2)
    _start(call, unit)
    return unit


def _start(call: _Call, unit: _Unit) -> None:
    """A sink is a key before all others, with a weight of 1 and no value; of the first core where both share keys."""
    if call.sinks_H is None or (call.shares_keys and nl.program_id(0) > 0):
        nisa.memset(dst=unit.maximum_PW, value=-FLOOR, engine=nisa.engine.gpsimd)
        return
    first, last = _query_heads(call, unit.first_head, unit.last_head)
    sinks_PH = nl.ndarray((PARTITIONS, last - first), dtype=nl.float32)
    nisa.dma_copy(dst=sinks_PH, src=call.sinks_H[first:last].expand_dim(0).broadcast(0, PARTITIONS))
    nisa.tensor_scalar(
        dst=unit.maximum_PW.reshape_dim(1, (last - first, call.queries)),
        data=sinks_PH.expand_dim(2).broadcast(2, call.queries),
        op0=nl.multiply,
        operand0=1 / call.factor,
    )
    nisa.memset(dst=unit.state[:, 1, :], value=1.0, engine=nisa.engine.gpsimd)


def _query_heads(call: _Call, first: int, last: int) -> tuple[int, int]:
    """Of key heads [first, last)."""
    repeats = call.query_BHQD.shape[1] // call.key_BGKD.shape[1]
    return first * repeats, last * repeats


def _load_queries(call: _Call, batch: int, first: int, last: int) -> list[Any]:
    """Queries with D on the partitions, in parts of up to 128; as many times as chunks are packed."""
    first, last = _query_heads(call, first, last)
    source_WD = call.query_BHQD[batch, first:last].flatten_dims(0, 1)
    width, depth = source_WD.shape
    loaded_WND = nl.ndarray((width, call.pack, depth), dtype=source_WD.dtype)
    for copy in range(call.pack):
        nisa.dma_copy(dst=loaded_WND[:, copy, :], src=source_WD)
    loaded_WD = loaded_WND.reshape((width, call.pack * depth))
    parts = []
    for begin, end in _pieces(0, call.pack * depth, PARTITIONS):
        in_psum = nl.ndarray((end - begin, width), dtype=source_WD.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=in_psum, data=loaded_WD[:, begin:end], engine=nisa.engine.tensor)
        part = nl.ndarray((end - begin, width), dtype=source_WD.dtype)
        nisa.tensor_copy(dst=part, src=in_psum)
        parts.append(part)
    return parts


def _load_block(call: _Call, unit: _Unit, place: _Place) -> _Block:
    keys_PNTD = _load_keys(call.key_BGKD, unit, place)
    values_PNTE = _load_keys(call.value_BGKE, unit, place)
    return _Block(place, keys_PNTD, values_PNTE, _added(call, unit, place) if call.is_masked else None)


def _load_keys(source_BGKD: Any, unit: _Unit, place: _Place) -> Any:
    _, groups, keys, depth = source_BGKD.shape
    loaded_PNTD = nl.ndarray((place.partitions, place.heads, place.chunks, depth), dtype=source_BGKD.dtype)
    pattern = [
        [place.chunks * depth, place.partitions],
        [keys * depth, place.heads],
        [depth, place.chunks],
        [1, depth],
    ]
    offset = ((unit.batch * groups + place.first_head) * keys + place.start) * depth
    nisa.dma_copy(dst=loaded_PNTD, src=_at(source_BGKD, pattern, offset, place, 2))
    return loaded_PNTD


def _at(tensor: Any, pattern: list[list[int]], offset: int, place: _Place, dim: int) -> Any:
    """Elements of a tensor in HBM; a register moves them along its dimension `dim`, which has the keys."""
    if place.register is None:
        return tensor.ap(pattern, offset=offset)
    return tensor.ap(pattern, offset=offset, scalar_offset=place.register, indirect_dim=dim)


# Masks and bias


def _added(call: _Call, unit: _Unit, place: _Place) -> Any:
    """What is added to the logits of a block, (P, W, T) or (P, Q, T): the bias, and -UNSEEN for keys not seen."""
    unseen = None
    if call.ranges_BQ2 is not None:
        unseen = _unseen_by_range(call, unit, place)
    if call.mask_BHQK is not None:
        loaded_PWT = _load_pairs(call, call.mask_BHQK, unit, place)
        masked = nl.ndarray(loaded_PWT.shape, dtype=nl.float32)
        nisa.tensor_scalar(
            dst=masked,
            data=loaded_PWT,
            op0=nl.equal,
            operand0=0.0,
            op1=nl.multiply,
            operand1=-UNSEEN,
        )
        unseen = masked if unseen is None else _combined(call, masked, unseen, nl.minimum)
    if call.bias_BHQK is None:
        return unseen
    bias_PWT = _load_pairs(call, call.bias_BHQK, unit, place)
    return bias_PWT if unseen is None else _combined(call, bias_PWT, unseen, nl.add)


def _combined(call: _Call, first_PWT: Any, second_PWT: Any, op: Any) -> Any:
    width = max(first_PWT.shape[1], second_PWT.shape[1])
    combined = nl.ndarray((first_PWT.shape[0], width, first_PWT.shape[2]), dtype=nl.float32)
    nisa.scalar_tensor_tensor(
        dst=_by_head(call, combined, width),
        data=_by_head(call, first_PWT, width),
        op0=nl.maximum,
        operand0=-UNSEEN,
        op1=op,
        operand1=_by_head(call, second_PWT, width),
    )
    return combined


def _by_head(call: _Call, tensor_PWT: Any, width: int) -> Any:
    """(P, query heads, Q, T), repeated for all heads where it has Q rows only."""
    repeats = width // tensor_PWT.shape[1]
    split = tensor_PWT.reshape_dim(1, (tensor_PWT.shape[1] // call.queries, call.queries))
    return split.broadcast(1, repeats) if repeats > 1 else split


def _unseen_by_range(call: _Call, unit: _Unit, place: _Place) -> Any:
    """(P, Q, T), -UNSEEN where a key is outside of its range."""
    partitions, chunks = place.partitions, place.chunks
    if chunks not in call.positions:
        call.positions[chunks] = nl.ndarray((PARTITIONS, chunks), dtype=nl.float32)
        nisa.iota(dst=call.positions[chunks], pattern=[[1, chunks]], offset=0, channel_multiplier=chunks)
    position = call.positions[chunks][0:partitions, :].expand_dim(1).broadcast(1, call.queries)
    bounds_PQ2 = unit.bounds_PQ2
    if place.register is None:
        bounds_PQ2 = nl.ndarray((partitions, call.queries, 2), dtype=nl.float32)
        ranges_PQ2 = unit.ranges_PQ2[0:partitions]
        nisa.tensor_scalar(dst=bounds_PQ2, data=ranges_PQ2, op0=nl.subtract, operand0=float(place.start))
    after, seen, unseen = (nl.ndarray((partitions, call.queries, chunks), dtype=nl.float32) for _ in range(3))
    for dst, bound, op in ((after, 0, nl.greater_equal), (seen, 1, nl.less)):
        bound_PQT = bounds_PQ2[0:partitions, :, bound].expand_dim(2).broadcast(2, chunks)
        nisa.tensor_tensor(dst=dst, data1=position, data2=bound_PQT, op=op)
    nisa.tensor_tensor(dst=seen, data1=seen, data2=after, op=nl.multiply)
    nisa.tensor_scalar(dst=unseen, data=seen, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=UNSEEN)
    return unseen


def _load_pairs(call: _Call, tensor_BHQK: Any, unit: _Unit, place: _Place) -> Any:
    """What belongs to a block of a mask or a bias, (P, W, T), or (P, Q, T) if it is the same for all heads."""
    _, heads, queries, keys = tensor_BHQK.shape
    batch = broadcast(tensor_BHQK, 0, unit.batch)
    first, last = (0, 1) if heads == 1 else _query_heads(call, place.first_head, place.last_head)
    width = (last - first) * queries
    loaded_PWT = nl.ndarray((place.partitions, width, place.chunks), dtype=tensor_BHQK.dtype)
    pattern = [[place.chunks, place.partitions], [keys, width], [1, place.chunks]]
    offset = (batch * heads + first) * queries * keys + place.start
    nisa.dma_copy(dst=loaded_PWT, src=_at(tensor_BHQK, pattern, offset, place, 3))
    return loaded_PWT


# Keys that no query sees


def _attend_to_seen_keys(call: _Call) -> None:
    units: list[_Unit] = []
    for heads in _heads_of_core(call):
        units.append(_attend_in_loop(call, *heads))
        for unit in units[-2:-1]:  # behind the loads of the next, as in `_advance`
            _store(call, unit)
    for unit in units[-1:]:
        _store(call, unit)


def _attend_in_loop(call: _Call, batch: int, first: int, last: int) -> _Unit:
    """A unit from the first key that a query of it sees to the last one, which the chip finds out while it runs.

    In a body of `fori_loop` nothing is known of the turn before; what they hand on is in the unit's state and bounds.
    """
    unit = _load_unit(call, batch, first, last)
    chunks, keys = call.loop_chunks, call.key_BGKD.shape[2]
    turn = chunks * PARTITIONS
    looped = keys // turn * turn
    cores = nl.num_programs(0) if call.shares_keys else 1
    start_P1, stop = _seen_keys(call, unit, turn)
    unit.bounds_PQ2 = nl.ndarray((PARTITIONS, call.queries, 2), dtype=nl.float32)
    nisa.tensor_scalar(dst=unit.bounds_PQ2, data=unit.ranges_PQ2, op0=nl.subtract, operand0=start_P1)

    def attend(start: Any) -> None:
        places = _places(call, unit, 0, PARTITIONS, chunks, register=start)
        _run(call, _steps_of(call, unit, places, is_all=False))
        nisa.tensor_scalar(dst=unit.bounds_PQ2, data=unit.bounds_PQ2, op0=nl.subtract, operand0=float(turn * cores))

    nl.fori_loop(_register(start_P1), _register(stop, most=looped), attend, step=turn * cores)
    left, rest = divmod(keys - looped, PARTITIONS)
    parts = [(looped, PARTITIONS, left), (keys - rest, rest, 1)]
    for part in _of_core(call, [part for part in parts if part[1] and part[2]]):
        _attend_once(call, unit, part, stop)
    _divide(call, unit)
    _arrange_output(call, unit)
    return unit


def _attend_once(call: _Call, unit: _Unit, part: tuple[int, int, int], stop_P1: Any) -> None:
    """Keys that no turn of the loop has, if any query sees them: a loop of one turn or none."""

    def attend(_: Any) -> None:
        _run(call, _steps_of(call, unit, _places(call, unit, *part), is_all=False))

    nl.fori_loop(part[0], _register(stop_P1), attend, step=call.key_BGKD.shape[2])


def _seen_keys(call: _Call, unit: _Unit, turn: int) -> tuple[Any, Any]:
    """Where the first turn of this core starts and the last seen key ends, on each partition, in float32."""
    keys = float(call.key_BGKD.shape[2])
    start_P1, stop_P1 = (nl.ndarray((PARTITIONS, 1), dtype=nl.float32) for _ in range(2))
    for index, (found, op) in enumerate(((start_P1, nl.minimum), (stop_P1, nl.maximum))):
        nisa.tensor_reduce(dst=found, op=op, data=unit.ranges_PQ2[:, :, index], axis=1)
        nisa.tensor_scalar(dst=found, data=found, op0=nl.maximum, operand0=0.0, op1=nl.minimum, operand1=keys)
    whole_P1 = nl.ndarray((PARTITIONS, 1), dtype=nl.int32)
    nisa.tensor_copy(dst=whole_P1, src=start_P1)
    nisa.tensor_scalar(dst=whole_P1, data=whole_P1, op0=nl.bitwise_and, operand0=-turn)  # a power of two
    skipped = turn * nl.program_id(0) if call.shares_keys else 0
    nisa.tensor_scalar(dst=start_P1, data=whole_P1, op0=nl.add, operand0=float(skipped))
    return start_P1, stop_P1


def _register(number_P1: Any, most: int | None = None) -> Any:
    """A number that is the same on all partitions, `most` at the most."""
    integer = nl.ndarray((1, 1), dtype=nl.int32)
    if most is None:
        nisa.tensor_copy(dst=integer, src=number_P1[0:1, :])
    else:
        nisa.tensor_scalar(dst=integer, data=number_P1[0:1, :], op0=nl.minimum, operand0=float(most))
    register = nisa.register_alloc()
    nisa.register_load(register, integer)
    return register


# Scores


def _transpose_keys(call: _Call, step: _Step) -> None:
    """Chunks of keys with D on the partitions, a bank of PSUM at a time."""
    block = step.block
    heads = block.place.heads
    per_bank = BANK_BYTES // (PARTITIONS * call.itemsize)
    groups = [
        (head, *pieces) for head in range(heads) for pieces in _pieces(step.first, step.last, call.pack)
    ]  # of chunks
    turn = 0
    for chunks in sorted({last - first for _, first, last in groups}):
        alike = [group for group in groups if group[2] - group[1] == chunks]
        for begin, end in _pieces(0, len(alike), per_bank):
            for part, columns in enumerate(call.depth_parts):
                _transpose_bank(call, step, alike[begin:end], part, columns, turn)
                turn += 1


def _transpose_bank(
    call: _Call, step: _Step, groups: list[tuple[int, int, int]], part: int, columns: tuple[int, int], turn: int
) -> None:
    keys_PNTD = step.block.keys_PNTD
    partitions = step.block.place.partitions
    chunks, depth = groups[0][2] - groups[0][1], columns[1] - columns[0]
    in_psum = nl.ndarray((chunks * depth, len(groups), partitions), dtype=keys_PNTD.dtype, buffer=nl.psum)
    copied = nl.ndarray(in_psum.shape, dtype=keys_PNTD.dtype)
    for index, (head, first, last) in enumerate(groups):
        source_PTD = keys_PNTD[:, head, first:last, columns[0] : columns[1]]
        nisa.nc_transpose(dst=in_psum[:, index, :], data=source_PTD, engine=nisa.engine.tensor)
        for chunk in range(first, last):
            rows = slice((chunk - first) * depth, (chunk - first + 1) * depth)
            step.transposed[head, chunk, part] = copied[rows, index, :]
    engine = nisa.engine.scalar if turn % (2 if call.has_many_rows else 4) == 1 else nisa.engine.vector
    nisa.tensor_copy(dst=copied, src=in_psum, engine=engine)


def _score(call: _Call, step: _Step) -> None:
    """Logits before `call.factor`, and the maximum of each partition."""
    block, (column, last_column) = step.block, step.columns
    shape = (block.place.partitions, last_column - column, step.last - step.first)
    scores_PWT = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    for head in range(block.place.heads):
        begin, end = head * call.rows, (head + 1) * call.rows
        for chunk in range(step.first, step.last):
            for part in range(len(call.depth_parts)):
                keys_DP = step.transposed[head, chunk, part]
                depth = keys_DP.shape[0]
                first = (chunk - step.first) % call.pack * depth
                # Packed chunks are on rows of the Tensor Engine of their own, which work at the same time.
                tile = {"tile_position": (first, 0), "tile_size": (depth, PARTITIONS)} if call.pack > 1 else {}
                nisa.nc_matmul(
                    dst=scores_PWT[:, begin:end, chunk - step.first],
                    stationary=keys_DP,
                    moving=step.unit.queries_DW[part][first : first + depth, column + begin : column + end],
                    accumulate=part > 0,
                    **tile,
                )
    step.logits_PWT = _logits(call, step, scores_PWT)
    step.maxima_PW = nl.ndarray(shape[:2], dtype=nl.float32)
    nisa.tensor_reduce(dst=step.maxima_PW, op=nl.maximum, data=step.logits_PWT, axis=2)


def _logits(call: _Call, step: _Step, scores_PWT: Any) -> Any:
    if call.softcap is not None:
        capped_PWT = nl.ndarray(scores_PWT.shape, dtype=nl.float32)
        nisa.activation(dst=capped_PWT, op=nl.tanh, data=scores_PWT, scale=call.scale / call.softcap)
        scores_PWT = capped_PWT
    if not call.is_masked and call.multiplier > 0:
        return scores_PWT
    logits_PWT = nl.ndarray(scores_PWT.shape, dtype=nl.float32)
    if not call.is_masked:
        nisa.tensor_scalar(dst=logits_PWT, data=scores_PWT, op0=nl.multiply, operand0=call.multiplier)
        return logits_PWT
    width = scores_PWT.shape[1]
    nisa.scalar_tensor_tensor(
        dst=_by_head(call, logits_PWT, width),
        data=_by_head(call, scores_PWT, width),
        op0=nl.multiply,
        operand0=call.multiplier,
        op1=nl.add,
        operand1=_by_head(call, step.block.added_PWT[:, :, step.first : step.last], width),
    )
    return logits_PWT


# Weights


def _gather_maxima(step: _Step) -> None:
    """The maximum of all partitions, one row on each."""
    partitions, width = step.maxima_PW.shape
    in_psum = nl.ndarray((width, partitions), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=in_psum, data=step.maxima_PW, engine=nisa.engine.tensor)
    step.highest_W1 = nl.ndarray((width, 1), dtype=nl.float32)
    nisa.tensor_reduce(dst=step.highest_W1, op=nl.maximum, data=in_psum, axis=1)


def _weigh(call: _Call, step: _Step) -> None:
    """exp(factor * (logits - maximum)), and its sum over the chunks."""
    partitions, width, chunks = step.logits_PWT.shape
    spread_PW = nl.ndarray((PARTITIONS, width), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=spread_PW, data=step.highest_W1.broadcast(1, PARTITIONS), engine=nisa.engine.tensor)
    maximum_PW = step.unit.maximum_PW[:, step.columns[0] : step.columns[1]]
    # Two tiles in SBUF share a port of the Vector Engine, and it does not take two in PSUM.
    other = nl.sbuf if step.logits_PWT.buffer == nl.psum else nl.psum
    joined_PW = nl.ndarray((PARTITIONS, width), dtype=nl.float32, buffer=other)
    nisa.tensor_tensor(dst=joined_PW, data1=maximum_PW, data2=spread_PW, op=nl.maximum)
    below_PWT = nl.ndarray(step.logits_PWT.shape, dtype=nl.float32)
    joined_PWT = joined_PW[0:partitions, :].expand_dim(2).broadcast(2, chunks)
    nisa.tensor_tensor(dst=below_PWT, data1=step.logits_PWT, data2=joined_PWT, op=nl.subtract)
    step.weights_PWT = nl.ndarray(below_PWT.shape, dtype=call.query_BHQD.dtype)
    nisa.activation(dst=step.weights_PWT, op=nl.exp, data=below_PWT, scale=call.factor)
    step.decay_PW = nl.ndarray((PARTITIONS, width), dtype=nl.float32)
    nisa.tensor_tensor(dst=step.decay_PW, data1=maximum_PW, data2=joined_PW, op=nl.subtract)
    nisa.activation(dst=step.decay_PW, op=nl.exp, data=step.decay_PW, scale=call.factor)
    nisa.tensor_copy(dst=maximum_PW, src=joined_PW, engine=nisa.engine.scalar)
    if not call.has_many_rows:
        step.sums_PW = nl.ndarray((partitions, width), dtype=nl.float32)
        nisa.tensor_reduce(dst=step.sums_PW, op=nl.add, data=step.weights_PWT, axis=2)


# Values


def _join(call: _Call, step: _Step) -> None:
    """Adds the step's weights and weighted values to what its unit has."""
    block, rows = step.block, call.rows
    partitions, width, chunks = step.weights_PWT.shape
    added = nl.ndarray((PARTITIONS, 1 + len(call.width_parts), width), dtype=nl.float32, buffer=nl.psum)
    terms = [step.sums_PW]
    if call.has_many_rows:
        terms = [step.weights_PWT[:, :, chunk] for chunk in range(chunks)]
    for index, term_PW in enumerate(terms):
        ones_PP = call.ones_PP[0:partitions, :]
        nisa.nc_matmul(dst=added[:, 0, :], stationary=ones_PP, moving=term_PW, accumulate=index > 0)
    for head in range(block.place.heads):
        for part, (first, last) in enumerate(call.width_parts):
            for chunk in range(chunks):
                nisa.nc_matmul(
                    dst=added[0 : last - first, 1 + part, head * rows : (head + 1) * rows],
                    stationary=block.values_PNTE[:, head, step.first + chunk, first:last],
                    moving=step.weights_PWT[:, head * rows : (head + 1) * rows, chunk],
                    accumulate=chunk > 0,
                )
    state = step.unit.state[:, 1:, step.columns[0] : step.columns[1]]
    _shrink(state, step.decay_PW)
    for height, first, last in _same_heights(call):
        nisa.tensor_tensor(
            dst=state[0:height, first:last, :],
            data1=state[0:height, first:last, :],
            data2=added[0:height, first:last, :],
            op=nl.add,
        )


def _same_heights(call: _Call) -> list[tuple[int, int, int]]:
    """(partitions, first, last) of what is joined by one instruction: sums and whole parts of E, then the rest."""
    heights = [PARTITIONS, *(last - first for first, last in call.width_parts)]
    whole = heights.count(PARTITIONS)
    pieces = [(PARTITIONS, 0, whole)]
    return pieces if whole == len(heights) else [*pieces, (heights[-1], whole, whole + 1)]


def _exchange(call: _Call, unit: _Unit) -> None:
    """Joins what both cores have of a unit, on both of them."""
    other = nl.ndarray(unit.state.shape, dtype=nl.float32)
    core = 1 - nl.program_id(0)
    nisa.sendrecv(src=unit.state, dst=other, send_to_rank=core, recv_from_rank=core, pipe_id=0)
    joined_PW = nl.ndarray((PARTITIONS, unit.state.shape[2]), dtype=nl.float32)
    nisa.tensor_tensor(dst=joined_PW, data1=unit.maximum_PW, data2=other[:, 0, :], op=nl.maximum)
    for state in (unit.state, other):
        decay_PW = nl.ndarray(joined_PW.shape, dtype=nl.float32)
        nisa.tensor_tensor(dst=decay_PW, data1=state[:, 0, :], data2=joined_PW, op=nl.subtract)
        nisa.activation(dst=decay_PW, op=nl.exp, data=decay_PW, scale=call.factor)
        _shrink(state[:, 1:, :], decay_PW)
    nisa.tensor_tensor(dst=unit.state[:, 1:, :], data1=unit.state[:, 1:, :], data2=other[:, 1:, :], op=nl.add)


def _shrink(state_PNW: Any, decay_PW: Any) -> None:
    decay_PNW = decay_PW.expand_dim(1).broadcast(1, state_PNW.shape[1])
    nisa.tensor_tensor(dst=state_PNW, data1=state_PNW, data2=decay_PNW, op=nl.multiply)


def _divide(call: _Call, unit: _Unit) -> None:
    """Divides by the sum of the weights."""
    if call.shares_keys:
        _exchange(call, unit)
    total_PW = unit.state[:, 1, :]
    if call.is_masked and call.sinks_H is None:
        nisa.tensor_scalar(dst=total_PW, data=total_PW, op0=nl.maximum, operand0=SMALLEST)
    share_PW = nl.ndarray(total_PW.shape, dtype=nl.float32)
    nisa.reciprocal(dst=share_PW, data=total_PW)
    _shrink(unit.state[:, 2:, :], share_PW)


def _arrange_output(call: _Call, unit: _Unit) -> None:
    """The rows on the partitions, in the dtype of the result."""
    width = unit.state.shape[2]
    unit.output_WE = nl.ndarray((width, call.value_BGKE.shape[3]), dtype=call.output_BHQE.dtype)
    for part, (first, last) in enumerate(call.width_parts):
        in_psum = nl.ndarray((width, last - first), dtype=nl.float32, buffer=nl.psum)
        result_EW = unit.state[0 : last - first, 2 + part, :]
        nisa.nc_transpose(dst=in_psum, data=result_EW, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=unit.output_WE[:, first:last], src=in_psum)


def _store(call: _Call, unit: _Unit) -> None:
    if call.shares_keys and nl.program_id(0) > 0:
        return
    first, last = _query_heads(call, unit.first_head, unit.last_head)
    nisa.dma_copy(dst=call.output_BHQE[unit.batch, first:last].flatten_dims(0, 1), src=unit.output_WE)
