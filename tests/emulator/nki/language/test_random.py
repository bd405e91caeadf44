"""Random numbers: the same for one seed, and uniform."""

import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki.errors import NkiError
from tests.emulator.nki.language.tiles import made, nl


@pytest.mark.parametrize("buffer", ["sbuf", "hbm"])
def test_rand_is_uniform(buffer):
    def make(seed, count=1):
        nl.random_seed(nl.full((1, 1), seed, nl.int32))
        for _ in range(count):
            drawn = nl.rand((128, 512), nl.float32, buffer=getattr(nl, buffer))
        return drawn

    first, again, second, other = (made(lambda arguments=a: make(*arguments)) for a in [(42,), (42,), (42, 2), (43,)])
    np.testing.assert_array_equal(first, again)
    assert (first != second).mean() > 0.99 and (first != other).mean() > 0.99
    for drawn in (first, second, other):
        assert drawn.dtype == np.float32 and drawn.min() >= 0 and drawn.max() < 1
        counts = np.histogram(drawn, bins=16, range=(0, 1))[0]
        # 65,536 draws: 4,096 in each of 16 bins, with a standard deviation of 62.
        assert abs(counts - 4096).max() < 5 * 62


def test_a_seed_is_one_number():
    with pytest.raises(NkiError):
        made(lambda: nl.random_seed(nl.zeros((2, 2), nl.int32)))


def test_integers_between_0_and_1_are_refused():
    with pytest.raises(NkiError, match="nisa.rng"):
        made(lambda: nl.rand((8, 8), nl.int32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "tfloat32"])
def test_rand_in_other_floats(dtype):
    drawn = made(lambda: nl.rand((128, 64), getattr(nl, dtype))).astype(np.float32)
    assert drawn.min() >= 0 and drawn.max() <= 1 and abs(drawn.mean() - 0.5) < 0.02
