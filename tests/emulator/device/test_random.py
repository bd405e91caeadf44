"""Random numbers: generators, their states and pickles, seeds, and activation checkpointing with dropout."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def draw(generator: torch.Generator) -> list[float]:
    return torch.rand(4, device=generator.device, generator=generator).tolist()


@pytest.fixture
def generator(neuron) -> torch.Generator:
    """On core 1, in the middle of its sequence."""
    made = torch.Generator("neuron:1").manual_seed(3)
    draw(made)
    return made


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda g: pickle.loads(pickle.dumps(g)),
        copy.deepcopy,
        lambda g: g.clone_state(),
        lambda g: torch.Generator(g.device).set_state(g.get_state()),
    ],
    ids=["pickle", "deepcopy", "clone_state", "state"],
)
def test_copies_of_generators_draw_the_same_numbers(generator, duplicate):
    twin = duplicate(generator)
    assert twin.device == torch.device("neuron:1") and twin.initial_seed() == 3
    expected = draw(generator)
    assert draw(twin) == expected
    assert draw(twin) != expected


def test_other_pickles_of_generators_are_pytorchs(neuron):
    host = torch.Generator().manual_seed(4)
    expected = draw(copy.deepcopy(host))
    assert draw(pickle.loads(pickle.dumps(host))) == expected
    assert pickle.loads(pickle.dumps(host)).device.type == "cpu"


def test_generators_can_share_a_state(generator):
    """What compiled programs do with random numbers: exchange the state without copying it."""
    other = torch.Generator("neuron:1")
    other.graphsafe_set_state(generator.graphsafe_get_state())
    twin = generator.clone_state()
    assert draw(generator) + draw(other) == draw(twin) + draw(twin)
    with pytest.raises(RuntimeError, match="generator of the neuron device"):
        other.graphsafe_set_state(torch.Generator())


def test_states_that_do_not_fit(generator):
    before = generator.get_state()
    with pytest.raises(RuntimeError, match="has 5056 bytes, but 3 were given"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(TypeError, match="ByteTensor"):
        torch.neuron.set_rng_state(before.float(), 1)
    with pytest.raises(ValueError, match="8 random states for 4 cores"):
        torch.neuron.set_rng_state_all(torch.neuron.get_rng_state_all() * 2)
    with pytest.raises(NotImplementedError, match="no offset"):
        generator.get_offset()
    assert torch.equal(generator.get_state(), before)


def test_seeds(neuron):
    torch.manual_seed(11)
    states = torch.neuron.get_rng_state_all()
    for core in range(4):
        with torch.neuron.device(core):
            assert torch.neuron.initial_seed() == 11
    assert all(torch.equal(state, states[0]) for state in states)
    torch.neuron.manual_seed(5)
    torch.neuron.set_rng_state(states[0], "neuron:2")
    assert torch.neuron.initial_seed() == 5
    chosen = torch.neuron.seed_all()
    with torch.neuron.device(3):
        assert torch.neuron.initial_seed() == chosen
    torch.manual_seed(-1)
    assert torch.neuron.initial_seed() == torch.initial_seed() == 2**64 - 1


@pytest.mark.filterwarnings("ignore:NEURON reports")
@pytest.mark.parametrize(
    "options", [{}, {"device_type": "neuron"}, {"devices": ["neuron:3"], "device_type": "neuron"}]
)
def test_fork_rng(neuron, options):
    torch.manual_seed(0)
    expected = torch.rand(2, device="neuron:3")
    torch.manual_seed(0)
    with torch.random.fork_rng(**options):
        torch.rand(7, device="neuron:3")
    assert torch.equal(torch.rand(2, device="neuron:3"), expected)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(torch.relu(layer(x)), 0.4)
        return x


def gradients(where: str, autocast: bool, **options) -> list[torch.Tensor]:
    """With `options` by checkpointing, else directly. Numbers drawn in between do not disturb the second forward."""
    torch.manual_seed(0)
    model = Dropping().to(where)
    x = torch.randn(4, 8).to(where).requires_grad_()
    torch.manual_seed(1)
    with torch.autocast(torch.device(where).type, torch.bfloat16, enabled=autocast):
        y = checkpoint(model, x, **options) if options else model(x)
        torch.rand(3, device=where)
    y.float().sum().backward()
    return [x.grad.cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("where", ["neuron", "neuron:1"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_repeats_the_same_dropout(neuron, use_reentrant, where, autocast):
    expected = gradients(where, autocast)
    actual = gradients(where, autocast, use_reentrant=use_reentrant)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    if not autocast:  # and they are the CPU's
        assert all(torch.equal(a, b) for a, b in zip(actual, gradients("cpu", False), strict=True))
    forgotten = gradients(where, autocast, use_reentrant=use_reentrant, preserve_rng_state=False)
    assert not all(torch.equal(a, b) for a, b in zip(forgotten, expected, strict=True))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("train", [True, False, None])
def test_native_dropout_is_the_cpus(neuron, p, train):
    x = torch.randn(5, 6).t()
    torch.manual_seed(2)
    expected = torch.native_dropout(x, p, train)
    torch.manual_seed(2)
    actual = torch.native_dropout(x.to(neuron), p, train)
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a.cpu(), b) and a.dtype == b.dtype and a.stride() == b.stride()
