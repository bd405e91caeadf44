"""Random numbers: XORWOW against its definition, seeds, statistics, dropout."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.isa.issuing import out as to_hbm


@nki.jit
def bits_from_state(states, count):
    """What GpSimd draws from given states, and the states after it."""
    partitions = states.shape[0]
    tile = nl.ndarray(states.shape, nl.uint32)
    nisa.dma_copy(dst=tile, src=states)
    nisa.rand_set_state(src_seeds=tile, engine=nisa.engine.gpsimd)
    drawn = nl.ndarray((partitions, count), nl.uint32)
    nisa.rng(dst=drawn, engine=nisa.engine.gpsimd)
    after = nl.ndarray(states.shape, nl.uint32)
    nisa.rand_get_state(dst=after, engine=nisa.engine.gpsimd)
    return to_hbm(drawn), to_hbm(after)


def xorwow(state, count):
    """Marsaglia's generator in Python's integers."""
    x, y, z, w, v, d = map(int, state)
    drawn = []
    for _ in range(count):
        t = x ^ (x >> 2)
        x, y, z, w = y, z, w, v
        v = (v ^ (v << 4) ^ t ^ (t << 1)) & 0xFFFFFFFF
        d = (d + 362437) & 0xFFFFFFFF
        drawn.append((d + v) & 0xFFFFFFFF)
    return drawn, [x, y, z, w, v, d]


def test_bits_are_xorwow():
    states = np.random.default_rng(0).integers(0, 2**32, (64, 6), np.uint32)
    drawn, after = bits_from_state(states, 20)
    for partition in (0, 1, 63):
        expected, state = xorwow(states[partition], 20)
        assert drawn[partition].tolist() == expected
        assert after[partition].tolist() == state


@nki.jit
def seeded(seed, rows, columns, dtype):
    tile = nl.ndarray((1, 1), nl.uint32)
    nisa.memset(dst=tile, value=seed)
    nisa.set_rng_seed(src_seeds=tile)
    drawn = nl.ndarray((rows, columns), dtype)
    nisa.rng(dst=drawn)
    return to_hbm(drawn)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_a_seed_gives_its_sequence_and_narrow_integers_its_low_bits(dtype):
    dtype = getattr(nl, dtype)
    first, again, other = (seeded(seed, 128, 64, dtype) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.9
    wide = seeded(7, 128, 64, nl.uint32)
    np.testing.assert_array_equal(first, wide.astype(first.dtype))
    shares = np.unpackbits(wide.view(np.uint8)).reshape(-1, 8).mean(0)
    assert np.abs(shares - 0.5).max() < 0.01


@nki.jit
def uniform(low, high):
    drawn = nl.ndarray((128, 500), nl.float32)
    nisa.rand2(dst=drawn, min=low, max=high)
    return to_hbm(drawn)


def test_rand2_is_uniform(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    drawn = uniform(-2.0, 6.0)
    assert drawn.min() >= -2 and drawn.max() <= 6
    counts, _ = np.histogram(drawn, bins=16, range=(-2, 6))
    expected = drawn.size / 16
    assert ((counts - expected) ** 2 / expected).sum() < 50  # chi-square, 15 degrees of freedom: p < 1e-5
    with pytest.raises(NkiError, match="min is below max"):
        uniform(1.0, 1.0)


def test_rand2_needs_trn3(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises(NkiError, match="needs NeuronCore-v4"):
        uniform(0.0, 1.0)


@nki.jit
def dropped(values, probability):
    tile = nl.ndarray(values.shape, values.dtype)
    nisa.dma_copy(dst=tile, src=values)
    nisa.dropout(dst=tile, data=tile, prob=probability)
    return to_hbm(tile)


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_dropout_keeps_or_clears(probability, dtype):
    values = np.arange(1, 128 * 300 + 1).reshape(128, 300).astype(dtype)
    result = dropped(values, probability)
    kept = result != 0
    np.testing.assert_array_equal(result[kept], values[kept])
    assert abs((~kept).mean() - probability) < (0.01 if 0 < probability < 1 else 1e-9)


def test_dropout_refuses_what_is_no_probability():
    with pytest.raises(NkiError, match="no probability"):
        dropped(np.ones((4, 4), np.float32), 1.5)
