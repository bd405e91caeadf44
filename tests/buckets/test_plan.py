"""Choosing buckets: the dynamic programme against trying every set."""

import itertools
import json
import random

import numpy as np
import pytest
import torch

from optimum_neuron_torch import plan
from optimum_neuron_torch.buckets.plan import least_padding, powers_of_two, waste_of


@pytest.mark.parametrize("seed", range(40))
def test_no_set_of_as_many_buckets_wastes_less(seed):
    chance = random.Random(seed)
    observed = [chance.randint(1, 15) for _ in range(chance.randint(1, 12))]
    graphs, ceiling = chance.randint(1, 4), max(observed) + chance.randint(0, 3)
    chosen = least_padding(observed, graphs, ceiling)
    every = (set(rest) | {ceiling} for count in range(graphs) for rest in itertools.combinations(set(observed), count))
    assert len(chosen) <= graphs and chosen[-1] == ceiling
    assert waste_of(observed, chosen) == pytest.approx(min(waste_of(observed, sorted(sizes)) for sizes in every))


def test_powers_of_two_between_limits():
    assert powers_of_two(20, 300) == (32, 64, 128, 256, 300)
    assert powers_of_two(1, 1) == (1,)
    assert plan(limits=(20, 300)).buckets.axes["sequence"] == (32, 64, 128, 256, 300)


def test_a_plan_from_a_file_is_drawn(tmp_path):
    sizes = tmp_path / "sizes.json"
    sizes.write_text(json.dumps([5, 6, 7, 60, 61, 120]))
    made = plan(sizes, graphs=3, limits=(1, 128))
    assert made.sizes == (7, 61, 128) and made.waste < min(made.peers.values())
    assert made.plot(tmp_path / "plan.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sizes_or_path": []},
        {"sizes_or_path": [0]},
        {"sizes_or_path": [1.5]},
        {"sizes_or_path": 5},
        {"sizes_or_path": {"3": 1}},
        {"limits": (5, 2)},
        {"limits": 5},
        {"limits": (1, 2, 3)},
        {"sizes_or_path": [1], "graphs": 0},
        {"sizes_or_path": [1], "graphs": "six"},
    ],
    ids=str,
)
def test_bad_input_is_refused(arguments):
    with pytest.raises(ValueError):
        plan(**arguments)


@pytest.mark.parametrize("content", ["{bad", "5", '{"a": 1}', '["a"]', "[]"])
def test_a_file_without_lengths_is_refused(tmp_path, content):
    (tmp_path / "sizes.json").write_text(content)
    with pytest.raises(ValueError, match="list of"):
        plan(tmp_path / "sizes.json")


@pytest.mark.parametrize("of", [list, tuple, torch.tensor, np.array])
def test_lengths_come_in_any_sequence(of):
    assert plan(of([3, 4, 100]), graphs=2).sizes == (4, 100)
