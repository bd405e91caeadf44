"""`NKIObject`: dataclasses of kernels, with and without annotations, and with fields that a call leaves out."""

from dataclasses import dataclass

import pytest

import nki.language as nl


def test_attributes_without_annotations_are_fields():
    @dataclass
    class Settings(nl.NKIObject):
        size = 4
        name: str = "x"

    assert Settings(size=5).size == 5
    assert Settings() == Settings(size=4, name="x")


@pytest.mark.parametrize("frozen", [False, True])
def test_fields_that_are_left_out_stay_unset(frozen):
    @dataclass(frozen=frozen)
    class Sizes(nl.NKIObject):
        rows: int
        columns: int
        depth: int = 3

    sizes = Sizes(2)
    assert (sizes.rows, sizes.depth) == (2, 3)
    with pytest.raises(AttributeError, match="columns"):
        sizes.columns  # noqa: B018
    assert Sizes(1, columns=2).columns == 2
    with pytest.raises(TypeError, match="unexpected"):
        Sizes(1, width=2)
    with pytest.raises(TypeError, match="positional"):
        Sizes(1, 2, 3, 4)


def test_keywords_become_attributes():
    class Tile(nl.NKIObject):
        rows: int

        def double(self):
            self.rows *= 2

    tile = Tile(rows=4, other=None)
    tile.double()
    assert (tile.rows, tile.other) == (8, None)


def test_an_init_of_its_own_is_called_as_it_is():
    @dataclass
    class Parameters(nl.NKIObject):
        size: int
        double: int

        def __init__(self, size):
            self.size, self.double = size, 2 * size

    assert Parameters(3).double == 6
    with pytest.raises(TypeError, match="size"):
        Parameters()
