"""The LayerNorm kernels against the definition, in float64, and its gradients."""

import pytest
import torch
import torch.nn.functional as F

from .reference import relative_error
from .running import MACHINES, TOLERANCES, made, run, trace


EPS = 1e-5
# Rows and width: one row, rows that share a partition with ends that do not, several tiles, several sections.
SHAPES = ((1, 8), (300, 40), (129, 2048), (5, 2500))
VECTORS = {"both": (True, True), "weight": (True, False), "bias": (False, True), "neither": (False, False)}


def kernel(name):
    from optimum_neuron_torch.nki.kernels import layer_norm

    return getattr(layer_norm, name)


def check(x, weight, bias, grad, machine, tolerance):
    doubles = [None if tensor is None else tensor.double().requires_grad_() for tensor in (x, weight, bias)]
    expected = F.layer_norm(doubles[0], x.shape[1:], *doubles[1:], EPS)
    expected.backward(grad.double())
    (output,) = run(kernel("layer_norm_kernel"), x, weight, bias, EPS, machine=machine)
    assert output.dtype == x.dtype and relative_error(output, expected.detach()) <= tolerance
    is_needed = weight is not None or bias is not None
    gradients = run(kernel("layer_norm_backward_kernel"), grad, x, weight, EPS, is_needed, machine=machine)
    for result, each in zip(gradients, doubles, strict=is_needed):
        assert each is None or relative_error(result, each.grad) <= tolerance


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("vectors", VECTORS)
def test_values_and_gradients(vectors, dtype):
    for shape, machine in zip(SHAPES, MACHINES, strict=True):
        x, grad = made(shape, dtype, 2)
        weight, bias = (
            vector if is_given else None
            for vector, is_given in zip(made(shape[1:], dtype, 2), VECTORS[vectors], strict=True)
        )
        check(x, weight, bias, grad, machine, TOLERANCES[dtype])


def test_a_large_mean_does_not_take_the_variances_digits():
    x, grad = made((3, 100), torch.float32, 2)
    check((x + 1000).round(decimals=2), None, None, grad, ("trn2", 1), 1e-4)


def test_the_widest_rows():
    for dtype, width in ((torch.bfloat16, 16384), (torch.float32, 8192)):
        (x, grad), (weight, bias) = made((130, width), dtype, 2), made((width,), torch.float32, 2)
        check(x, weight, bias, grad, ("trn2", 1), TOLERANCES[dtype])


@pytest.mark.parametrize("rows", [97, 600])
@pytest.mark.parametrize(
    "dtype, width",
    [(torch.bfloat16, 16384), (torch.bfloat16, 8192), (torch.float32, 8192), *((d, 4096) for d in TOLERANCES)],
)
def test_the_widest_rows_have_room(dtype, width, rows):
    """So many that all stages have tiles; with vectors that take most."""
    x = torch.empty(rows, width, dtype=dtype)
    for vector in torch.empty(width), torch.empty(width, dtype=dtype):
        trace(kernel("layer_norm_kernel"), x, vector, vector)
        trace(kernel("layer_norm_backward_kernel"), x, x, vector)


def test_vectors_of_other_dtypes():
    (x, grad), (weight,), (bias,) = (
        made((129, 600), torch.bfloat16, 2),
        *(made((600,), dtype) for dtype in (torch.bfloat16, torch.float16)),
    )
    for vectors in (weight, bias), (weight.half(), bias), (weight.float(), bias), (weight, None):
        check(x, *vectors, grad, ("trn2", 2), TOLERANCES[torch.bfloat16])


def test_of_16_bits_a_large_mean_does_not_take_digits_either():
    """Nor does a row that is not finite reach the others of its tile."""
    for dtype in (torch.bfloat16, torch.float16):
        (x, grad), (weight, bias) = made((130, 768), dtype, 2), made((768,), dtype, 2)
        check(x + 100, weight, bias, grad, ("trn2", 1), TOLERANCES[dtype])
        (expected,) = run(kernel("layer_norm_kernel"), x, weight, bias, EPS)
        x[7, 3] = float("inf")
        (output,) = run(kernel("layer_norm_kernel"), x, weight, bias, EPS)
        assert not output[7].isfinite().any()
        output[7] = expected[7]
        torch.testing.assert_close(output, expected, rtol=0, atol=0)
