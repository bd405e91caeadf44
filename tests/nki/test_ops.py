"""The attention op against textbook attention: values, gradients, masks, grouped heads."""

import pytest
import torch
import torch.nn.functional as F

from optimum_neuron_torch.nki import attention
from optimum_neuron_torch.nki.ops.attention import attention_torch


def textbook(query, key, value, mask=None, sinks=None, scale=None, softcap=None):
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-1e30))
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.view(1, -1, 1, 1) - scores.amax(-1, keepdim=True))
    return (weights / total).nan_to_num(0.0) @ value


def tensors(dtype=torch.float32, grad=False):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6))
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_(grad) for s in shapes]


MASK = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.4
CASES = {
    "plain": {},
    "boolean mask": {"bias": MASK},
    "bias": {"bias": torch.linspace(-1, 1, 7).reshape(1, 1, 1, 7)},
    "scale": {"scale": 0.2},
    "softcap": {"softcap": 2.0, "bias": MASK},
    "sinks": {"sinks_H": torch.tensor([0.5, -1.0, 0.0, 2.0]), "bias": MASK},
}


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    options = CASES[case]
    expected = textbook(
        *tensors(),
        mask=options.get("bias"),
        sinks=options.get("sinks_H"),
        scale=options.get("scale"),
        softcap=options.get("softcap"),
    )
    torch.testing.assert_close(attention(*tensors(), **options), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    """Of the query, key, value, a bias that is broadcast, and the sinks."""
    ours, theirs = ({"tensors": tensors(grad=True), **_with_gradients(CASES[case])} for _ in range(2))
    attention(*ours["tensors"], **{name: ours[name] for name in CASES[case]}).square().sum().backward()
    names = {"bias": "mask", "sinks_H": "sinks"}
    options = {names.get(name, name): theirs[name] for name in CASES[case]}
    textbook(*theirs["tensors"], **options).square().sum().backward()
    for name in CASES[case]:
        if isinstance(ours[name], torch.Tensor) and ours[name].requires_grad:
            torch.testing.assert_close(ours[name].grad, theirs[name].grad, rtol=1e-4, atol=1e-5)
    for mine, reference in zip(ours["tensors"], theirs["tensors"], strict=True):
        torch.testing.assert_close(mine.grad, reference.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["bias", "softcap", "sinks"])
def test_float64_stays_float64(case):
    options = {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in CASES[case].items()
    }
    names = {"bias": "mask", "sinks_H": "sinks"}
    ours, theirs = (tensors(torch.float64, grad=True) for _ in range(2))
    found = attention(*ours, **options)
    expected = textbook(*theirs, **{names.get(name, name): value for name, value in options.items()})
    for output in (found, expected):
        output.square().sum().backward()
    for one, other in (
        (found, expected),
        *((mine.grad, yours.grad) for mine, yours in zip(ours, theirs, strict=True)),
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def _with_gradients(options):
    def with_gradient(value):
        return (
            value.clone().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        )

    return {name: with_gradient(value) for name, value in options.items()}


def test_a_query_that_sees_no_key_gives_zero():
    ranges = torch.tensor([[0, 3], [2, 2], [0, 7], [6, 7], [5, 2]], dtype=torch.int32).expand(2, 1, 5, 2)
    inside = (torch.arange(7) >= ranges[..., :1]) & (torch.arange(7) < ranges[..., 1:])
    for softcap in (None, 3.0):
        output = attention(*tensors(), ranges_B1Q2=ranges, softcap=softcap)
        torch.testing.assert_close(output, textbook(*tensors(), mask=inside, softcap=softcap), rtol=1e-5, atol=1e-5)
        assert (output[:, :, [1, 4]] == 0).all()


def test_a_bias_may_have_another_dtype_than_what_it_is_added_to():
    """Float16 does not hold the least number of float32."""
    bias = torch.zeros(2, 1, 5, 7)
    bias[0, 0, 3], bias[1, 0, :, 5:] = torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    for dtype, bias_dtype, tolerance in (
        (torch.float16, torch.float32, 2e-3),
        (torch.bfloat16, torch.float32, 1e-2),
        (torch.float32, torch.float64, 1e-5),
        (torch.float32, torch.bfloat16, 1e-2),
    ):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors()]
        given = bias.clamp(min=torch.finfo(torch.bfloat16).min).to(bias_dtype).requires_grad_()
        output = attention(*leaves, bias=given)
        exact = [tensor.detach().double().requires_grad_() for tensor in (*leaves, given)]
        expected = F.scaled_dot_product_attention(*exact[:3], exact[3], enable_gqa=True)
        for each in (output, expected):
            each.double().square().sum().backward()
        torch.testing.assert_close(output.double(), expected, rtol=tolerance, atol=tolerance)
        for mine, other in zip((*leaves, given), exact, strict=True):
            assert mine.grad.dtype == mine.dtype
            torch.testing.assert_close(mine.grad.double(), other.grad, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_what_is_not_a_number_stays_so(softcap):
    leaves = tensors()
    leaves[0][0, 0, 3] = torch.nan
    leaves = [tensor.requires_grad_() for tensor in leaves]
    output = attention(*leaves, softcap=softcap)
    output.sum().backward()
    assert output[0, 0, 3].isnan().all() and not output[0, 0, :3].isnan().any()
    assert leaves[0].grad[0, 0, 3].isnan().all() and leaves[2].grad[0, 0].isnan().all()
    assert not leaves[2].grad[1].isnan().any()


def test_shapes_that_do_not_fit_are_named():
    query, key, value = tensors()
    with pytest.raises(ValueError, match=r"\(2, 3, 5, 8\).*H a multiple of G"):
        attention(query[:, :3], key, value)
    wrong = {
        r"expected \(2, 1, 5, 2\)": {"ranges_B1Q2": torch.zeros(2, 5, 2, dtype=torch.int32)},
        "expected torch.int32": {"ranges_B1Q2": torch.zeros(2, 1, 5, 2)},
        r"broadcast to \(B, H, Q, K\) = \(2, 4, 5, 7\)": {"bias": torch.zeros(2, 1, 5, 6)},
        "expected torch.bool": {"bias": torch.zeros(7, dtype=torch.int64)},
        r"expected \(4,\)": {"sinks_H": torch.zeros(2)},
        "softcap=0.0: expected a positive number": {"softcap": 0.0},
    }
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            attention(query, key, value, **options)


def test_the_op_keeps_torchs_rules_for_custom_ops():
    query, key, value = tensors()
    torch.library.opcheck(attention_torch, (query, key, value, None, MASK, None, 0.3, None, False))
