"""The attention op by its kernels, in the simulator, against the op that computes with torch."""

import pytest
import torch

import optimum_neuron_torch as ont
from optimum_neuron_torch import runtime
from optimum_neuron_torch.nki import attention
from optimum_neuron_torch.nki.ops import attention as ops


LEAST = torch.finfo(torch.float32).min


def _tensors(queries=20, keys=33, heads=4, groups=2, size=16, value_size=16, dtype=torch.float32, batch=2):
    generator = torch.Generator().manual_seed(queries + keys)
    shapes = ((heads, queries, size), (groups, keys, size), (groups, keys, value_size))
    return [torch.randn(batch, *shape, generator=generator).to(dtype) for shape in shapes]


def _mask(batch=2, queries=20, keys=33):
    """With holes, and a row that sees nothing."""
    mask = torch.rand(batch, 1, queries, keys, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[0, 0, 3] = False
    return mask


def _ranges(batch=2, queries=20, keys=33):
    """Windows that move, of which one is empty."""
    start = torch.arange(queries).clamp(max=keys - 1)
    ranges = torch.stack([start // 2, (start + 4).clamp(max=keys)], -1).to(torch.int32)
    ranges[5] = 7
    return ranges.expand(batch, 1, queries, 2).contiguous()


def _masked_by_numbers():
    """As models write it: least numbers, whole rows of them, and -inf."""
    bias = torch.zeros(2, 1, 20, 33)
    bias[1, 0, :, 5:] = LEAST
    bias[0, 0, 3] = LEAST
    bias[0, 0, 4] = -torch.inf
    bias[1, 0, 7] = LEAST
    bias[1, 0, 7, 9:] = -torch.inf
    return bias


def _padded_on_the_left():
    """Keys hidden from all queries by the least number, some of which see no other in their range."""
    bias = torch.zeros(2, 1, 1, 33)
    bias[1, ..., :15] = LEAST
    return bias


def _ends():
    """What a causal mask lets through of 33 keys."""
    ends = torch.arange(20) + 14
    return torch.stack([torch.zeros_like(ends), ends], -1).to(torch.int32).expand(2, 1, 20, 2).contiguous()


def _rows_of(number, *others):
    """A row of this number, of which single keys have others."""
    bias = torch.zeros(2, 1, 20, 33)
    bias[0, 0, 3] = number
    for key, other in enumerate(others):
        bias[0, 0, 3, key] = other
    return bias


CASES = {
    "plain": {},
    "ranges": {"ranges_B1Q2": _ranges()},
    "holes": {"bias": _mask()},
    "ranges and holes": {"ranges_B1Q2": _ranges(), "bias": _mask()},
    "bias of keys": {"bias": torch.linspace(-1, 1, 33)},
    "bias of heads": {"bias": torch.linspace(-2, 2, 4 * 20 * 33).reshape(4, 20, 33)},
    "least numbers": {"bias": _masked_by_numbers()},
    "least numbers, softcap": {"bias": _masked_by_numbers(), "softcap": 2.0},
    "least numbers, sinks": {"bias": _masked_by_numbers(), "sinks_H": torch.tensor([0.5, -1.0, 0.0, 2.0])},
    "least numbers, ranges": {"bias": _padded_on_the_left(), "ranges_B1Q2": _ends()},
    "least numbers and less low ones": {"bias": _rows_of(LEAST, -1e31, -1e31)},
    "rows of -1e9": {"bias": _rows_of(-1e9, -2e9)},
    "sinks, softcap and scale": {"sinks_H": torch.tensor([0.5, -1.0, 0.0, 2.0]), "softcap": 2.0, "scale": 0.3},
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_the_definitions(case):
    _compare(_tensors(), CASES[case], ["flash_attention_kernel"])


@pytest.mark.parametrize("case", ["plain", "ranges", "sinks, softcap and scale"])
def test_single_steps_take_the_kernel_for_decoding(case):
    options = dict(CASES[case])
    if "ranges_B1Q2" in options:
        options["ranges_B1Q2"] = options["ranges_B1Q2"][:, :, -1:].contiguous()
    _compare(_tensors(queries=1), options, ["decode_attention_kernel"])


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_definitions(case):
    """Of everything that can have one."""
    options = CASES[case]
    expected, found = [], []
    for device, gradients in (("cpu", expected), ("neuron", found)):
        tensors = [tensor.to(device).requires_grad_() for tensor in _tensors()]
        given = _moved(options, device)
        real = [value.requires_grad_() for value in given.values() if _is_real(value)]
        with ont.nki.simulation() as runs, runtime.simulating(device == "neuron"):
            output = attention(*tensors, **given)
            (output * torch.linspace(-1, 1, output.numel(), device=device).reshape(output.shape)).sum().backward()
        gradients.extend(tensor.grad.cpu() for tensor in (*tensors, *real))
    assert [run.kernel for run in runs] == ["flash_attention_kernel", "flash_attention_backward_kernel"]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(1.0, other.abs().max().item()))


def test_hidden_queries_in_several_tiles_and_heads():
    """Of 140 queries, of which each head hides others; the mask of the order is the kernel's own."""
    bias = torch.zeros(1, 2, 140, 140)
    bias[0, 0, 3:9] = bias[0, 1, 130:] = LEAST
    results = []
    for device in ("cpu", "neuron"):
        tensors = [tensor.to(device).requires_grad_() for tensor in _tensors(140, 140, 2, 1, batch=1)]
        given = bias.clone().to(device).requires_grad_()
        with ont.nki.simulation(), runtime.simulating(device == "neuron"):
            output = ops.attention(*tensors, bias=given, scale=0.25, softcap=3.0, is_causal=True)
            output.square().sum().backward()
        results.append([tensor.detach().cpu() for tensor in (output, given.grad, *(each.grad for each in tensors))])
    for one, other in zip(*reversed(results), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("number", [-1e5, -1e4, 1e4])
def test_a_number_that_a_whole_row_has_more_takes_no_digits(number):
    """Of the scores, and of the log-sum-exp that gradients are made with."""
    expected, found = [], []
    for bias, device, results in ((None, "cpu", expected), (_rows_of(number), "neuron", found)):
        tensors = [tensor.to(device).requires_grad_() for tensor in _tensors()]
        bias = None if bias is None else bias.to(device)
        with ont.nki.simulation(), runtime.simulating(device == "neuron"):
            output = attention(*tensors, bias=bias)
            output.square().sum().backward()
        results.extend(tensor.detach().cpu() for tensor in (output, *(tensor.grad for tensor in tensors)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(1.0, other.abs().max().item()))


def _moved(options, device):
    """Copies, on `device`."""
    return {
        name: value.clone().to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()
    }


def _is_real(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


BAD_INPUT = {
    "head size 80": {"size": 80, "value_size": 80},
    "head size 96, values of another": {"size": 96, "value_size": 40},
    "head size 256": {"size": 256, "value_size": 256, "heads": 2, "groups": 1},
    "one query, one key": {"queries": 1, "keys": 1},
    "131 queries": {"queries": 131, "keys": 131, "heads": 1, "groups": 1, "batch": 1},
    "float16": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_unusual_shapes_and_dtypes(case):
    _compare(_tensors(**BAD_INPUT[case]), {}, ["flash_attention_kernel"])


def test_tensors_that_are_not_contiguous():
    tensors = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in _tensors()]
    assert not tensors[0].is_contiguous()
    _compare(tensors, {"bias": _mask().transpose(2, 3).contiguous().transpose(2, 3)}, ["flash_attention_kernel"])


@pytest.mark.parametrize(
    "tensors",
    [
        _tensors(batch=0),
        _tensors(size=320, value_size=320, heads=2, groups=1),
        _tensors(dtype=torch.float64),
    ],
    ids=["batch 0", "head size 320", "float64"],
)
def test_what_no_kernel_takes_is_computed_with_torch(tensors):
    _compare(tensors, {}, [])


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_that_no_kernel_takes(scale):
    _compare(_tensors(), {"scale": scale}, [])


def _compare(tensors, options, kernels):
    expected = attention(*tensors, **options)
    on_device = {
        name: value.to("neuron") if isinstance(value, torch.Tensor) else value for name, value in options.items()
    }
    with ont.nki.simulation() as runs:
        found = attention(*(tensor.to("neuron") for tensor in tensors), **on_device).cpu()
    assert [run.kernel for run in runs] == kernels
    tolerance = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(found.dtype, 1e-5)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
