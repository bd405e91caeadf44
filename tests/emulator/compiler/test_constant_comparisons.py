"""Comparisons between constants mean the same when lowered; torch-mlir alone folds them wrongly, or crashes."""

import operator

import pytest
import torch


NUMBERS = (0, 0.0, 3, -3.0, 1.5)


@pytest.mark.parametrize("filling", [3.0, -3.0, 0.0, 3, True])
def test_they_equal_the_cpus(filling):
    def compare(x):
        constant = torch.full((2,), filling, device=x.device)
        other = torch.ones((), device=x.device)
        return [
            getattr(operator, name)(constant, against)
            for name in ("lt", "le", "gt", "ge", "eq", "ne")
            for against in (*NUMBERS, other)
        ], x + 1

    x = torch.zeros(3)
    compiled = torch.compile(compare, backend="neuron", fullgraph=True, options={"executor": "xla"})
    (expected, _), (actual, moved) = compare(x), compiled(x.to("neuron"))
    assert [one.tolist() for one in actual] == [one.tolist() for one in expected]
    assert moved.tolist() == [1, 1, 1]
