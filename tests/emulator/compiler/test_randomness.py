"""Random numbers in compiled graphs are those of eager execution on the device, whoever computes the graph."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


# A function of one (5, 40) tensor of probabilities on the device.
DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout of a transposed tensor": lambda x: F.dropout(x.t(), 0.3),
    "dropout in bfloat16": lambda x: F.dropout(x.bfloat16(), 0.4),
    "dropout of everything": lambda x: F.dropout(x, 1.0),
    "dropout of channels": lambda x: F.dropout1d(x, 0.3, True),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "attention dropout": lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3, dropout_p=0.2),
    "rand": lambda x: x + torch.rand(5, 40, device=x.device),
    "rand_like": lambda x: x + torch.rand_like(x),
    "randn": lambda x: x + torch.randn(5, 40, device=x.device),
    "randn_like": lambda x: x.t() + torch.randn_like(x.t()),
    "randint": lambda x: x + torch.randint(3, 10, (5, 40), device=x.device),
    "randint_like": lambda x: x + torch.randint_like(x, 10),
    "randperm": lambda x: x[:, torch.randperm(40, device=x.device)],
    "bernoulli": lambda x: torch.bernoulli(x),
    "bernoulli of bfloat16": lambda x: torch.bernoulli(x.bfloat16()),
    "bernoulli of a number": lambda x: x * torch.empty_like(x).bernoulli_(0.3),
    "bernoulli of probabilities": lambda x: torch.empty_like(x).bernoulli_(x),
    "uniform": lambda x: torch.empty_like(x).uniform_(-1, 2) - torch.empty_like(x).uniform_(-1, 2),
    "normal": lambda x: torch.empty_like(x).normal_(1, 2) - torch.empty_like(x).normal_(1, 2),
    "normal of tensors": lambda x: torch.normal(x, x + 1),
    "normal of means": lambda x: torch.normal(x, 2.0),
    "normal of deviations": lambda x: torch.normal(2.0, x),
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.2),
    "cauchy": lambda x: torch.empty_like(x).cauchy_(0.2),
    "log-normal": lambda x: torch.empty_like(x).log_normal_(0.2),
    "multinomial": lambda x: torch.multinomial(x, 1),
    "multinomial, three": lambda x: torch.multinomial(x, 3),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "several": lambda x: F.dropout(F.dropout(x, 0.5) + torch.randn_like(x), 0.1) + torch.rand(5, 1, device=x.device),
}


def _compiled(function, executor, **options):
    return torch.compile(
        function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": executor, **options}
    )


@pytest.mark.parametrize("executor", ["aten", "xla"])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_equal_eager(name, executor):
    function = DRAWS[name]
    x = torch.rand(5, 40, generator=torch.Generator().manual_seed(1)).to("neuron")
    on_cpu = torch.get_rng_state()
    torch.neuron.manual_seed(7)
    expected = [function(x), function(x), torch.rand(3, device="neuron")]
    compiled = _compiled(function, executor)
    torch.neuron.manual_seed(7)
    found = [compiled(x), compiled(x), torch.rand(3, device="neuron")]
    tolerance = {"rtol": 0.0, "atol": 0.0} if executor == "aten" else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found[:2], expected[:2], **tolerance)
    assert not torch.equal(found[0], found[1]) or name in ("dropout of everything",)
    assert torch.equal(found[2], expected[2]), "the generator goes on from another place"
    assert torch.equal(torch.get_rng_state(), on_cpu), "the CPU's generator moved"


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.3)

    def forward(self, x):
        return x + self.dropout(self.down(self.dropout(F.gelu(self.up(x)))))


class _Model(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(), _Block()])
        self.is_checkpointed = is_checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x.square().mean()


@pytest.mark.parametrize(
    ("executor", "is_checkpointed"),
    [("aten", False), ("aten", True), ("xla", False), ("xla", True), ("inductor", True)],
)
def test_training_equals_eager_training(executor, is_checkpointed, records):
    """Two steps; with checkpoints the backward graph draws the forward's masks again."""
    torch.manual_seed(0)
    eager = _Model(is_checkpointed).to("neuron")
    other = copy.deepcopy(eager)
    x = torch.randn(4, 16).to("neuron")
    torch.manual_seed(3)
    losses = [_step(eager, eager, x) for _ in range(2)]
    following = torch.rand(3, device="neuron")
    compiled = _compiled(other, executor)
    torch.manual_seed(3)
    found = [_step(compiled, other, x) for _ in range(2)]
    assert torch.equal(torch.rand(3, device="neuron"), following)
    torch.testing.assert_close(found, losses)
    for mine, theirs in zip(other.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert {record["lowering"] for record in records()} == {"checked"}


def _step(call, model, x):
    loss = call(x)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    return loss.item()


def test_each_core_draws_from_its_own_generator():
    compiled = _compiled(F.dropout, "aten")
    xs = [torch.ones(8, 8, device=f"neuron:{core}") for core in (0, 1)]
    torch.neuron.manual_seed_all(5)
    expected = [F.dropout(x) for x in xs]
    torch.neuron.manual_seed_all(5)
    for x, want in zip(xs, expected, strict=True):
        torch.testing.assert_close(compiled(x), want, rtol=0, atol=0)


def test_draws_on_the_cpu_come_from_the_cpu():
    def function(x):
        return x + torch.rand(3).to(x.device)

    x = torch.zeros(3, device="neuron")
    torch.manual_seed(4)
    expected = function(x)
    torch.manual_seed(4)
    torch.testing.assert_close(_compiled(function, "aten")(x), expected)


def test_a_named_generator_is_drawn_from():
    def function(x, generator):
        return x + torch.rand(3, generator=generator, device="neuron")

    x = torch.zeros(3, device="neuron")
    generators = [torch.Generator(device="neuron").manual_seed(4) for _ in range(2)]
    expected = [function(x, generators[0]) for _ in range(2)]
    compiled = torch.compile(function, backend="neuron", dynamic=False, options={"executor": "aten"})
    torch.testing.assert_close([compiled(x, generators[1]) for _ in range(2)], expected)


BY_VALUES = {
    "poisson": lambda x: torch.poisson(x),
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True),
    "multinomial with replacement": lambda x: torch.multinomial(x, 3, replacement=True),
}


@pytest.mark.parametrize("name", BY_VALUES)
def test_a_number_of_draws_that_depends_on_values_is_refused(name):
    function = BY_VALUES[name]
    x = torch.rand(5, 40, device="neuron")
    with pytest.raises(Exception, match="cannot be drawn before the graph runs.*\n.*test_randomness.py"):
        _compiled(function, "aten")(x)
    torch._dynamo.reset()
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    with pytest.warns(RuntimeWarning, match="runs eagerly"):
        result = _compiled(function, "aten", fallback_execution=True)(x)
    torch.testing.assert_close(result, expected)
