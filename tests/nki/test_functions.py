"""What all functions for people have in common: autocast, kinds of gradients, and what they say of wrong input."""

import pytest
import torch

import optimum_neuron_torch as ont
from optimum_neuron_torch import nki, runtime


ANGLES = torch.linspace(-1, 1, 48).reshape(1, 6, 8)
# Of one tensor (1, 2, 6, 8).
FUNCTIONS = {
    "attention": lambda x: nki.attention(x, x, x),
    "attention with sinks": lambda x: nki.attention(x, x, x, sinks_H=torch.zeros(2, device=x.device)),
    "rms_norm": lambda x: nki.rms_norm(x),
    "add_rms_norm": lambda x: nki.add_rms_norm(x, x)[0],
    "layer_norm": lambda x: nki.layer_norm(x),
    "cross_entropy": lambda x: nki.cross_entropy(x.flatten(0, 2), torch.arange(12, device=x.device) % 8),
    "rotary_embedding": lambda x: nki.rotary_embedding(x, x, *[ANGLES.to(x)] * 2)[0],
    "swiglu": lambda x: nki.swiglu(x, x),
    "swiglu_halves": lambda x: nki.swiglu_halves(x),
}


def given(dtype=torch.float32):
    numbers = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    return numbers.to("neuron", dtype).requires_grad_()


@pytest.mark.parametrize("is_on", [False, True], ids=["torch", "kernel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_autocast_changes_nothing_within(function, dtype, is_on):
    """As kernels know nothing of it, and compilers have the result's dtype from the arguments'."""
    results = []
    for is_cast in (False, True):
        x = given(dtype)
        with (
            ont.nki.simulation(),
            runtime.simulating(is_on),
            torch.autocast("neuron", torch.bfloat16, enabled=is_cast),
        ):
            result = FUNCTIONS[function](x)
            result.float().square().sum().backward()
        results.append((result.detach().cpu(), x.grad.cpu()))
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_forward_mode_gradients_are_refused(function):
    """PyTorch's operators in Python would leave them out: they would be 0."""
    x = given().detach()
    with pytest.raises(NotImplementedError, match="forward-mode tangent .*in reverse mode alone"):
        torch.func.jvp(FUNCTIONS[function], (x,), (torch.ones_like(x),))


@pytest.mark.parametrize("function", ["attention", "rms_norm", "layer_norm", "cross_entropy", "swiglu"])
def test_gradients_of_gradients_are_refused(function):
    x = given()
    with ont.nki.simulation(), pytest.raises(RuntimeError, match="no autograd formula was registered"):
        (gradient,) = torch.autograd.grad(FUNCTIONS[function](x).square().sum(), x, create_graph=True)
        gradient.sum().backward()


QUERY = torch.zeros(1, 2, 6, 8)
WRONG = {
    r"query \(2, 6, 8\).*expected four dimensions": lambda: nki.attention(QUERY[0], QUERY[0], QUERY[0]),
    r"query \(1, 2, 6, 8\), key \(3, 2, 6, 8\).*do not fit": lambda: nki.attention(
        QUERY, *[QUERY.expand(3, 2, 6, 8)] * 2
    ),
    "scale=nan: expected a finite number": lambda: nki.attention(QUERY, QUERY, QUERY, scale=torch.nan),
    "softcap=inf: expected a positive": lambda: nki.attention(QUERY, QUERY, QUERY, softcap=torch.inf),
    "sinks_H has the dtype torch.int32": lambda: nki.attention(QUERY, QUERY, QUERY, sinks_H=torch.ones(2).int()),
    "query_BHQD on cpu, bias on meta: expected one": lambda: nki.attention(
        QUERY, QUERY, QUERY, bias=torch.zeros(6, device="meta")
    ),
    "logits_TV on cpu, labels_T on meta": lambda: nki.cross_entropy(
        QUERY[0, 0], torch.zeros(6, device="meta", dtype=torch.int64)
    ),
    "x on cpu, residual on meta": lambda: nki.add_rms_norm(QUERY, QUERY.to("meta")),
    "softcap=0.0: expected": lambda: nki.cross_entropy(QUERY[0, 0], torch.zeros(6).long(), softcap=0.0),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_is_named(message):
    with pytest.raises(ValueError, match=message):
        WRONG[message]()


@pytest.mark.parametrize("shape", [(0, 2, 6, 8), (1, 2, 0, 8), (1, 2, 6, 0)])
def test_nothing_to_attend_with(shape):
    query, key, value = (torch.zeros(shape, device="neuron", requires_grad=True) for _ in range(3))
    with ont.nki.simulation() as runs:
        output = nki.attention(query, key, value)
        output.sum().backward()
    assert runs == [] and output.shape == query.grad.shape == shape


def test_nothing_to_attend_to_gives_zero():
    query, key, value = (torch.ones(1, 2, keys, 8, device="neuron", requires_grad=True) for keys in (6, 0, 0))
    output = nki.attention(query, key, value)
    output.sum().backward()
    assert not output.any() and not query.grad.any()
