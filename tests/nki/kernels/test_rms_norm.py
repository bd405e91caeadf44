"""The RMSNorm kernels against the definition, in float64, and its gradients."""

import pytest
import torch

from .reference import relative_error
from .running import MACHINES, TOLERANCES, made, run, trace


EPS = 1e-5

# Rows and width: one row, rows that share a partition with ends that do not, several tiles, several sections.
SHAPES = ((1, 8), (300, 40), (129, 2048), (5, 2500))
CASES = {
    "plain": {},
    "float32 weights": {"weight": torch.float32, "scales_in_float32": True},
    "Gemma": {"offset": 1.0, "scales_in_float32": True},
    "offset": {"offset": 1.0},
    "no weight": {"weight": None},
}


def kernel(name):
    from optimum_neuron_torch.nki.kernels import rms_norm

    return getattr(rms_norm, name)


def definition(x, weight, offset=0.0, **_):
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return normal if weight is None else normal * (offset + weight)


def arguments(shape, dtype, case):
    options = dict(CASES[case])
    weight_dtype = options.pop("weight", dtype)
    weight = None if weight_dtype is None else made(shape[1:], weight_dtype)[0]
    return made(shape, dtype)[0], weight, options


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES)
def test_forward(case, dtype):
    for shape, machine in zip(SHAPES, MACHINES, strict=True):
        x, weight, options = arguments(shape, dtype, case)
        (output,) = run(kernel("rms_norm_kernel"), x, weight, EPS, machine=machine, **options)
        expected = definition(x.double(), None if weight is None else weight.double(), **options)
        assert output.dtype == dtype and relative_error(output, expected) <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", CASES)
def test_backward(case, dtype):
    for index, (shape, machine) in enumerate(zip(SHAPES, MACHINES, strict=True)):
        x, weight, options = arguments(shape, dtype, case)
        grad, grad_sum = made(shape, dtype, 3)[1:]
        inputs = [x.double().requires_grad_(), None if weight is None else weight.double().requires_grad_()]
        definition(*inputs, **options).backward(grad.double())
        expected = [tensor.grad for tensor in inputs if tensor is not None]
        if index % 2:
            options["grad_sum_TW"], expected[0] = grad_sum, expected[0] + grad_sum.double()
        results = run(kernel("rms_norm_backward_kernel"), grad, x, weight, EPS, machine=machine, **options)
        assert [result.dtype for result in results] == [dtype, torch.float32][: len(expected)]
        for result, each in zip(results, expected, strict=True):
            assert relative_error(result, each) <= 2 * TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_with_a_residual(dtype):
    for shape, machine in zip(SHAPES, MACHINES, strict=True):
        x, weight, _ = arguments(shape, dtype, "plain")
        residual = made(shape, dtype, 2)[1]
        output, added = run(kernel("add_rms_norm_kernel"), x, residual, weight, EPS, machine=machine)
        torch.testing.assert_close(added, x + residual, rtol=0, atol=0)
        expected = definition(added.double(), weight.double())
        assert relative_error(output, expected) <= TOLERANCES[dtype]


@pytest.mark.parametrize("name, count", [("rms_norm_kernel", 1), ("add_rms_norm_kernel", 2)])
def test_the_widest_rows(name, count):
    for dtype, width in ((torch.bfloat16, 16384), (torch.float32, 8192)):
        tensors = made((130, width), dtype, count)
        weight = made((width,), torch.float32)[0]
        output = run(kernel(name), *tensors, weight, EPS, 1.0, True)[0]
        expected = definition(sum(tensors).double(), weight.double(), 1.0)
        assert relative_error(output, expected) <= TOLERANCES[dtype]
        run(kernel("rms_norm_backward_kernel"), *made((130, width), dtype, 2), weight, EPS, 1.0, True, tensors[0])


@pytest.mark.parametrize("rows", [97, 600])
@pytest.mark.parametrize("dtype, width", [(torch.bfloat16, 16384), (torch.bfloat16, 8192), (torch.float32, 8192)])
@pytest.mark.parametrize("scales_in_float32", [False, True])
def test_the_widest_rows_have_room(scales_in_float32, dtype, width, rows):
    """So many that all stages have tiles; with a weight that takes most."""
    x = torch.empty(rows, width, dtype=dtype)
    weight = torch.empty(width, dtype=torch.float32 if scales_in_float32 else dtype)
    options = (weight, EPS, 1.0, scales_in_float32)
    trace(kernel("rms_norm_kernel"), x, *options)
    trace(kernel("add_rms_norm_kernel"), x, x, *options)
    trace(kernel("rms_norm_backward_kernel"), x, x, *options, x)
