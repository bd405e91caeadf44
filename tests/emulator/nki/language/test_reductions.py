"""Reductions, softmax and rms_norm, against NumPy and torch in float64."""

import ml_dtypes
import numpy as np
import pytest
import torch

from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.language.tiles import nl, normal, on_tiles


REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod}
# Given to NKI; the same axes for NumPy; the shape of the result without the reduced dimensions, and with them.
AXES = [
    (1, (128, 24), (1,), (128, 1), (128, 1)),
    (-1, (128, 4, 6), (2,), (128, 4), (128, 4, 1)),
    ([2], (128, 4, 6), (2,), (128, 4), (128, 4, 1)),
    ((1, 2), (128, 4, 6), (1, 2), (128, 1), (128, 1, 1)),
    ([2, 3], (32, 2, 4, 6), (2, 3), (32, 2), (32, 2, 1, 1)),
    ((1, 2, 3), (32, 2, 4, 6), (1, 2, 3), (32, 1), (32, 1, 1, 1)),
]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize(("axis", "shape", "axes", "dropped", "kept"), AXES)
def test_reductions(name, axis, shape, axes, dropped, kept):
    values = normal(*shape)
    expected = REDUCTIONS[name](values.astype(np.float64), axis=axes)
    for keepdims, result_shape in [(False, dropped), (True, kept)]:
        actual = on_tiles(lambda x, k=keepdims: getattr(nl, name)(x, axis, keepdims=k), values)
        assert actual.shape == result_shape and actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected.reshape(result_shape), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("axis", "shape", "axes", "dropped", "kept"), AXES)
def test_var_keeps_the_dimensions(axis, shape, axes, dropped, kept):
    values = normal(*shape) + 5
    expected = np.var(values.astype(np.float64), axis=axes, keepdims=True)
    for keepdims in (False, True):
        actual = on_tiles(lambda x, k=keepdims: nl.var(x, axis, keepdims=k), values)
        assert actual.shape == kept
        np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_all():
    values = np.ones((128, 4, 8), np.float32)
    values[::3, 1, 2] = 0
    values[1::3, :, 3] = -2
    np.testing.assert_array_equal(on_tiles(lambda x: nl.all(x, 2), values), (values != 0).all(2))
    flags = on_tiles(lambda x: nl.all(x, [1, 2], dtype=nl.uint8), values)
    assert flags.dtype == np.uint8
    np.testing.assert_array_equal(flags, (values != 0).all((1, 2)).reshape(128, 1))


@pytest.mark.parametrize("name", [*REDUCTIONS, "var"])
def test_sums_are_of_float32_and_cast_once(name):
    # 4,096 ones and a large number: in bfloat16 each one would be lost.
    values = np.full((128, 4096), 1.0, ml_dtypes.bfloat16)
    values[:, 0] = 256
    reference = np.var if name == "var" else REDUCTIONS[name]
    expected = reference(values.astype(np.float64), axis=1).astype(np.float32)
    same = on_tiles(lambda x: getattr(nl, name)(x, 1), values)
    assert same.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(same[:, 0], expected.astype(ml_dtypes.bfloat16))
    wide = on_tiles(lambda x: getattr(nl, name)(x, 1, dtype=nl.float32), values)
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide[:, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("name", [*REDUCTIONS, "var", "all", "softmax"])
@pytest.mark.parametrize("axis", [0, (0, 1), 1, (1,), 3, ()])
def test_axes_that_cannot_be_reduced_are_refused(name, axis):
    with pytest.raises(NkiError, match="axis .* of sbuf") as caught:
        on_tiles(lambda x: getattr(nl, name)(x, axis), normal(128, 4, 6))
    assert caught.value.op == f"nl.{name}"


@pytest.mark.parametrize("axis", [None, 1.0, "1", (None,)])
def test_axes_that_are_no_integers_are_refused(axis):
    with pytest.raises(NkiError, match="neither an integer nor several"):
        on_tiles(lambda x: nl.sum(x, axis), normal(128, 4))


def test_rms_norm_of_no_values_is_refused():
    with pytest.raises(NkiError, match="at least 1"):
        on_tiles(lambda x: nl.rms_norm(x, x, axis=1, n=0), normal(128, 4))


@pytest.mark.parametrize(("axis", "shape", "axes"), [entry[:3] for entry in AXES])
def test_softmax(axis, shape, axes):
    values = normal(*shape) * 30
    wide = torch.from_numpy(values).double().reshape(*shape[: axes[0]], -1)
    expected = torch.softmax(wide, -1).reshape(shape).numpy()
    np.testing.assert_allclose(on_tiles(lambda x: nl.softmax(x, axis), values), expected, rtol=1e-5, atol=1e-12)


def test_softmax_of_the_last_axis_by_default_and_in_other_dtypes():
    values = normal(128, 4, 16).astype(ml_dtypes.bfloat16)
    expected = torch.softmax(torch.from_numpy(values.astype(np.float32)), -1).numpy()
    same = on_tiles(nl.softmax, values)
    assert same.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(same.astype(np.float32), expected, rtol=2**-8)
    np.testing.assert_allclose(on_tiles(lambda x: nl.softmax(x, dtype=nl.float32), values), expected, rtol=1e-5)


def test_softmax_of_masked_scores():
    values = normal(128, 16)
    values[:, 5:] = -3e38
    expected = torch.softmax(torch.from_numpy(values), -1).numpy()
    np.testing.assert_allclose(on_tiles(nl.softmax, values), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_rms_norm(dtype):
    values, weights = normal(128, 64).astype(dtype), normal(128, 64, seed=1).astype(dtype)
    expected = torch.nn.functional.rms_norm(torch.from_numpy(values.astype(np.float64)), (64,), eps=1e-3).numpy()
    expected = expected * weights.astype(np.float64)
    actual = on_tiles(lambda x, w: nl.rms_norm(x, w, axis=1, n=64, epsilon=1e-3), values, weights)
    assert actual.dtype == dtype
    rtol = 1e-5 if dtype == np.float32 else 2**-8
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=rtol, atol=1e-6)


def test_rms_norm_of_a_share_of_the_values():
    # n counts all values, of which this tile may hold a part.
    values, weights = normal(128, 64), np.ones((128, 1), np.float32)
    expected = values / np.sqrt((values.astype(np.float64) ** 2).sum(1, keepdims=True) / 256 + 1e-6)
    actual = on_tiles(lambda x, w: nl.rms_norm(x, w, axis=1, n=256, dtype=nl.float16), values, weights)
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=2**-10, atol=1e-6)
