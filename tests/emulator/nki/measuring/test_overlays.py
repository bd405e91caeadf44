"""Addresses that overlap in time: data that is lost is reported, and overlays that are meant are not."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki import simulation


def reported(kernel, *args, lnc=1):
    with simulation() as reports:
        nki.simulate(kernel)[lnc](*args)
    return reports[0].overwritten


def tile(address, columns=64, dtype=nl.float32, partition=0, partitions=128, buffer=nl.sbuf, name=""):
    return nl.ndarray((partitions, columns), dtype, buffer=buffer, address=(partition, address), name=name)


def fill(*tiles):
    for one in tiles:
        nisa.memset(dst=one, value=1)


def read(*tiles):
    for one in tiles:
        nisa.tensor_copy(dst=nl.ndarray(one.shape, one.dtype), src=one)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_rotating_buffers_need_enough_copies(copies):
    """Each step reads what the step before left: one buffer for all loses it, two are enough."""

    def kernel():
        buffers = [tile(256 * (step % copies), name=f"step{step}") for step in range(4)]
        fill(buffers[0])
        for step in range(1, 4):
            fill(buffers[step])
            read(buffers[step - 1], buffers[step])

    found = reported(kernel)
    assert len(found) == (3 if copies == 1 else 0)
    for number, text in enumerate(found):
        assert "reads 8192 elements" in text and f"'step{number}' at (0, 0)" in text and f"'step{number + 1}'" in text
        assert "test_overlays.py:" in text and text.startswith("tensor_copy at ")


def test_a_tensor_that_is_made_where_one_is_still_read():
    def kernel():
        first = tile(0, 64, name="first")
        fill(first)
        second = tile(128, 16, name="second")  # bytes 128 to 192: columns 32 to 47 of the first
        fill(second)
        read(first[:, 0:32])
        read(first)

    (text,) = reported(kernel)
    assert "reads 2048 elements" in text and "'first'" in text and "'second' at (0, 128)" in text


def test_psum():
    def kernel():
        bank = tile(0, 512, buffer=nl.psum, name="bank")
        fill(bank)
        fill(tile(0, 512, buffer=nl.psum, name="again"))
        read(bank)

    (text,) = reported(kernel)
    assert "psum float32[128, 512] 'bank' at (0, 0)" in text


def test_what_the_reader_has_written_anew_is_its_own():
    def kernel():
        first = tile(0)
        fill(first)
        second = tile(0)
        fill(second)
        read(second)
        fill(first)
        read(first)

    assert reported(kernel) == []


@pytest.mark.parametrize(
    "other",
    [
        {"address": 256},
        {"address": 0, "partition": 64, "partitions": 64},
        {"address": 0, "buffer": nl.psum},
    ],
)
def test_tensors_that_only_look_close(other):
    def kernel():
        first = tile(0, partitions=64)
        fill(first)
        fill(tile(**{"partitions": 64, **other}))
        read(first)

    assert reported(kernel) == []


def test_parts_of_a_whole():
    """Allocated together, filled as a whole, then part by part, and read as a whole."""

    def kernel():
        whole, parts = tile(0, 64), [tile(64 * i, 16) for i in range(4)]
        fill(whole)
        fill(*parts)
        read(whole)
        fill(whole)
        read(*parts)

    assert reported(kernel) == []


def test_two_dtypes_of_the_same_bytes():
    def kernel():
        words, halves = tile(0, 64), tile(0, 128, dtype=nl.uint16)
        fill(words)
        nisa.tensor_scalar(dst=halves, data=halves, op0=nl.bitwise_and, operand0=0xFF00)
        read(words)

    assert reported(kernel) == []


def test_tensors_without_addresses_are_never_on_top_of_each_other():
    def kernel():
        tiles = [nl.ndarray((128, 64), nl.float32) for _ in range(3)]
        fill(*tiles)
        read(*tiles)

    assert reported(kernel) == []


def test_each_core_has_its_own_memory():
    def kernel():
        first = tile(0)
        fill(first)
        if nl.program_id(0) == 1:
            fill(tile(0, name="other"))
        read(first)

    assert len(reported(kernel, lnc=2)) == 1


def test_it_is_in_the_report():
    def kernel(x):
        first = tile(0)
        fill(first)
        fill(tile(0))
        read(first)
        return x

    with simulation() as reports:
        nki.simulate(kernel)(np.ones((2, 2), np.float32))
    assert "overwritten before: tensor_copy at" in str(reports[0])
    assert reports[0].to_dict()["overwritten"] == reports[0].overwritten != []
