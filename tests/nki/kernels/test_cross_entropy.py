"""The cross entropy kernels against PyTorch's, in float64, and its gradient."""

import pytest
import torch
import torch.nn.functional as F

from .reference import relative_error
from .running import MACHINES, TOLERANCES, made, run


# Rows and vocabulary: one of each, several tiles of rows, several sections, transfers and ends of them.
SHAPES = ((1, 1), (131, 40), (3, 4096), (150, 9001))
OPTIONS = {
    "plain": {},
    "smoothing": {"label_smoothing": 0.1},
    "softcap": {"softcap": 3.0},
    "both": {"label_smoothing": 0.3, "softcap": 30.0},
}


def kernels():
    from optimum_neuron_torch.nki.kernels import cross_entropy

    return cross_entropy.cross_entropy_kernel, cross_entropy.cross_entropy_backward_kernel


def check(logits, labels, machine=("trn2", 1), label_smoothing=0.0, softcap=None):
    grad = made((len(labels),), torch.float32)[0]
    double = logits.double().requires_grad_()
    capped = double if softcap is None else softcap * torch.tanh(double / softcap)
    expected = F.cross_entropy(capped, labels.long(), reduction="none", label_smoothing=label_smoothing)
    expected.backward(grad.double())
    options = (label_smoothing, softcap)
    loss, totals = run(kernels()[0], logits, labels, *options, machine=machine)
    assert loss.dtype == totals.dtype == torch.float32
    # float32 of everything but what comes in
    largest = logits.double().abs().max().clamp(min=1.0)
    assert (loss.double() - expected.detach()).abs().max() <= 2e-6 * largest
    assert relative_error(totals[:, 1].log() - totals[:, 0], capped.detach().logsumexp(-1)) <= 1e-5
    (gradient,) = run(kernels()[1], grad, logits, labels, totals, *options, machine=machine)
    assert gradient.dtype == logits.dtype
    assert (gradient.double() - double.grad).abs().max() <= TOLERANCES[logits.dtype] * grad.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("options", OPTIONS)
def test_losses_and_gradients(options, dtype):
    for shape, machine in zip(SHAPES, MACHINES, strict=True):
        logits = made(shape, dtype, scale=5.0)[0]
        labels = torch.randint(shape[1], shape[:1], generator=torch.Generator().manual_seed(1), dtype=torch.int32)
        labels[0], labels[-1] = 0, shape[1] - 1
        check(logits, labels, machine, **OPTIONS[options])


def test_a_maximum_that_grows_from_section_to_section():
    """By more than exp() has room for."""
    logits = torch.linspace(-400, 400, 3 * 2048).repeat(2, 1)
    logits[1] = logits[1].flip(0)
    check(logits, torch.tensor([5, 3000], dtype=torch.int32))


def test_entries_that_have_no_share():
    """As -inf, or the least number of a dtype, takes tokens out."""
    logits = made((4, 3000), torch.float32)[0]
    logits[:, 100:200] = -torch.inf
    logits[:, :50] = torch.finfo(torch.float32).min
    logits[1, :2990] = -torch.inf
    labels = torch.tensor([60, 2995, 2999, 1000], dtype=torch.int32)
    expected = F.cross_entropy(logits, labels.long(), reduction="none")
    loss, totals = run(kernels()[0], logits, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    (gradient,) = run(kernels()[1], torch.ones(4), logits, labels, totals)
    wanted = logits.softmax(-1) - F.one_hot(labels.long(), 3000)
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("number", [1e4, -1e6, 1e30, torch.finfo(torch.float32).min])
def test_a_number_that_all_logits_have_more_takes_no_digits(number, smoothing):
    """Of a row of equal logits nothing else is left."""
    steps = torch.arange(5000).remainder(5) if abs(number) < 1e9 else torch.zeros(5000)
    logits, labels = (steps + number).expand(3, -1).contiguous(), torch.tensor([0, 4099, 4999], dtype=torch.int32)
    double = logits.double().requires_grad_()
    expected = F.cross_entropy(double, labels.long(), reduction="none", label_smoothing=smoothing)
    expected.sum().backward()
    loss, totals = run(kernels()[0], logits, labels, smoothing)
    assert relative_error(loss, expected.detach()) <= 1e-6
    (gradient,) = run(kernels()[1], torch.ones(3), logits, labels, totals, smoothing)
    for one, other in zip(gradient, double.grad, strict=True):
        assert (one - other).abs().max() <= 1e-6
        assert relative_error(one[other > 0], other[other > 0]) <= 1e-5
