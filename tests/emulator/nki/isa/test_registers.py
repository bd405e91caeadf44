"""Registers: what goes in comes out, and what does not fit is refused."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError


@nki.jit
def through_registers(values):
    """values[0] by way of a tensor, two registers and a sum, back into HBM."""
    loaded, moved = nisa.register_alloc(), nisa.register_alloc(5)
    nisa.register_load(loaded, values[0:1])
    nisa.register_move(moved, loaded)
    out = nl.ndarray((1,), nl.int32, buffer=nl.shared_hbm)
    nisa.register_store(out, moved + 2)
    return out


@pytest.mark.parametrize("number", [0, 7, -3, 2**31 - 3])
def test_a_number_goes_through_registers(number):
    assert through_registers(np.array([number], np.int32)).tolist() == [number + 2]


def test_a_fraction_is_no_integer():
    with pytest.raises(NkiError, match="holds an integer, but src is"):
        through_registers(np.array([1.5], np.float32))


@pytest.mark.parametrize(("number", "words"), [(2**32, "32 bits"), (1.5, "holds an integer"), (True, "an integer")])
def test_what_does_not_fit(number, words):
    @nki.jit
    def kernel():
        nisa.register_alloc(number)

    with pytest.raises(NkiError, match=words):
        kernel()


def test_nothing_was_loaded():
    @nki.jit
    def kernel():
        nl.fori_loop(0, nisa.register_alloc(), lambda i: None)

    with pytest.raises(NkiError, match="never loaded"):
        kernel()
