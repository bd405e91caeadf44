"""Sets of bucket sizes of least padded work for observed inputs: exact for one axis, a bounded heuristic for two.

Buckets of two axes are a grid: a graph for each pair of a batch size and a sequence size.

Shape legend: N observations.
"""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


# Sizes looked at by one planning, about a microsecond each: what may be spent on trying all sets of one axis.
_AFFORDABLE = 1_500_000


@dataclass(frozen=True)
class Grid:
    """A graph for each combination of a batch size and a sequence size, both ascending."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...]

    @property
    def graphs(self) -> int:
        return len(self.batches) * len(self.sequences)

    def fit(self, observed_N2: np.ndarray) -> np.ndarray:
        """The bucket (batch, sequence) that serves each observation (batch, sequence)."""
        columns = (_fit(observed_N2[:, 0], self.batches), _fit(observed_N2[:, 1], self.sequences))
        return np.stack(columns, axis=1)

    def work(self, observed_N2: np.ndarray) -> int:
        """Positions computed for the observations, padding included."""
        return int(self.fit(observed_N2).prod(axis=1).sum())


def _fit(sizes: np.ndarray, buckets: Sequence[int]) -> np.ndarray:
    return np.asarray(buckets, dtype=np.int64)[np.searchsorted(buckets, sizes)]


def powers_of_two(smallest: int, largest: int) -> tuple[int, ...]:
    """Powers of two from the one that holds `smallest` up to `largest`, which closes the list."""
    if not 0 < smallest <= largest:
        raise ValueError(f"limits ({smallest}, {largest}): expected 0 < smallest <= largest")
    size, sizes = 1, []
    while size < smallest:
        size *= 2
    while size < largest:
        sizes.append(size)
        size *= 2
    return (*sizes, largest)


def least_padding(observed_N2: np.ndarray, graphs: int, largest: tuple[int, int]) -> tuple[Grid, int]:
    """A grid of at most `graphs` graphs that reaches `largest`, and a lower bound of the work of every such grid.

    Each way to share the graphs between the axes is tried. For given sizes of one axis the best ones of the other are
    found exactly, so where one axis has few sets of sizes (one batch size, or a handful) trying them all is exact, and
    the bound is the work. Elsewhere the axes take turns until nothing improves, from two starts; the bound then
    follows from each axis padded alone: padding rows and tokens both costs at least the sum of what each costs alone.
    """
    pairs, counts = np.unique(observed_N2, axis=0, return_counts=True)
    batch, sequence = _Axis(pairs[:, 0], largest[0]), _Axis(pairs[:, 1], largest[1])
    found: list[tuple[int, Grid]] = []
    bounds: list[int] = []
    for most_batches, most_sequences in _shares(graphs, len(batch), len(sequence)):
        try_batches = batch.choices(most_batches) * len(sequence) * most_sequences
        try_sequences = sequence.choices(most_sequences) * len(batch) * most_batches
        if min(try_batches, try_sequences) > _AFFORDABLE:
            found.append(_take_turns(batch, sequence, counts, most_batches, most_sequences))
            bounds.append(_bound(batch, sequence, counts, most_batches, most_sequences))
            continue
        if try_batches <= try_sequences:
            work, batches, sequences = _try_all(batch, sequence, counts, most_batches, most_sequences)
        else:
            work, sequences, batches = _try_all(sequence, batch, counts, most_sequences, most_batches)
        found.append((work, Grid(batches, sequences)))
        bounds.append(work)
    return min(found, key=lambda one: (one[0], one[1].graphs))[1], min(bounds)


def _shares(graphs: int, batches: int, sequences: int) -> list[tuple[int, int]]:
    """(batch sizes, sequence sizes) whose product is at most `graphs`, without those that another one includes."""
    shares = [(most, min(graphs // most, sequences)) for most in range(1, min(graphs, batches) + 1)]
    return [
        share for share, larger in zip(shares, [*shares[1:], None], strict=True) if not larger or larger[1] < share[1]
    ]


def _try_all(
    outer: "_Axis", inner: "_Axis", counts: np.ndarray, most_outer: int, most_inner: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(work, sizes of `outer`, sizes of `inner`) of least work, by trying every set of sizes of `outer`."""
    *below, largest = outer.sizes.tolist()
    sets = [(*rest, largest) for rest in itertools.combinations(below, min(most_outer - 1, len(below)))]
    tried = ((*inner.best(counts * _fit(outer.values, sizes), most_inner)[-1], sizes) for sizes in sets)
    work, inner_sizes, outer_sizes = min(tried, key=lambda one: one[0])
    return work, outer_sizes, inner_sizes


def _take_turns(
    batch: "_Axis", sequence: "_Axis", counts: np.ndarray, most_batches: int, most_sequences: int
) -> tuple[int, Grid]:
    """(work, grid), from the batch sizes that are best for unpadded sequences, and those for the sequence sizes that
    are best for unpadded batches.
    """
    _, batches = batch.best(counts * sequence.values, most_batches)[-1]
    _, sequences = sequence.best(counts * batch.values, most_sequences)[-1]
    _, others = batch.best(counts * _fit(sequence.values, sequences), most_batches)[-1]
    best: tuple[int, Grid] | None = None
    for turn in sorted({batches, others}):
        improved = True
        while improved:
            _, sequences = sequence.best(counts * _fit(batch.values, turn), most_sequences)[-1]
            work, turn = batch.best(counts * _fit(sequence.values, sequences), most_batches)[-1]
            improved = best is None or work < best[0]
            if improved:
                best = work, Grid(turn, sequences)
    return best


def _bound(batch: "_Axis", sequence: "_Axis", counts: np.ndarray, most_batches: int, most_sequences: int) -> int:
    """(b + x)(s + y) >= (b + x)s + b(s + y) - bs: each sum on the right at its own least."""
    batch_alone, _ = batch.best(counts * sequence.values, most_batches)[-1]
    sequence_alone, _ = sequence.best(counts * batch.values, most_sequences)[-1]
    return batch_alone + sequence_alone - int((counts * batch.values * sequence.values).sum())


@dataclass(frozen=True)
class _Axis:
    """One axis of the distinct observations: the size of each, and the size that buckets have to reach."""

    values: np.ndarray
    largest: int

    @cached_property
    def sizes(self) -> np.ndarray:
        """The sizes a bucket may have, ascending."""
        return np.unique(np.append(self.values, self.largest))

    @cached_property
    def _places(self) -> np.ndarray:
        """The place of each observation among `sizes`."""
        return np.searchsorted(self.sizes, self.values)

    def __len__(self) -> int:
        return len(self.sizes)

    def choices(self, most: int) -> int:
        """How many sets of `most` sizes there are, the largest in each of them."""
        return math.comb(len(self) - 1, min(most, len(self)) - 1)

    def best(self, weights: np.ndarray, most: int) -> list[tuple[int, tuple[int, ...]]]:
        """For up to 1, 2, ... `most` buckets: the least sum of weight x bucket, and the buckets. Exact.

        The list ends where every size has its own bucket.
        """
        totals = np.zeros(len(self) + 1, dtype=np.int64)
        np.add.at(totals, self._places + 1, weights)
        return _cheapest_covers(self.sizes.tolist(), np.cumsum(totals).tolist(), most)


def _cheapest_covers(sizes: list[int], below: list[int], most: int) -> list[tuple[int, tuple[int, ...]]]:
    """Dynamic programming over the ascending `sizes`; `below[j]` is the weight of the j smallest of them.

    cost[j] is the least cost of the j smallest sizes when the last bucket is the j-th of them, None where the number
    of buckets is too large for that.
    """
    cost: list[int | None] = [0] + [None] * len(sizes)
    choices: list[list[int]] = []
    covers: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(min(most, len(sizes))):
        cost, choice = _with_one_more(cost, sizes, below)
        choices.append(choice)
        if covers and cost[-1] >= covers[-1][0]:  # no gain: the smaller set serves as well
            covers.append(covers[-1])
            continue
        chosen, j = [], len(sizes)
        for choice in reversed(choices):
            chosen.append(sizes[j - 1])
            j = choice[j]
        covers.append((cost[-1], tuple(reversed(chosen))))
    return covers


def _with_one_more(cost: list[int | None], sizes: list[int], below: list[int]) -> tuple[list[int | None], list[int]]:
    """The costs with one bucket more, and for each the number of sizes left to the other buckets.

    Leaving i sizes to them costs cost[i] - below[i] * x at bucket x: a line in x. The lines become less steep by
    turns and x only grows, so the lowest line is found by keeping their lower hull: linear time.
    """
    row: list[int | None] = [None] * len(cost)
    choice = [0] * len(cost)
    hull: deque[int] = deque()
    for j in range(1, len(cost)):
        new, x = j - 1, sizes[j - 1]
        if cost[new] is not None:
            while len(hull) > 1 and _is_hidden(hull[-2], hull[-1], new, cost, below):
                hull.pop()
            hull.append(new)
        while len(hull) > 1 and cost[hull[1]] - below[hull[1]] * x <= cost[hull[0]] - below[hull[0]] * x:
            hull.popleft()
        if hull:
            i = hull[0]
            row[j], choice[j] = cost[i] + x * (below[j] - below[i]), i
    return row, choice


def _is_hidden(first: int, middle: int, last: int, cost: list[int | None], below: list[int]) -> bool:
    """Whether the line of `middle` is nowhere below both others."""
    return (cost[last] - cost[first]) * (below[middle] - below[first]) <= (cost[middle] - cost[first]) * (
        below[last] - below[first]
    )
