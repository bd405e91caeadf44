"""Choosing buckets: the chosen sets against trying every set, and the forms observations come in."""

import itertools
import json
import random
import time

import numpy as np
import pytest
import torch

from optimum_neuron_torch import plan
from optimum_neuron_torch.buckets.planning import covering
from optimum_neuron_torch.buckets.planning.covering import Grid, powers_of_two


def work(observed: list[tuple[int, int]], batches: tuple[int, ...], sequences: tuple[int, ...]) -> int:
    """Positions computed, one observation at a time."""
    return sum(min(b for b in batches if b >= rows) * min(s for s in sequences if s >= n) for rows, n in observed)


def sets_of(sizes: set[int], count: int, largest: int) -> list[tuple[int, ...]]:
    """Every set of `count` sizes at most, the largest among them."""
    rest = sorted(sizes - {largest})
    return [(*some, largest) for few in range(count) for some in itertools.combinations(rest, few)]


@pytest.mark.parametrize("seed", range(40))
def test_no_set_of_as_many_buckets_wastes_less(seed):
    chance = random.Random(seed)
    observed = [chance.randint(1, 15) for _ in range(chance.randint(1, 12))]
    graphs, ceiling = chance.randint(1, 4), max(observed) + chance.randint(0, 3)
    made = plan(observed, graphs=graphs, limits=(1, ceiling))
    pairs = [(1, size) for size in observed]
    best = min(work(pairs, (1,), sizes) for sizes in sets_of(set(observed), graphs, ceiling))
    assert len(made.sizes) <= graphs and made.sizes[-1] == ceiling
    assert work(pairs, (1,), made.sizes) == best
    assert made.waste == made.bound == pytest.approx(1 - sum(observed) / best)
    assert made.gap == 0


def best_grid(observed: list[tuple[int, int]], graphs: int) -> int:
    """The least work of all grids of `graphs` graphs at most, by trying them."""
    batches, sequences = ({pair[axis] for pair in observed} for axis in (0, 1))
    return min(
        work(observed, some, others)
        for count in range(1, graphs + 1)
        for some in sets_of(batches, count, max(batches))
        for others in sets_of(sequences, graphs // len(some), max(sequences))
    )


@pytest.mark.parametrize("affordable", [0, covering._AFFORDABLE], ids=["in turns", "all tried"])
def test_two_axes_against_every_grid(affordable, monkeypatch):
    monkeypatch.setattr(covering, "_AFFORDABLE", affordable)
    gaps = []
    for seed in range(60):
        chance = random.Random(seed)
        observed = [(chance.randint(1, 6), chance.randint(1, 12)) for _ in range(chance.randint(1, 10))]
        made = plan(observed, graphs=(graphs := chance.randint(1, 6)))
        real, best = sum(rows * n for rows, n in observed), best_grid(observed, graphs)
        found = work(observed, made.batches, made.sizes)
        assert len(made.batches) * len(made.sizes) <= graphs
        assert made.waste == pytest.approx(1 - real / found)
        assert real / (1 - made.bound) <= best + 1e-6, "the bound is one"
        gaps.append(found / best - 1)
    if affordable:
        assert max(gaps) == 0
    else:
        assert sum(gaps) / len(gaps) < 0.005 and max(gaps) < 0.05


def test_the_largest_buckets_reach_the_limits():
    made = plan([(1, 10), (2, 20)], graphs=4, limits=((1, 8), (1, 64)))
    assert (made.batches[-1], made.sizes[-1]) == (8, 64)
    assert plan([(1, 10), (2, 20)], limits=(1, 64)).batches[-1] == 2
    assert plan([5, 9], limits=(1, 4)).sizes[-1] == 9


def test_powers_of_two_between_limits():
    assert powers_of_two(20, 300) == (32, 64, 128, 256, 300)
    assert powers_of_two(1, 1) == (1,)
    assert plan(limits=(20, 300)).buckets.axes["sequence"] == (32, 64, 128, 256, 300)
    both = plan(limits=((1, 4), (20, 40)))
    assert (both.buckets.axes["batch"], both.buckets.axes["sequence"]) == ((1, 2, 4), (32, 40))
    assert (both.waste, both.gap, both.peers, both.peer_grids) == (None, None, {}, {})


def test_many_observations_take_seconds():
    """100 000 of them, each length once: the worst case, some seconds at most on any machine."""
    start = time.perf_counter()
    made = plan(np.arange(1, 100_001), graphs=6)
    assert time.perf_counter() - start < 60
    assert made.sizes[0] == pytest.approx(100_000 / 6, rel=0.01)


def test_a_plan_is_a_table():
    text = str(plan([5, 6, 7, 60, 61, 120], graphs=3))
    # The sum of the sizes, then of the plan's buckets, of powers of two (8, 64, 120) and of 120 for each.
    parts = ("7", "61", "120", "6 inputs", "bound", "259", "263", "272", "720")
    assert [part for part in parts if part not in text] == []
    assert "16, 32" in str(plan(limits=(16, 32)))


@pytest.mark.parametrize(
    "observed", [[5, 6, 7, 60, 61, 120], [(1, 5), (2, 6), (8, 100)], [3], [(2, 7)], [2, 9000, 3, 4]], ids=str
)
def test_a_plan_is_drawn(tmp_path, observed):
    assert plan(observed, graphs=3).plot(tmp_path / "plan.png").stat().st_size > 8_000
    assert plan(observed).plot(tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_without_observations_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
        plan(limits=(1, 2)).plot(tmp_path / "plan.png")


LENGTHS, PAIRS = [5, 6, 120], [[1, 5], [2, 6], [8, 120]]
FILES = {
    "lengths.json": (json.dumps(LENGTHS), LENGTHS),
    "pairs.json": (json.dumps(PAIRS), PAIRS),
    "lengths.jsonl": ("5\n6\n120\n", LENGTHS),
    "pairs.jsonl": ("[1, 5]\n[2, 6]\n\n[8, 120]\n", PAIRS),
    "objects.jsonl": ('{"sequence": 5}\n{"sequence": 6}\n{"sequence": 120}\n', LENGTHS),
    "both.jsonl": ("\n".join(json.dumps({"sequence": s, "batch": b}) for b, s in PAIRS), PAIRS),
    "lengths.txt": ("5\n6\n120", LENGTHS),
    "length.csv": ("length\n5\n6\n120\n", LENGTHS),
    "pairs.csv": ("1,5\n2,6\n8,120\n", PAIRS),
    "named.csv": ("id;sequence;time;batch\n77;5;1;1\n78;6;1;2\n79;120;1;8\n", PAIRS),
    "one_of_many.csv": ("id,sequence\n1,5\n2,6\n3,120\n", LENGTHS),
    "blanks.txt": ("1 5\n2\t6\n8  120\n", PAIRS),
}


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name):
    text, expected = FILES[name]
    (tmp_path / name).write_text(text)
    assert plan(tmp_path / name).observed.tolist() == expected
    assert plan(str(tmp_path / name)).sizes == plan(expected).sizes


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sizes_or_path": []},
        {"sizes_or_path": [0]},
        {"sizes_or_path": [1.5]},
        {"sizes_or_path": [True]},
        {"sizes_or_path": 5},
        {"sizes_or_path": {"3": 1}},
        {"sizes_or_path": [(1, 2), 3]},
        {"sizes_or_path": [(1, 2, 3)]},
        {"sizes_or_path": [(1, -2)]},
        {"limits": (5, 2)},
        {"limits": 5},
        {"limits": (1, 2, 3)},
        {"limits": ((1, 2), (5, 2))},
        {"sizes_or_path": [1], "limits": (0, 2)},
        {"sizes_or_path": [1], "graphs": 0},
        {"sizes_or_path": [1], "graphs": "six"},
    ],
    ids=str,
)
def test_bad_input_is_refused(arguments):
    with pytest.raises(ValueError):
        plan(**arguments)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *[("sizes.json", content, "list of") for content in ("{bad", "5", '{"a": 1}', '["a"]', "[]")],
        ("sizes.csv", "", "non-empty"),
        ("sizes.csv", "5\nsix\n", "line 2 is 'six'"),
        ("sizes.csv", "5\n6,7\n", r"entry 1 is \[6, 7\]"),
        ("sizes.csv", "5.5\n", "line 1"),
        ("sizes.csv", "-5\n", "entry 0 is -5"),
        ("sizes.csv", "a,b\n1,2\n", "must name 'sequence'"),
        ("sizes.csv", "id,sequence\n1\n", "line 2"),
        ("sizes.jsonl", '{"tokens": 5}\n', "'sequence'"),
    ],
)
def test_a_file_without_sizes_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        plan(tmp_path / name)


@pytest.mark.parametrize("of", [list, tuple, torch.tensor, np.array])
def test_sizes_come_in_any_sequence(of):
    assert plan(of([3, 4, 100]), graphs=2).sizes == (4, 100)
    assert plan(of([(2, 3), (2, 4), (2, 100)]), graphs=2).batches == (2,)


def test_a_grid_fits_each_input():
    observed = np.array([[1, 5], [2, 6], [3, 9]])
    assert Grid((1, 4), (6, 9)).fit(observed).tolist() == [[1, 6], [4, 6], [4, 9]]
