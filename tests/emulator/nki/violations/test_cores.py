"""Kernels for two cores that wait for each other, or share what cannot be shared."""

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


def sbuf(*shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf, **options)


def hbm(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


@refused("core 0 waits for ever", "core 1 has ended", op="core_barrier", lnc=2)
def test_barrier_of_one_core():
    data = hbm(4, 4)
    if nl.program_id(0) == 0:
        nisa.core_barrier(data, (0, 1))  # <- here


@refused("core 1 waits for ever", "core 0 has ended", op="core_barrier", lnc=2)
def test_barrier_that_one_core_reaches_once_more():
    data = hbm(4, 4)
    nisa.core_barrier(data, (0, 1))
    if nl.program_id(0) == 1:
        nisa.core_barrier(data, (0, 1))  # <- here


@refused("waits for ever", op="sendrecv", lnc=2)
def test_receive_of_what_nobody_sends():
    tile = sbuf(128, 4)
    nisa.memset(dst=tile, value=0.0)
    if nl.program_id(0) == 0:
        nisa.sendrecv(src=tile, dst=tile, send_to_rank=1, recv_from_rank=1, pipe_id=0)  # <- here


@refused("waits for ever", "pipe", op="sendrecv", lnc=2)
def test_sends_by_different_pipes():
    mine, theirs = sbuf(128, 4), sbuf(128, 4)
    nisa.memset(dst=mine, value=0.0)
    core = nl.program_id(0)
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=core)  # <- here


@refused("[128, 8]", "[128, 4]", op="sendrecv", lnc=2)
def test_messages_of_different_shapes():
    core = nl.program_id(0)
    mine, theirs = sbuf(128, 4 + 4 * core), sbuf(128, 4 + 4 * core)
    nisa.memset(dst=mine, value=0.0)
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)  # <- here


@refused("send_to_rank=2", "0 and 1", op="sendrecv", lnc=2)
def test_message_to_a_core_that_does_not_exist():
    tile = sbuf(128, 4)
    nisa.memset(dst=tile, value=0.0)
    nisa.sendrecv(src=tile, dst=tile, send_to_rank=2, recv_from_rank=2, pipe_id=0)  # <- here


@refused("one core", "kernel[2]", op="sendrecv")
def test_message_with_one_core():
    tile = sbuf(128, 4)
    nisa.memset(dst=tile, value=0.0)
    nisa.sendrecv(src=tile, dst=tile, send_to_rank=1, recv_from_rank=1, pipe_id=0)  # <- here


@refused("[4, 8]", "[4, 4]", "number 0", lnc=2)
def test_shared_tensor_of_different_shapes():
    columns = 4 + 4 * nl.program_id(0)
    nl.ndarray((4, columns), nl.float32, buffer=nl.shared_hbm)  # <- here


@refused("bfloat16", "float32", "number 0", lnc=2)
def test_shared_tensor_of_different_dtypes():
    dtype = nl.float32 if nl.program_id(0) == 0 else nl.bfloat16
    nl.ndarray((4, 4), dtype, buffer=nl.shared_hbm)  # <- here


BETWEEN_CORES = []


@refused("core 0", "core 1", "nl.shared_hbm", op="memset", lnc=2)
def test_tensor_of_the_other_core():
    data = hbm(4, 4)
    if nl.program_id(0) == 0:
        BETWEEN_CORES[:] = [sbuf(128, 4)]
    nisa.core_barrier(data, (0, 1))
    if nl.program_id(0) == 1:
        nisa.memset(dst=BETWEEN_CORES[0], value=0.0)  # <- here


@refused("axis", "0")
def test_axis_of_the_grid_that_does_not_exist():
    nl.program_id(1)  # <- here
