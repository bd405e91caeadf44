"""The cross entropy op against PyTorch's, by torch and by kernels, with gradients, eagerly and compiled."""

import pytest
import torch
import torch.nn.functional as F

import optimum_neuron_torch as ont
from optimum_neuron_torch.nki import cross_entropy
from optimum_neuron_torch.nki.ops import cross_entropy as ops

from .comparing import compare, compare_compiled, random


KERNELS = ["cross_entropy_kernel", "cross_entropy_backward_kernel"]
LABELS = torch.tensor([0, 32, -100, 7, -100, 12])
OPTIONS = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smoothing": {"label_smoothing": 0.2},
    "softcap": {"softcap": 2.0, "label_smoothing": 0.1, "reduction": "none"},
    "another label is ignored": {"ignore_index": 7},
}


def definition(labels, softcap=None, **options):
    def loss(logits):
        capped = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return F.cross_entropy(capped, labels, **options)

    return loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", OPTIONS)
def test_losses_and_gradients(case, dtype):
    options = OPTIONS[case]
    labels = LABELS.clamp(min=0) if "ignore_index" in options else LABELS
    compare(
        lambda logits: cross_entropy(logits, labels.to(logits.device), **options),
        definition(labels, **options),
        random((6, 33), dtype=dtype),
        KERNELS,
    )


def test_gradients_of_float64_are_exact():
    logits, labels = random((6, 33), dtype=torch.float64)[0].requires_grad_(), LABELS.clamp(min=0)
    for label_smoothing in (0.0, 0.1):
        found, expected = (
            torch.autograd.grad(function(logits, labels, label_smoothing=label_smoothing), logits)[0]
            for function in (cross_entropy, F.cross_entropy)
        )
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_bits_are_those_of_transformers_losses():
    """Which make float32 of logits first."""
    logits = random((6, 33), dtype=torch.bfloat16)[0]
    for device in ("cpu", "neuron"):
        found = cross_entropy(logits.to(device), LABELS.to(device))
        assert torch.equal(found.cpu(), F.cross_entropy(logits.float(), LABELS))


def test_nothing_counts():
    logits = random((2, 8))[0].to("neuron")
    labels = torch.full((2,), -100, device="neuron")
    with ont.nki.simulation():
        assert cross_entropy(logits, labels).isnan()
        assert cross_entropy(logits, labels, reduction="sum") == 0


def test_a_label_that_is_no_entry_is_not_a_number():
    logits, labels = random((3, 8))[0].to("neuron"), torch.tensor([1, 8, -1], device="neuron")
    with ont.nki.simulation():
        loss = cross_entropy(logits.requires_grad_(), labels, reduction="none")
        loss.sum().backward()
    assert loss.isnan().tolist() == [False, True, True]
    assert logits.grad.isnan().all(1).tolist() == [False, True, True] and not logits.grad[0].isnan().any()


def test_compiled_calls_are_one_node():
    labels = LABELS.to("neuron")
    compare_compiled(lambda logits: cross_entropy(logits, labels), random((6, 33)), "cross_entropy", KERNELS)


@pytest.mark.parametrize(
    "logits, options",
    [(torch.randn(6, 33, dtype=torch.float64), {}), (torch.randn(6, 33), {"label_smoothing": 1.0})],
    ids=["float64", "no weight for labels"],
)
def test_what_no_kernel_takes_is_computed_with_torch(logits, options):
    with ont.nki.simulation() as runs:
        found = cross_entropy(logits.to("neuron"), LABELS.to("neuron"), **options).cpu()
    assert runs == [] and torch.equal(found, F.cross_entropy(logits, LABELS, **options))


def test_bad_input_is_named():
    logits = torch.zeros(6, 33)
    wrong = {
        r"logits \(6, 33\) and labels \(5,\) do not fit: expected \(T, V\)": (LABELS[:5], {}),
        "torch.float32, expected torch.int64": (LABELS.float(), {}),
        "'max', expected one of mean, sum, none": (LABELS, {"reduction": "max"}),
        "label_smoothing is -0.1": (LABELS, {"label_smoothing": -0.1}),
    }
    for message, (labels, options) in wrong.items():
        with pytest.raises(ValueError, match=message):
            cross_entropy(logits, labels, **options)


def test_the_ops_keep_torchs_rules_for_custom_ops():
    logits = random((6, 33))[0].requires_grad_()
    torch.library.opcheck(ops.cross_entropy_torch, (logits, LABELS, -100, 0.1, 3.0, "mean"))
    with ont.nki.simulation():
        torch.library.opcheck(ops.cross_entropy_kernel, (logits, LABELS, -100, 0.0, None, "none"))
