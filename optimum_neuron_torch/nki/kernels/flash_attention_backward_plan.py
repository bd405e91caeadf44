"""Which queries meet which keys in the backward of flash attention: in which order, and on which core.

All of it is known from the shapes before the first instruction. See `flash_attention_backward.py` for what is done.

Shape legend: as there.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import nki.language as nl

from .heads import ceil


TILE = 128  # partitions, so rows of a tile
BLOCK_KEYS = 512  # float32 values of a PSUM bank: what one product may write
WIDE_BLOCK_KEYS = 256  # for head sizes above 128: the sums of a block's keys and values are four banks all the same
SECTION_BYTES = 80 * 1024  # of a partition: the next section is loaded while SBUF still holds this one


@dataclass(frozen=True)
class Problem:
    """What the kernel was called with."""

    grad_BHQE: Any
    query_BHQD: Any
    key_BGKD: Any
    value_BGKE: Any
    output_BHQE: Any
    logsumexp_BHQ: Any
    ranges_BQ2: Any
    mask_BHQK: Any
    bias_BHQK: Any
    sinks_H: Any
    scale: float
    softcap: float | None
    is_causal: bool
    needs_bias_gradient: bool
    weights_BHQ: Any = None

    @property
    def dtype(self):
        return self.query_BHQD.dtype

    @property
    def queries(self) -> int:
        return self.query_BHQD.shape[2]

    @property
    def keys(self) -> int:
        return self.key_BGKD.shape[2]

    @property
    def depth(self) -> int:
        return self.query_BHQD.shape[3]

    @property
    def value_depth(self) -> int:
        return self.value_BGKE.shape[3]

    @property
    def heads_per_group(self) -> int:
        return self.query_BHQD.shape[1] // self.key_BGKD.shape[1]


@dataclass(frozen=True)
class QueryTile:
    """Up to 128 queries of a head, the `place`-th tile of their section."""

    head: int
    start: int
    rows: int
    place: int

    @property
    def columns(self) -> slice:
        """Of the section's transposed tensors."""
        return slice(self.place * TILE, self.place * TILE + self.rows)


@dataclass
class Unit:
    """A key head of a batch row, with the query heads that use it."""

    batch: int
    group: int
    cores: int  # that take its key blocks in turns, each with sums of its own for the queries
    sink_sums_PH: Any = None


@dataclass
class Section:
    """Queries of a unit that are in SBUF together."""

    unit: Unit
    tiles: list[QueryTile]
    is_last: bool
    loaded: Any = None
    loading: Any = None  # what is still to do
    arrived: int = 0  # tiles of which all is loaded
    number: int = 0  # among those of this core
    prepared: set[int] = field(default_factory=set)  # places of the tiles that are
    begun: set[int] = field(default_factory=set)  # places of the tiles whose sums have begun


class KeySums(NamedTuple):
    key_KMD: Any
    value_KME: Any


@dataclass
class StoredSums:
    """The float32 sums of one block's keys over the sections so far, in HBM, of the chunks that have any."""

    sums: KeySums
    chunks: int = 0


@dataclass
class Block:
    """Keys whose gradients grow in PSUM, while the queries of one section pass by."""

    section: Section
    start: int
    keys: int
    stored: StoredSums | None  # None where only one section sees the block
    is_last: bool  # of the sections that see it, which then sees all of it
    loaded: Any = None
    sums: KeySums | None = None
    chunks: int = 0  # whose sums have begun


@dataclass
class Step:
    """One tile of queries with one block of keys; without a tile where a section sees nothing of this core's keys."""

    section: Section
    block: Block | None = None
    tile: QueryTile | None = None
    seen: int = 0  # keys of the block, from the first on, that the tile may see
    ends_block: bool = False
    ends_section: bool = False
    mask_QK: Any = None
    squares_QK: Any = None  # of the softcap's tanh
    probabilities_QK: Any = None
    score_grads_QK: Any = None
    score_grads_KMQ: Any = None


def plan(problem: Problem) -> list[Step]:
    """The steps of this core."""
    cores, core = nl.num_programs(), nl.program_id(0)
    batch, groups = problem.key_BGKD.shape[:2]
    units = [(row, group) for row in range(batch) for group in range(groups)]
    alone = len(units) // cores * cores
    steps = []
    for row, group in units[core:alone:cores]:
        steps += _unit_steps(problem, Unit(row, group, 1), 0)
    for row, group in units[alone:]:
        steps += _unit_steps(problem, Unit(row, group, cores), core)
    for before, step in zip(steps, steps[1:], strict=False):
        step.section.number = before.section.number + before.ends_section
    return steps


def _unit_steps(problem: Problem, unit: Unit, core: int) -> list[Step]:
    """Section by section, and in each of them block by block."""
    sections = _sections(problem, unit)
    widest = BLOCK_KEYS if max(problem.depth, problem.value_depth) <= TILE else WIDE_BLOCK_KEYS
    size = min(widest, ceil(ceil(problem.keys, unit.cores), TILE) * TILE)
    blocks: list[list[Block]] = [[] for _ in sections]
    for start in range(core * size, problem.keys, unit.cores * size):
        keys = min(size, problem.keys - start)
        users = [
            index
            for index, section in enumerate(sections)
            if any(keys_seen(problem, tile, start, keys) for tile in section.tiles)
        ]
        stored = None if len(users) == 1 else StoredSums(key_sums(problem, keys, nl.private_hbm))
        for index in users:
            blocks[index].append(Block(sections[index], start, keys, stored, index == users[-1]))
    return [step for each, own in zip(sections, blocks, strict=True) for step in _section_steps(problem, each, own)]


def key_sums(problem: Problem, keys: int, buffer: Any) -> KeySums:
    shape = (TILE, ceil(keys, TILE))
    return KeySums(
        nl.ndarray((*shape, problem.depth), nl.float32, buffer=buffer),
        nl.ndarray((*shape, problem.value_depth), nl.float32, buffer=buffer),
    )


def _sections(problem: Problem, unit: Unit) -> list[Section]:
    heads = range(unit.group * problem.heads_per_group, (unit.group + 1) * problem.heads_per_group)
    places = [(head, start) for head in heads for start in range(0, problem.queries, TILE)]
    count = ceil(len(places), _section_tiles(problem))
    size = ceil(len(places), count)
    sections = []
    for first in range(0, len(places), size):
        tiles = [
            QueryTile(head, start, min(TILE, problem.queries - start), place)
            for place, (head, start) in enumerate(places[first : first + size])
        ]
        sections.append(Section(unit, tiles, first + size >= len(places)))
    return sections


def _section_tiles(problem: Problem) -> int:
    """How many tiles of queries fit: queries and gradients as they are and transposed, outputs, float32 sums."""
    depths = problem.depth + 2 * problem.value_depth
    transposed = TILE * (ceil(problem.depth, TILE) + ceil(problem.value_depth, TILE))
    return SECTION_BYTES // (itemsize(problem.dtype) * (depths + transposed) + 4 * problem.depth)


def _section_steps(problem: Problem, section: Section, blocks: list[Block]) -> list[Step]:
    steps = []
    for block in blocks:
        for tile in section.tiles:
            seen = keys_seen(problem, tile, block.start, block.keys)
            if seen:
                steps.append(Step(section, block, tile, seen))
        steps[-1].ends_block = True
    if not steps:
        steps.append(Step(section))
    steps[-1].ends_section = True
    return steps


def keys_seen(problem: Problem, tile: QueryTile, start: int, keys: int) -> int:
    """How many of a block's keys come before the end of the tile, where order counts."""
    return max(0, min(keys, tile.start + tile.rows - start)) if problem.is_causal else keys


# Rows in tiles


def itemsize(dtype: Any) -> int:
    return 4 if dtype == nl.float32 else 2


def parts_of(depth: int) -> list[tuple[int, int]]:
    """Start and size of the parts of a head size, each of which the partitions hold."""
    return [(first, min(TILE, depth - first)) for first in range(0, depth, TILE)]


def pieces_of(rows: int, most: int | None = None) -> list[tuple[int, int, int]]:
    """(partitions, first tile, one behind the last) of what one instruction takes: whole tiles, then what is left."""
    whole = rows // TILE
    most = most or max(whole, 1)
    pieces = [(TILE, first, min(first + most, whole)) for first in range(0, whole, most)]
    return pieces + ([(rows % TILE, whole, whole + 1)] if rows % TILE else [])


def runs_of(tiles: list[QueryTile], most: int | None = None) -> list[tuple[int, int, int, int]]:
    """(head, first query, queries, place) of what follows each other within a head, of up to `most` tiles."""
    runs: list[tuple[int, int, int, int]] = []
    for tile in tiles:
        if runs and runs[-1][0] == tile.head and (most is None or tile.place - runs[-1][3] < most):
            head, start, rows, place = runs[-1]
            runs[-1] = (head, start, rows + tile.rows, place)
        else:
            runs.append((tile.head, tile.start, tile.rows, tile.place))
    return runs
