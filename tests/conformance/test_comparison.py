"""The comparison finds what it is for: wrong values, geometry, devices and errors, and checks that die."""

import pytest
import torch

from tests.conformance.comparison import Answer, check_answers, check_same
from tests.conformance.outcome import Mismatch, Status
from tests.conformance.placement import place
from tests.conformance.rules import Rule
from tests.conformance.worker import Worker


CPU = torch.device("cpu")
X = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("actual", "found"),
    [
        (X + torch.tensor([0, 0, 1e-6]), "not equal"),
        (X.double(), "dtype"),
        (X.reshape(3, 2), "shape"),
        (X.t().contiguous().t(), "strides"),
        (X.clone().requires_grad_(), "requires_grad"),
        (X.to("meta"), "a result on meta"),
        ([X], "structure"),
        (None, "a NoneType"),
        (3.0, "a float"),
    ],
)
def test_differences_are_found(actual, found):
    check_same(X.clone(), X, CPU)
    with pytest.raises(Mismatch, match=found):
        check_same(actual, X, CPU)


def test_rules_loosen_values_only():
    check_same(X + 1e-6, X, CPU, Rule(atol=1e-5))
    check_same(X + 1, X, CPU, Rule(values=False))
    with pytest.raises(Mismatch, match="strides"):
        check_same(X.t().contiguous().t(), X, CPU, Rule(values=False))


def test_errors_must_be_of_one_type():
    def fails(error: Exception) -> Answer:
        return Answer(error=error)

    check_answers(fails(ValueError("a")), fails(ValueError("b")), CPU)
    with pytest.raises(Mismatch, match="raises TypeError: a, the CPU ValueError: b"):
        check_answers(fails(TypeError("a")), fails(ValueError("b")), CPU)
    with pytest.raises(Mismatch, match="no error"):
        check_answers(Answer(X), fails(ValueError()), CPU)
    with pytest.raises(TypeError, match="mine"):
        check_answers(fails(TypeError("mine")), Answer(X), CPU)


def test_placement_keeps_geometry_and_sharing():
    base = torch.randn(4, 6, dtype=torch.complex64)
    tree = {"a": base[1:, ::2], "b": base.t(), "c": base.conj(), "d": torch.ones(1).expand(3), "where": "cpu"}
    placed = place(tree, torch.device("neuron", 0))
    assert placed["where"] == "neuron:0"
    for name in "abcd":
        assert placed[name].device.type == "neuron"
        assert placed[name].stride() == tree[name].stride()
        assert placed[name].is_conj() == tree[name].is_conj()
        assert torch.equal(placed[name].cpu(), tree[name])
    placed["b"].zero_()
    assert not placed["a"].any()


def test_checks_that_die_are_failures():
    """Here the process that checks ends at a table that there is not."""
    worker = Worker()
    try:
        outcome = worker.check("no such table", "entry", "column")
    finally:
        worker.stop()
    assert outcome.status is Status.FAILED and "died" in outcome.reason
