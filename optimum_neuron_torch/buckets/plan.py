"""Choosing a set of bucket sizes: powers of two between limits, or the set of least padded work for observed sizes."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..config import Buckets


@dataclass(frozen=True)
class Plan:
    """Buckets for one axis and what they cost.

    `waste` is the share of positions that would be padding on the observed sizes; `peers` holds the waste of one
    maximum and of powers of two, for comparison. Both are empty without observations.
    """

    buckets: Buckets
    sizes: tuple[int, ...]
    waste: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    observed: tuple[int, ...] = ()

    def plot(self, path: str | os.PathLike) -> Path:
        """Draw the observed sizes and the chosen buckets into an image. Raises ValueError without observations."""
        if not self.observed:
            raise ValueError("nothing to draw: this plan was made from limits, not from observed sizes")
        import matplotlib.figure

        figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.hist(self.observed, bins=min(60, max(self.observed)), color="#6f8faf", label="observed sizes")
        for index, size in enumerate(self.sizes):
            axes.axvline(size, color="#c0392b", linewidth=1.2, label="buckets" if index == 0 else None)
            axes.annotate(str(size), (size, axes.get_ylim()[1]), ha="right", va="top", rotation=90, fontsize=8)
        axes.set(
            xlabel="sequence length (tokens)",
            ylabel="inputs",
            title=f"{len(self.sizes)} buckets, {self.waste:.1%} padding",
        )
        axes.legend()
        figure.savefig(path, dpi=120)
        return Path(path)


def plan(
    sizes_or_path: Sequence[int] | str | os.PathLike | None = None,
    *,
    graphs: int = 6,
    limits: tuple[int, int] | None = None,
) -> Plan:
    """Choose sequence buckets.

    Args:
        sizes_or_path: observed lengths (tokens), or a JSON file with a list of them; None plans from `limits` alone.
        graphs: the most buckets to use.
        limits: (smallest, largest) length to serve; with observations, the largest bucket reaches at least the second.

    With observations the set is the one of least padded work among all sets of at most `graphs` sizes (dynamic
    programming, exact); without, powers of two between the limits. Raises ValueError for empty or non-positive sizes.
    """
    if type(graphs) is not int or graphs < 1:
        raise ValueError(f"graphs={graphs!r}: at least one bucket is needed")
    if sizes_or_path is None:
        if limits is None:
            raise ValueError("plan() needs observed sizes or limits=(smallest, largest)")
        chosen = powers_of_two(*_pair(limits))
        return Plan(Buckets(sequence=list(chosen)), chosen)
    observed = _read_sizes(sizes_or_path)
    ceiling = max(max(observed), _pair(limits)[1] if limits else 0)
    chosen = least_padding(observed, graphs, ceiling)
    peers = {
        "one maximum": waste_of(observed, (ceiling,)),
        "powers of two": waste_of(observed, powers_of_two(min(observed), ceiling)),
    }
    return Plan(Buckets(sequence=list(chosen)), chosen, waste_of(observed, chosen), peers, tuple(observed))


def _read_sizes(source: Sequence[int] | str | os.PathLike) -> list[int]:
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            source = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is no JSON file with a list of lengths ({error})") from error
    sizes = source.tolist() if hasattr(source, "tolist") else source  # arrays and tensors
    is_list = isinstance(sizes, Iterable) and not isinstance(sizes, (str, dict))
    sizes = list(sizes) if is_list else []
    if not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError("observed sizes must be a non-empty list of positive integers")
    return sizes


def _pair(limits: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(limits, (tuple, list)) or len(limits) != 2 or not all(type(size) is int for size in limits):
        raise ValueError(f"limits={limits!r}: expected (smallest, largest)")
    return tuple(limits)


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


def waste_of(observed: Iterable[int], buckets: Sequence[int]) -> float:
    """Share of padded positions when each size runs in the smallest bucket that holds it."""
    observed = list(observed)
    padded = sum(next(bucket for bucket in buckets if bucket >= size) for size in observed)
    return 1 - sum(observed) / padded


def least_padding(observed: Sequence[int], graphs: int, ceiling: int) -> tuple[int, ...]:
    """The at most `graphs` sizes, the last of them `ceiling`, with the least padded positions on `observed`.

    cost[k][j]: padded positions of the j smallest distinct sizes with k buckets, the last one at the j-th size.
    """
    distinct = sorted({*observed, ceiling})
    counts = [sum(1 for size in observed if size == value) for value in distinct]
    below = [0]
    for count in counts:
        below.append(below[-1] + count)
    n, infinity = len(distinct), float("inf")
    cost = [0.0] + [infinity] * n
    choices: list[list[int]] = []
    best, best_k = infinity, 0
    for k in range(1, min(graphs, n) + 1):
        row, choice = [infinity] * (n + 1), [0] * (n + 1)
        for j in range(1, n + 1):
            for i in range(j):
                total = cost[i] + distinct[j - 1] * (below[j] - below[i])
                if total < row[j]:
                    row[j], choice[j] = total, i
        choices.append(choice)
        cost = row
        if cost[n] < best:
            best, best_k = cost[n], k
        cost[0] = infinity
    sizes, j = [], n
    for k in range(best_k, 0, -1):
        sizes.append(distinct[j - 1])
        j = choices[k - 1][j]
    return tuple(reversed(sizes))
