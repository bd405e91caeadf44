"""Microscaling: quantising against the documented formula, products against float64 ones of the dequantised values."""

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError


ELEMENTS = {"float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, 8), "float8_e5m2_x4": (ml_dtypes.float8_e5m2, 15)}


@pytest.fixture(autouse=True)
def _trn3(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")


@nki.jit
def quantized(values, dtype):
    partitions, columns = values.shape
    src = nl.ndarray((partitions, columns), values.dtype)
    nisa.dma_copy(dst=src, src=values)
    packed = nl.ndarray((partitions, columns // 4), dtype)
    scales = nl.ndarray((partitions, columns // 4), nl.uint8)
    nisa.memset(dst=scales, value=0)
    nisa.quantize_mx(dst=packed, src=src, dst_scale=scales)
    out = nl.ndarray(packed.shape, nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=packed.view(nl.uint32))
    out_scales = nl.ndarray(scales.shape, nl.uint8, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out_scales, src=scales)
    return out, out_scales


def scale_of(group, largest_exponent):
    """The exponent of the documented block scale."""
    largest = np.abs(group.astype(np.float64)).max()
    return -127 if largest == 0 else int(np.floor(np.log2(largest))) - (largest_exponent - 1)


@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("partitions", [32, 64, 96, 128])
def test_quantising_follows_the_documented_scale(dtype, partitions):
    element, largest_exponent = ELEMENTS[dtype]
    generator = np.random.default_rng(partitions)
    values = generator.standard_normal((partitions, 16)) * np.exp2(generator.integers(-20, 20, (partitions, 16)))
    values[:8, :4] = 0
    values = values.astype(ml_dtypes.bfloat16)
    packed, scales = quantized(values, getattr(nl, dtype))
    elements = packed.view(element).reshape(partitions, 4, 4).astype(np.float64)
    for group in range(partitions // 8):
        row = group // 4 * 32 + group % 4
        for column in range(4):
            block = values[group * 8 : group * 8 + 8, column * 4 : column * 4 + 4]
            exponent = scale_of(block, largest_exponent)
            assert int(scales[row, column]) - 127 == exponent
            expected = (block.astype(np.float64) / 2.0**exponent).astype(np.float32).astype(element)
            np.testing.assert_array_equal(elements[group * 8 : group * 8 + 8, column], expected.astype(np.float64))


@nki.jit
def product(left, right, left_scale, right_scale, dtype, rounds=1):
    tiles = []
    for source, kind in ((left, dtype), (right, dtype), (left_scale, None), (right_scale, None)):
        tile = nl.ndarray(source.shape, source.dtype)
        nisa.dma_copy(dst=tile, src=source)
        tiles.append(tile if kind is None else tile.view(kind))
    result = nl.ndarray((left.shape[1], right.shape[1]), nl.float32, buffer=nl.psum)
    for _ in range(rounds):
        nisa.nc_matmul_mx(
            dst=result, stationary=tiles[0], moving=tiles[1], stationary_scale=tiles[2], moving_scale=tiles[3]
        )
    on_chip = nl.ndarray(result.shape, nl.float32)
    nisa.tensor_copy(dst=on_chip, src=result)
    out = nl.ndarray(result.shape, nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=on_chip)
    return out


def dequantized(packed, scales, decode):
    partitions = packed.shape[0]
    rows = [group // 4 * 32 + group % 4 for group in range(partitions // 8)]
    factors = np.repeat(2.0 ** (scales[rows].astype(np.float64) - 127), 8, axis=0)
    return decode(packed) * factors[..., None]


def decoded_float4(packed):
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)  # OCP specification, FP4 E2M1
    nibbles = np.stack([packed >> shift & 0xF for shift in (0, 4, 8, 12)], axis=-1)
    return np.where(nibbles & 8, -1, 1) * table[nibbles & 7]


@pytest.mark.parametrize("partitions", [32, 128])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"])
def test_products_are_those_of_the_dequantised_values(dtype, partitions, rounds):
    generator = np.random.default_rng(1)
    m, n = 32, 48
    scales = [generator.integers(120, 134, (partitions, size), np.uint8) for size in (m, n)]
    if dtype == "float4_e2m1fn_x4":
        packed = [generator.integers(0, 2**16, (partitions, size)).astype(np.uint16) for size in (m, n)]
        left, right = (dequantized(p, s, decoded_float4) for p, s in zip(packed, scales, strict=True))
    else:
        element = ELEMENTS[dtype][0]
        floats = [generator.standard_normal((partitions, size, 4)).astype(element) for size in (m, n)]
        packed = [values.view(np.uint32).reshape(partitions, -1) for values in floats]
        decode = lambda p: p.view(element).reshape(*p.shape, 4).astype(np.float64)  # noqa: E731
        left, right = (dequantized(p, s, decode) for p, s in zip(packed, scales, strict=True))
    result = product(*packed, *scales, getattr(nl, dtype), rounds)
    expected = rounds * np.einsum("kmq,knq->mn", left, right)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@nki.jit
def quantized_into_one_tile(values, offsets):
    """`values` quantised once for each offset of the scales, all scales in one tile; and the square by each."""
    partitions, columns = values.shape
    src = nl.ndarray((partitions, columns), values.dtype)
    nisa.dma_copy(dst=src, src=values)
    scales = nl.ndarray((partitions, columns // 4), nl.uint8)
    nisa.memset(dst=scales, value=0)
    out = nl.ndarray(scales.shape, nl.uint8, buffer=nl.shared_hbm)
    products = nl.ndarray((len(offsets), columns // 4, columns // 4), nl.float32, buffer=nl.shared_hbm)
    for index, offset in enumerate(offsets):
        packed = nl.ndarray((partitions, columns // 4), nl.float8_e4m3fn_x4)
        own = scales[offset:partitions, :]
        nisa.quantize_mx(dst=packed, src=src, dst_scale=own)
        product = nl.ndarray((columns // 4, columns // 4), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(dst=product, stationary=packed, moving=packed, stationary_scale=own, moving_scale=own)
        copied = nl.ndarray(product.shape, nl.float32)
        nisa.tensor_copy(dst=copied, src=product)
        nisa.dma_copy(dst=products[index], src=copied)
    nisa.dma_copy(dst=out, src=scales)
    return out, products


def test_scales_of_four_tensors_share_a_tile():
    values = np.random.default_rng(0).standard_normal((64, 16)).astype(ml_dtypes.bfloat16)
    scales, products = quantized_into_one_tile(values, (0, 4, 8, 12))
    alone = quantized(values, nl.float8_e4m3fn_x4)[1]
    for quadrant in (0, 32):
        for offset in (0, 4, 8, 12):
            shared = scales[quadrant + offset : quadrant + offset + 4]
            np.testing.assert_array_equal(shared, alone[quadrant : quadrant + 4])
    rows = values.astype(np.float64).reshape(64, 4, 4)
    np.testing.assert_allclose(products[0], np.einsum("kmq,knq->mn", rows, rows), rtol=0.1, atol=2)
    for product in products[1:]:
        np.testing.assert_array_equal(product, products[0])


def test_scales_start_at_every_fourth_partition():
    with pytest.raises(NkiError, match="starts at partition 0, 4, 8, 12 of a quadrant, but at partition 2"):
        quantized_into_one_tile(np.ones((32, 8), ml_dtypes.bfloat16), (2,))


def test_older_chips_have_no_microscaling(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises(NkiError, match="needs NeuronCore-v4"):
        quantized(np.zeros((32, 8), ml_dtypes.bfloat16), nl.float8_e4m3fn_x4)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((32, 8), np.float32), "float16 or bfloat16"),
        (np.zeros((16, 8), np.float16), "multiple of 32 partitions"),
    ],
)
def test_quantising_refuses(values, words):
    with pytest.raises(NkiError, match=words):
        quantized(values, nl.float8_e4m3fn_x4)
