"""Marks against a plain array of booleans, under random views."""

import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki.marks import Marks, View


ROWS, PITCH = 8, 64


def random_view(generator) -> View:
    itemsize = int(generator.choice([1, 2, 4]))
    rows = int(generator.integers(1, ROWS + 1))
    first = int(generator.integers(0, ROWS - rows + 1))
    count = int(generator.integers(1, 6))
    step = itemsize * int(generator.choice([1, 1, 2]))
    start = itemsize * int(generator.integers(0, (PITCH - step * count) // itemsize + 1))
    return View(first * PITCH + start, (rows, count), (PITCH, step), itemsize)


def bytes_of(view: View, plain: np.ndarray) -> np.ndarray:
    return np.ndarray((*view.shape, view.itemsize), bool, plain, view.offset, (*view.strides, 1))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("pitch", [PITCH, 0])
def test_answers_are_those_of_a_mask(seed, pitch):
    generator = np.random.default_rng(seed)
    marks, plain = Marks(ROWS * PITCH, pitch), np.zeros(ROWS * PITCH, bool)
    views = [random_view(generator) for _ in range(12)]
    for _ in range(60):
        view = views[generator.integers(len(views))]
        match generator.integers(4):
            case 0:
                marks.note(view)
                bytes_of(view, plain)[...] = True
            case 1:
                assert marks.cover(view) == bytes_of(view, plain).all()
            case 2:
                assert marks.touch(view) == bytes_of(view, plain).any()
            case 3:
                np.testing.assert_array_equal(marks.mask(view), bytes_of(view, plain))


def test_what_is_forgotten_is_not_known_any_more():
    marks = Marks(ROWS * PITCH, PITCH)
    view = View(PITCH + 4, (2, 4), (PITCH, 4), 4)
    marks.note(view)
    assert marks.cover(view) and marks.mask(view).all()
    marks.forget([(1, 3, 4, 20)])
    assert not marks.cover(view) and not marks.touch(view) and not marks.mask(view).any()


def test_neighbouring_banks_do_not_touch():
    """Views side by side in their partitions overlap as ranges of addresses; no array is made to tell them apart."""
    marks = Marks(ROWS * PITCH, PITCH)
    marks.note(View(0, (ROWS, 4), (PITCH, 4), 4))
    assert not marks.touch(View(16, (ROWS, 4), (PITCH, 4), 4))
    assert marks._array is None
