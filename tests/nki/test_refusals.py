"""Where kernels run and none takes a call of a person's own: counted, warned of once, an error in strict mode."""

import warnings

import pytest
import torch

import optimum_neuron_torch as ont
from optimum_neuron_torch.buckets.notes import ledger_outside_graphs
from optimum_neuron_torch.report import StrictError


@pytest.fixture(autouse=True)
def nothing_told_before():
    """Other tests may have been warned of the same."""
    ledger_outside_graphs.cache_clear()


def wide(*shape):
    return torch.randn(*shape, dtype=torch.float64)


CALLS = {
    "attention": lambda nki: nki.attention(wide(1, 1, 2, 4), wide(1, 1, 2, 4), wide(1, 1, 2, 4)),
    "rms_norm": lambda nki: nki.rms_norm(wide(2, 4)),
    "add_rms_norm": lambda nki: nki.add_rms_norm(wide(2, 4), wide(2, 4)),
    "layer_norm": lambda nki: nki.layer_norm(wide(2, 4)),
    "cross_entropy": lambda nki: nki.cross_entropy(wide(2, 4), torch.tensor([0, 1])),
    "rotary_embedding": lambda nki: nki.rotary_embedding(
        wide(1, 1, 2, 4), wide(1, 1, 2, 4), wide(1, 2, 4), wide(1, 2, 4)
    ),
    "swiglu": lambda nki: nki.swiglu(wide(2, 4), wide(2, 4)),
}


def count(function):
    return sum(entry["calls"] for entry in ont.report().departures if entry["where"] == f"nki.{function}()")


@pytest.mark.parametrize("function", CALLS)
def test_a_call_that_no_kernel_takes(function):
    call = CALLS[function]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(ont.nki)  # computed with torch, as asked
        assert count(function) == 0
    with ont.nki.simulation() as runs:
        with pytest.warns(UserWarning, match=rf"nki\.{function}\(\): no kernel takes it \(.*float64"):
            call(ont.nki)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(ont.nki)
        with ont.strict("attention"), pytest.raises(StrictError, match="float64"):
            call(ont.nki)
    assert runs == [] and count(function) == 2


def test_under_torch_compile():
    compiled = torch.compile(lambda x: ont.nki.layer_norm(x), backend="neuron", fullgraph=True)
    with ont.nki.simulation():
        x = wide(3, 5)
        torch.testing.assert_close(compiled(x.to("neuron")).cpu(), torch.nn.functional.layer_norm(x, (5,)))
    assert count("layer_norm") >= 1


def test_calls_of_pytorchs_attention():
    query, key, value = torch.randn(3, 1, 2, 4, 8, device="neuron")
    with ont.nki.simulation() as runs:
        attend = torch.nn.functional.scaled_dot_product_attention
        with pytest.warns(UserWarning, match=r"no kernel takes it \(dropout\): PyTorch's attention does"):
            attend(query, key, value, dropout_p=0.5)
        with ont.strict("attention"), pytest.raises(StrictError, match="dropout"):
            attend(query, key, value, dropout_p=0.5)
    assert runs == []
    assert [entry["calls"] for entry in ont.report().departures if "dropout" in entry["reason"]] == [1]
