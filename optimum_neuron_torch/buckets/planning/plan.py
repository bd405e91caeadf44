"""Choosing a set of bucket sizes: powers of two between limits, or the set of least padded work for observed sizes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...config import Buckets
from .covering import Grid, least_padding, powers_of_two
from .observed import read_sizes


Limits = tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Plan:
    """Buckets and what they cost. `str()` is a table.

    Attributes:
        buckets: for NeuronConfig(buckets=...).
        sizes, batches: the sequence sizes and, where both axes were planned, the batch sizes, with a graph for each
            pair of the two.
        waste: share of the positions computed for the observed inputs that would be padding; None without
            observations.
        bound: a waste that no set of as many graphs goes below; for sequences alone it is `waste`.
        peers: the waste of one maximum and of powers of two.
        observed: lengths (N,), or (batch, sequence) pairs (N, 2); None without.
    """

    buckets: Buckets
    sizes: tuple[int, ...]
    batches: tuple[int, ...] = ()
    waste: float | None = None
    bound: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    observed: np.ndarray | None = field(default=None, repr=False, compare=False)

    @property
    def grid(self) -> Grid:
        """The sizes of both axes; of a plan for sequences alone, a batch of 1."""
        return Grid(self.batches or (1,), self.sizes)

    @property
    def pairs(self) -> np.ndarray:
        """The observations as (batch, sequence); of a plan for sequences alone, batches of 1."""
        return _as_pairs(self.observed)

    @property
    def peer_grids(self) -> dict[str, Grid]:
        """What the plan is compared with, by name; empty without observations."""
        if self.observed is None:
            return {}
        return _peer_grids(self.pairs, (self.grid.batches[-1], self.sizes[-1]))

    @property
    def gap(self) -> float | None:
        """By what share the work may be above that of the best set: 0 for sequences alone, which are exact."""
        return None if self.waste is None else (1 - self.bound) / (1 - self.waste) - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data that json can write."""
        return {
            "buckets": self.buckets.to_dict(),
            "sizes": list(self.sizes),
            "batches": list(self.batches),
            "graphs": self.grid.graphs,
            "waste": self.waste,
            "bound": self.bound,
            "gap": self.gap,
            "peers": self.peers,
            "observations": 0 if self.observed is None else len(self.observed),
        }

    def __str__(self) -> str:
        from .table import render_plan

        return render_plan(self)

    def plot(self, path: str | os.PathLike) -> Path:
        """Draw the observed sizes and the chosen buckets into an image. Raises ValueError without observations."""
        if self.observed is None:
            raise ValueError("nothing to draw: this plan was made from limits, not from observed sizes")
        from .picture import draw

        return draw(self, Path(path))


def plan(
    sizes_or_path: Sequence[int] | Sequence[tuple[int, int]] | str | os.PathLike | None = None,
    *,
    graphs: int = 6,
    limits: Limits | None = None,
) -> Plan:
    """Choose buckets for sequences, or for batches and sequences.

    Args:
        sizes_or_path: observed lengths (tokens), or (batch, sequence) pairs; a list, an array, or a file: JSON, JSON
            lines, CSV, or numbers line by line. None plans from `limits` alone.
        graphs: the most graphs to spend on what was observed: buckets, or pairs of them for two axes.
        limits: (smallest, largest) length to serve, or one such pair for batches and one for lengths. With
            observations the largest buckets reach at least the largest limits.

    With observed lengths the set is the one of least padded work among all sets of at most `graphs` sizes (dynamic
    programming, exact). For pairs it is the best that a heuristic finds (`buckets/covering.py`); `Plan.gap` says how
    far from the best it can be. Without observations: powers of two between the limits.

    Raises ValueError for empty or non-positive sizes and for a file that holds none.
    """
    if type(graphs) is not int or graphs < 1:
        raise ValueError(f"graphs={graphs!r}: at least one bucket is needed")
    if sizes_or_path is None:
        if limits is None:
            raise ValueError("plan() needs observed sizes or limits=(smallest, largest)")
        return _plan_of(Grid(*(powers_of_two(*pair) for pair in _limits(limits))), _is_pair_of_pairs(limits))
    observed = read_sizes(sizes_or_path)
    pairs = _as_pairs(observed)
    largest = tuple(pairs.max(axis=0).tolist())
    if limits is not None:
        largest = tuple(max(size, high) for size, (_, high) in zip(largest, _limits(limits), strict=True))
    grid, bound = least_padding(pairs, graphs, largest)
    peers = _peer_grids(pairs, largest)
    real = int(pairs.prod(axis=1).sum())
    return _plan_of(
        grid,
        observed.ndim == 2,
        waste=1 - real / grid.work(pairs),
        bound=1 - real / bound,
        peers={name: 1 - real / peer.work(pairs) for name, peer in peers.items()},
        observed=observed,
    )


def _plan_of(grid: Grid, has_batches: bool, **facts: Any) -> Plan:
    if not has_batches:
        return Plan(Buckets(sequence=list(grid.sequences)), grid.sequences, **facts)
    buckets = Buckets(batch=list(grid.batches), sequence=list(grid.sequences))
    return Plan(buckets, grid.sequences, grid.batches, **facts)


def _peer_grids(pairs: np.ndarray, largest: tuple[int, int]) -> dict[str, Grid]:
    smallest = pairs.min(axis=0).tolist()
    return {
        "one maximum": Grid(*((size,) for size in largest)),
        "powers of two": Grid(*(powers_of_two(*pair) for pair in zip(smallest, largest, strict=True))),
    }


def _as_pairs(observed: np.ndarray) -> np.ndarray:
    if observed.ndim == 2:
        return observed
    return np.stack([np.ones_like(observed), observed], axis=1)


def _limits(limits: Limits) -> tuple[tuple[int, int], tuple[int, int]]:
    """The limits of batches and of lengths."""
    of_axes = tuple(limits) if _is_pair_of_pairs(limits) else ((1, 1), limits)
    for pair in of_axes:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(type(size) is int for size in pair):
            raise ValueError(
                f"limits={limits!r}: expected (smallest, largest), or ((smallest, largest) batch, (smallest, largest) "
                "sequence)"
            )
        if not 0 < pair[0] <= pair[1]:
            raise ValueError(f"limits {tuple(pair)}: expected 0 < smallest <= largest")
    return of_axes


def _is_pair_of_pairs(limits: Any) -> bool:
    return (
        isinstance(limits, (tuple, list))
        and len(limits) == 2
        and all(isinstance(pair, (tuple, list)) for pair in limits)
    )
