"""Memory as bytes: what overlays what, what was written, and how much of it a kernel needs at once."""

import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki import dtypes as nl
from optimum_neuron_torch.emulator.nki import install
from optimum_neuron_torch.emulator.nki.chips import CHIPS
from optimum_neuron_torch.emulator.nki.core import Run, running
from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.measuring.capacity import peak
from optimum_neuron_torch.emulator.nki.memory import MemoryRegion


install()

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
from optimum_neuron_torch.emulator.nki.kernel import execute, new_run, run_kernel, simulation  # noqa: E402


SBUF, PSUM, HBM = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.private_hbm
KIB = 1024


@pytest.fixture
def core():
    core = Run("kernel", CHIPS[3], 1, is_strict=False).cores[0]
    with running(core):
        yield core


def unwritten(core, tensor):
    """How many elements a read of the tensor reports."""
    core.run.unwritten.clear()
    tensor.read()
    return sum(entry.elements for entry in core.run.unwritten.values())


# Overlays


def test_tensors_at_the_same_address_are_the_same_bytes(core):
    words = core.allocate((128, 8), nl.float32, SBUF, address=(0, 1024))
    halves = core.allocate((128, 16), nl.bfloat16, SBUF, address=(0, 1024))
    lower = core.allocate((64, 4), nl.int32, SBUF, address=(64, 1024 + 16))
    values = np.random.default_rng(0).standard_normal((128, 8), np.float32)
    words.write(values)
    np.testing.assert_array_equal(halves.read(), values.view(nl.bfloat16.storage))
    np.testing.assert_array_equal(lower.read(), values.view(np.int32)[64:, 4:])
    lower.write(np.zeros((64, 4), np.int32))
    values[64:, 4:] = 0
    np.testing.assert_array_equal(words.read(), values)


def test_tensors_that_do_not_touch(core):
    first = core.allocate((32, 8), nl.float32, SBUF, address=(0, 0))
    others = [
        core.allocate((32, 8), nl.float32, SBUF, address=place) for place in [(0, 32), (32, 0), (96, 0), (32, 32)]
    ]
    first.write(np.ones((32, 8), np.float32))
    for other in others:
        assert unwritten(core, other) == 256 and np.isnan(other.read()).all()
    for other in others:
        other.write(np.zeros((32, 8), np.float32))
    assert (first.read() == 1).all()


def test_sbuf_and_psum_are_different_memories(core):
    tile = core.allocate((128, 8), nl.float32, SBUF, address=(0, 0))
    bank = core.allocate((128, 8), nl.float32, PSUM, address=(0, 0))
    tile.write(np.ones((128, 8), np.float32))
    assert unwritten(core, bank) == 128 * 8


def test_two_cores_have_memories_of_their_own():
    run = Run("kernel", CHIPS[3], 2, is_strict=False)
    for number, core in enumerate(run.cores):
        with running(core):
            tile = core.allocate((128, 8), nl.float32, SBUF, address=(0, 0))
            assert unwritten(core, tile) == 128 * 8
            tile.write(np.full((128, 8), number, np.float32))


@pytest.mark.parametrize("address", [(0, 0), None])
def test_the_last_bytes_of_a_memory(core, address):
    for region, size in [(SBUF, 224 * KIB), (PSUM, 16 * KIB)]:
        place = address and (0, size - 64)
        tile = core.allocate((128, 16 if place else size // 4), nl.float32, region, address=place)
        tile.write(np.ones(tile.shape, np.float32))
        assert (tile.read() == 1).all()


# What was written


@pytest.mark.parametrize("place", ["hbm", "sbuf", "psum", "address"])
@pytest.mark.parametrize("seed", range(6))
def test_the_shadow_knows_every_byte(core, place, seed):
    """Random writes by random views, against a mask of the bytes."""
    random = np.random.default_rng(seed)
    region = {"hbm": HBM, "psum": PSUM}.get(place, SBUF)
    tensor = core.allocate((8, 6, 10), nl.float32, region, address=(32, 2048) if place == "address" else None)
    mask = np.zeros((8, 6, 40), bool)
    for _ in range(6):
        view, part = tensor, mask
        if random.integers(2):
            view, part = tensor.view(nl.int16), mask
        itemsize = view.dtype.itemsize
        key, byte_key = [], []
        for dim, size in enumerate(view.shape):
            start = int(random.integers(size))
            stop, step = int(random.integers(start + 1, size + 1)), int(random.integers(1, 3))
            key.append(slice(start, stop, step))
            positions = np.arange(start, stop, step)
            if dim == 2:
                positions = (positions[:, None] * itemsize + np.arange(itemsize)).reshape(-1)
            byte_key.append(positions)
        view = view[tuple(key)]
        view.write(np.ones(view.shape, view.dtype.storage))
        part[np.ix_(*byte_key)] = True
        for other in (tensor, tensor.view(nl.uint8), tensor[1:7, ::2], tensor.view(nl.int16)[:, 2:5, 3:]):
            expected = byte_mask(mask, other, tensor)
            assert unwritten(core, other) == int((~expected).sum())


def byte_mask(mask, view, tensor):
    """Which elements of a view have all their bytes written."""
    itemsize = view.dtype.itemsize
    pitch = tensor.storage.pitch or 240
    offset = view.byte_offset - tensor.storage.base
    row, start = divmod(offset, pitch)
    strides = [view.byte_strides[0] // pitch * 240, *view.byte_strides[1:], 1]
    flat = np.ascontiguousarray(mask).reshape(-1)
    return np.ndarray((*view.shape, itemsize), bool, flat, row * 240 + start, strides).all(-1)


@pytest.mark.parametrize(
    ("dtype", "poison"),
    [
        (nl.float32, np.isnan),
        (nl.bfloat16, lambda values: np.isnan(values.astype(np.float32))),
        (nl.float16, np.isnan),
        (nl.float8_e4m3, lambda values: np.isnan(values.astype(np.float32))),
        (nl.float8_e5m2, lambda values: np.isnan(values.astype(np.float32))),
        (nl.int32, lambda values: values == -1),
        (nl.int8, lambda values: values == -1),
        (nl.uint8, lambda values: values == 255),
        (nl.uint32, lambda values: values == 2**32 - 1),
    ],
)
@pytest.mark.parametrize("address", [None, (0, 0)])
def test_what_nothing_has_written_shows(core, dtype, poison, address):
    tensor = core.allocate((128, 8), dtype, SBUF, address=address)
    tensor[:, 0:4].write(np.ones((128, 4), dtype.storage))
    values = tensor.read()
    assert poison(values[:, 4:]).all() and (values[:, :4] == 1).all()
    tensor[:, 4:].write(np.zeros((128, 4), dtype.storage))
    assert unwritten(core, tensor) == 0 and (tensor.read()[:, 4:] == 0).all()


def test_what_an_earlier_tensor_wrote_at_an_address_counts(core):
    """Physical memory remembers, whichever tensor wrote it."""
    first = core.allocate((128, 8), nl.float32, SBUF, address=(0, 0))
    first.write(np.ones((128, 8), np.float32))
    second = core.allocate((128, 16), nl.float32, SBUF, address=(0, 0))
    assert unwritten(core, second) == 128 * 8
    assert unwritten(core, second[:, 0:8]) == 0


# Reports of kernels


@nki.jit
def reads_what_nothing_wrote(x):
    tile = nl_ndarray((4, 8), nl.int32, SBUF)
    nisa.memset(dst=tile[:, 0:6], value=7)
    other = nl_ndarray((4, 8), nl.int32, SBUF)
    nisa.tensor_copy(dst=other, src=tile)  # reads 8 integers
    out = nl_ndarray((4, 8), nl.int32, MemoryRegion.shared_hbm)
    nisa.dma_copy(dst=out[0:3], src=other[0:3])
    return out


def nl_ndarray(shape, dtype, buffer):
    import nki.language

    return nki.language.ndarray(shape, dtype, buffer=buffer)


def test_reads_and_results_are_reported_with_their_lines():
    with simulation() as reports:
        reads_what_nothing_wrote(np.zeros((2, 2), np.float32))
    first, second = reports[0].unwritten
    line = f"test_memory.py:{line_of('reads 8 integers')}"
    assert first.startswith("nisa.tensor_copy at ") and f"{line} read 8 elements of sbuf int32[4, 8]" in first
    line = f"test_memory.py:{line_of('def reads_what') - 1}"
    assert second.startswith("the result at ") and f"{line} read 8 elements of shared_hbm int32[4, 8]" in second


@pytest.mark.parametrize("source", ["argument", "environment"])
def test_in_strict_mode_they_are_errors(monkeypatch, source):
    if source == "environment":
        monkeypatch.setenv("NEURON_EMULATOR_NKI_STRICT", "1")
    strict = True if source == "argument" else None
    with pytest.raises(NkiError, match="reads 8 elements .* nothing has written") as error:
        run_kernel(reads_what_nothing_wrote.func, 1, (np.zeros((2, 2), np.float32),), {}, is_strict=strict)
    assert error.value.op == "nisa.tensor_copy"


def test_a_result_that_is_not_wholly_written_is_an_error_in_strict_mode():
    def kernel():
        return nl_ndarray((4, 8), nl.float32, MemoryRegion.shared_hbm)

    with pytest.raises(NkiError, match="the result reads 32 elements") as error:
        run_kernel(kernel, 1, (), {}, is_strict=True)
    assert error.value.location.endswith(f"test_memory.py:{line_of('def kernel():')}")


def line_of(text):
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


# Capacity: peaks worked out by hand


def kib(n):
    return n * KIB // 4


def used(*uses):
    """The peak of SBUF, in KiB, of a kernel that uses tensors of (KiB per partition, partitions, address) in turn.

    A use is an index into the tensors, in the order of instructions.
    """
    *tensors, order = uses

    def kernel():
        import nki.language as nl

        tiles = [
            nl.ndarray((partitions, kib(size)), nl.float32, address=None if address is None else (0, address * KIB))
            for size, partitions, address in tensors
        ]
        for index in order:
            nisa.memset(dst=tiles[index][:, 0:1], value=0.0)

    run = new_run(kernel, 1, CHIPS[3])
    execute(run, kernel, (), {})
    return peak(run.cores[0], SBUF)


@pytest.mark.parametrize(
    ("tensors", "order", "expected", "at"),
    [
        ([(10, 128, None), (20, 128, None)], [0, 1], 20, 1),
        ([(10, 128, None), (20, 128, None)], [0, 1, 0], 30, 1),
        ([(10, 128, None), (20, 128, None), (40, 128, None)], [0, 1, 0, 2, 1], 60, 3),
        ([(200, 128, None)], [], 0, 0),
        ([(200, 128, None), (100, 128, None), (220, 128, None)], [0, 1, 2], 220, 2),
        # A quarter of the partitions, half of them, three quarters (which no one else can use), all.
        ([(40, 32, None)], [0], 10, 0),
        ([(40, 1, None), (40, 64, None)], [0, 1, 0], 30, 1),
        ([(40, 65, None)], [0], 40, 0),
        ([(40, 96, None)], [0], 40, 0),
        # Addresses: bytes that several tensors cover count once, from the first use of any to the last.
        ([(40, 128, 0), (40, 128, 0)], [0, 1], 40, 0),
        ([(40, 128, 0), (40, 128, 20)], [0, 1, 0], 60, 1),
        ([(40, 128, 0), (40, 128, 20)], [0, 1], 40, 0),
        ([(40, 128, 0), (40, 128, 60)], [0, 1], 40, 0),
        ([(40, 128, 0), (100, 128, None)], [0, 1, 0], 140, 1),
    ],
)
def test_peaks(tensors, order, expected, at):
    found = used(*tensors, order)
    assert found.nbytes == expected * KIB
    assert found.instruction == at
    assert found.limit == 224 * KIB


def test_what_is_allocated_and_never_used_takes_nothing():
    assert used((200, 128, None), (200, 128, None), [1]).nbytes == 200 * KIB


def test_the_curve_of_usage():
    found = used((10, 128, None), (20, 128, None), (40, 128, None), [0, 1, 0, 2])
    assert found.over_time == ((0, 10 * KIB), (1, 30 * KIB), (2, 10 * KIB), (3, 40 * KIB)) or found.over_time == (
        (0, 10 * KIB),
        (1, 30 * KIB),
        (2, 10 * KIB),
        (3, 40 * KIB),
        (4, 0),
    )


@pytest.mark.parametrize(("generation", "size"), [(2, 192), (3, 224), (4, 256)])
def test_each_generation_has_its_own_sbuf(generation, size):
    def kernel(nbytes):
        import nki.language as nl

        tile = nl.ndarray((128, nbytes // 4), nl.float32)
        nisa.memset(dst=tile[:, 0:1], value=0.0)

    chip = CHIPS[generation]
    assert chip.sbuf_partition_bytes == size * KIB
    run_kernel(kernel, 1, (size * KIB,), {}, chip=chip)
    with pytest.raises(NkiError, match=f"{size * KIB + 4} bytes"):
        run_kernel(kernel, 1, (size * KIB + 4,), {}, chip=chip)
