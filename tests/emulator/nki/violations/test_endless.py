"""Kernels that never end."""

import sys
import time

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


@pytest.fixture(autouse=True)
def little_patience(monkeypatch):
    monkeypatch.setenv("NEURON_EMULATOR_NKI_STEPS", "2000")
    monkeypatch.setenv("NEURON_EMULATOR_NKI_PATIENCE", "0.2")


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


# Loops that issue nothing: what counts is the processor time of the kernel's thread


@refused("0.2 s", "NEURON_EMULATOR_NKI_PATIENCE")
def test_python_loop_of_nothing():
    turns = 0
    while turns >= 0: turns += 1  # fmt: skip  # noqa: E701  # <- here


@refused("0.2 s", "never ends")
def test_python_loop_of_views():
    tile = sbuf(128, 4)
    while True:
        tile[:, 0:2].reshape((128, 2))


@refused("0.2 s", "never ends")
def test_python_loop_that_catches_errors_once():
    try:
        while True:
            sum(range(100))
    except nisa.NkiValidationError:
        pass
    while True:
        sum(range(100))


@refused("0.2 s", "never ends", lnc=2)
def test_python_loop_of_one_core():
    data = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
    while nl.program_id(0) == 1:
        sum(range(100))
    nisa.core_barrier(data, (0, 1))


def test_who_waits_is_left_alone():
    """A breakpoint, a sleep: no processor time."""

    @nki.jit
    def kernel():
        time.sleep(0.6)
        return 1

    assert kernel() == 1


def test_who_works_is_left_alone():
    """Half a second of instructions, none of them longer than the patience."""

    @nki.jit
    def kernel():
        tile, end = sbuf(128, 4), time.process_time() + 0.5
        count = 0
        while time.process_time() < end and count < 1900:
            nisa.memset(dst=tile, value=0.0)
            time.sleep(0.0003)
            count += 1
        return count

    assert kernel() > 100


def test_who_is_traced_by_a_debugger_is_left_alone():
    @nki.jit
    def kernel():
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
        return 1

    previous = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        assert kernel() == 1
    finally:
        sys.settrace(previous)


def test_the_next_kernel_runs():
    @nki.jit
    def endless():
        while True:
            pass

    @nki.jit
    def short():
        return 1

    for _ in range(2):
        with pytest.raises(nisa.NkiValidationError, match="never ends"):
            endless()
        assert short() == 1
    time.sleep(0.3)


@pytest.mark.parametrize("patience", ["soon", "0", "-1", "nan"])
def test_patience_that_means_nothing(monkeypatch, patience):
    monkeypatch.setenv("NEURON_EMULATOR_NKI_PATIENCE", patience)
    with pytest.raises(nisa.NkiValidationError, match=f"NEURON_EMULATOR_NKI_PATIENCE={patience}"):
        nki.jit(lambda: 1)()
    monkeypatch.undo()
    assert nki.jit(lambda: 1)() == 1
