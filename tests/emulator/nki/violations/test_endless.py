"""Kernels that never end."""

import pytest

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setenv("NEURON_EMULATOR_NKI_STEPS", "2000")


def sbuf(*shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf, **options)


@refused("2000", "never ends", "NEURON_EMULATOR_NKI_STEPS")
def test_python_loop_of_instructions():
    tile = sbuf(128, 4)
    while True:
        nisa.memset(dst=tile, value=0.0)  # <- here


@refused("2000", "never ends")
def test_python_loop_of_allocations():
    while True:
        nl.ndarray((128, 4), nl.float32)  # <- here


@refused("2000", "never ends", "nl.while_loop")
def test_while_loop_whose_register_never_changes():
    register = nisa.register_alloc(1)
    nl.while_loop(register, lambda register: register)  # <- here
