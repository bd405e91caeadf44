"""Keys of compiled functions tell apart what a graph holds of its arguments and of the process."""

import pytest
import torch

import optimum_neuron_torch as ont
from optimum_neuron_torch.buckets.graphs import Graphs
from optimum_neuron_torch.buckets.keys import artifact_key, process_state, signature
from optimum_neuron_torch.report import Ledger


BASE = torch.zeros(6, 3)


def step(*tensors):
    return list(tensors)


@pytest.mark.parametrize(
    "other",
    [
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2, 3), torch.zeros(2, 3).double()),
        (torch.zeros(2, 3), torch.zeros(3, 2).T),
        (BASE[:2], BASE[1:3]),
        (BASE[:2], BASE[:2]),
    ],
    ids=["sizes", "dtype", "strides", "overlap", "the same"],
)
def test_tensors_that_make_another_graph(other):
    args = (torch.zeros(2, 3), torch.zeros(2, 3))
    assert signature(args) == signature((torch.ones(2, 3), torch.ones(2, 3))) != signature(other)
    key, same, another = (artifact_key(step, ("batch", 1), [], each, None) for each in (args, args, other))
    assert key == same != another


def test_gradients_are_part_of_it_where_they_are_on():
    args, trained = (torch.zeros(2),), (torch.zeros(2, requires_grad=True),)
    assert signature(args) != signature(trained)
    with torch.no_grad():
        assert signature(args) == signature(trained)


MODES = {
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("neuron", torch.bfloat16),
    "autocast of the host": lambda: torch.autocast("cpu", torch.bfloat16),
    "a default device": lambda: torch.device("neuron"),
    "fast precision": lambda: _set(torch.set_float32_matmul_precision, "medium", "highest"),
    "deterministic": lambda: _set(torch.use_deterministic_algorithms, True, False),
    "another default dtype": lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
    "more threads": lambda: _set(torch.set_num_threads, 2, torch.get_num_threads()),
}


class _set:
    def __init__(self, function, value, previous):
        self.function, self.value, self.previous = function, value, previous

    def __enter__(self):
        self.function(self.value)

    def __exit__(self, *exception):
        self.function(self.previous)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_modes_of_the_process(mode):
    args, before = (torch.zeros(2),), process_state()
    key = artifact_key(step, (), [], args, None)
    with mode():
        assert process_state() != before
        assert artifact_key(step, (), [], args, None) != key
    assert process_state() == before and artifact_key(step, (), [], args, None) == key


@pytest.mark.parametrize("options", [{"executor": "aten"}, {"lowering": "off"}, {"fallback_execution": True}], ids=str)
def test_options_of_the_compiler(options):
    keys = {artifact_key(step, (), [], (), each) for each in (None, options)}
    assert len(keys) == 2
    assert artifact_key(step, (), [], (), {"model_name": "another"}) in keys


def grown(rows: int, x):
    return torch.nn.functional.pad(x, (0, 0, 0, rows - x.shape[0]))


def test_constants_among_the_arguments_make_another_graph(tmp_path, monkeypatch):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    config = ont.NeuronConfig(options={"executor": "aten", "lowering": "off"})
    graphs, x = Graphs(Ledger("test"), config), torch.ones(2, 3, device="neuron")
    for rows in (4, 6, 4):
        assert graphs.call("grow", (("batch", 2),), grown, rows, x).shape == (rows, 3)
    assert len(graphs) == 2


def scaled(factor: float, x):
    return x * factor


def test_equal_constants_of_other_types_make_another_graph(tmp_path, monkeypatch):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    config = ont.NeuronConfig(options={"executor": "aten", "lowering": "off"})
    graphs, x = Graphs(Ledger("test"), config), torch.ones(2, dtype=torch.long, device="neuron")
    for factor, dtype in ((1, torch.int64), (1.0, torch.float32), (True, torch.int64)):
        assert graphs.call("scale", (), scaled, factor, x).dtype == dtype
