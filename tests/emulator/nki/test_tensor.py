"""Views of tensors against NumPy: random chains of them in HBM, on the chip, and at addresses of physical memory."""

import ml_dtypes
import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki import dtypes as nl
from optimum_neuron_torch.emulator.nki.chips import CHIPS
from optimum_neuron_torch.emulator.nki.core import Run, running
from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.memory import MemoryRegion
from optimum_neuron_torch.emulator.nki.tensor import DynamicSlice


PLACES = ["hbm", "sbuf", "psum", "address"]


@pytest.fixture(autouse=True)
def core():
    core = Run("kernel", CHIPS[3], 1).cores[0]
    with running(core):
        yield core


def make(core, place, shape, dtype=nl.float32, start=0):
    """A tensor that counts from 0, and the same as an array."""
    region = {"hbm": MemoryRegion.private_hbm, "psum": MemoryRegion.psum}.get(place, MemoryRegion.sbuf)
    tensor = core.allocate(shape, dtype, region, "", (32, 4096) if place == "address" else None)
    array = (np.arange(np.prod(shape)) % 251 + start).reshape(shape).astype(dtype.storage)
    tensor.write(array)
    return tensor, array


def assert_same(tensor, array):
    assert tensor.shape == array.shape and tensor.size == array.size and tensor.ndim == array.ndim
    np.testing.assert_array_equal(tensor.read(), array)


# Random chains. Each step draws a view, and gives it of a tensor and of an array; on the chip dimension 0 stays.


def pick(random, *options):
    return options[random.integers(len(options))]


def any_slice(random, tensor, array):
    dim = random.integers(tensor.ndim)
    start = int(random.integers(tensor.shape[dim]))
    stop = int(random.integers(start + 1, tensor.shape[dim] + 1))
    step = int(random.integers(1, 4))
    key = (slice(None),) * dim + (slice(start, stop, step),)
    return pick(random, tensor.slice(dim, start, stop, step), tensor[key]), array[key]


def some_range(random, tensor, array):
    dim = random.integers(tensor.ndim)
    size = int(random.integers(1, tensor.shape[dim] + 1))
    start = int(random.integers(tensor.shape[dim] - size + 1))
    places = (slice(None),) * dim
    return tensor[places + (DynamicSlice(start, size),)], array[places + (slice(start, start + size),)]


def one_of(random, tensor, array):
    """An element of a dimension: the dimension goes, but for the partition, and while enough are left."""
    dim = int(random.integers(tensor.ndim))
    index = int(random.integers(-tensor.shape[dim], tensor.shape[dim]))
    key = (slice(None),) * dim + (index,)
    taken = array[(slice(None),) * dim + (slice(index, index + 1 or None),)]
    if (dim == 0 and tensor.is_on_chip) or tensor.ndim <= 1 + tensor.is_on_chip:
        if dim == 0 and tensor.is_on_chip:
            return tensor[key], taken
        return tensor[key], taken.reshape((array.shape[0], 1) if tensor.is_on_chip else (1,))
    return tensor[key], np.squeeze(taken, dim)


def permuted(random, tensor, array):
    first = int(tensor.is_on_chip)
    dims = (*range(first), *(int(dim) for dim in first + random.permutation(tensor.ndim - first)))
    return tensor.permute(dims), array.transpose(dims)


def expanded(random, tensor, array):
    dim = int(random.integers(int(tensor.is_on_chip), tensor.ndim + 1))
    return tensor.expand_dim(dim), np.expand_dims(array, dim)


def broadcast(random, tensor, array):
    dim = int(random.integers(int(tensor.is_on_chip), tensor.ndim + 1))
    shape = (*array.shape[:dim], 3, *array.shape[dim:])
    return tensor.expand_dim(dim).broadcast(dim, 3), np.broadcast_to(np.expand_dims(array, dim), shape)


def squeezed(random, tensor, array):
    dims = [dim for dim in range(int(tensor.is_on_chip), tensor.ndim) if tensor.shape[dim] == 1]
    if not dims or tensor.ndim <= 1 + tensor.is_on_chip:
        return tensor, array
    dim = int(random.choice(dims))
    return tensor.squeeze_dim(dim), np.squeeze(array, dim)


def split(random, tensor, array):
    dim = int(random.integers(int(tensor.is_on_chip), tensor.ndim))
    size = tensor.shape[dim]
    inner = int(random.choice([n for n in range(1, size + 1) if size % n == 0]))
    shape = (*array.shape[:dim], size // inner, inner, *array.shape[dim + 1 :])
    parts = (size // inner, inner if random.integers(2) else -1)
    return tensor.reshape_dim(dim, parts), array.reshape(shape)


def merged(random, tensor, array):
    """NumPy says which neighbours can be merged without a copy."""
    for dim in range(int(tensor.is_on_chip), tensor.ndim - 1):
        shape = (*array.shape[:dim], array.shape[dim] * array.shape[dim + 1], *array.shape[dim + 2 :])
        view = array.view()
        try:
            view.shape = shape
        except AttributeError:
            with pytest.raises(NkiError, match="not contiguous"):
                tensor.flatten_dims(dim, dim + 1)
            continue
        return pick(random, tensor.flatten_dims(dim, dim + 1), tensor.reshape(shape)), view
    return tensor, array


def by_pattern(random, tensor, array):
    return tensor.ap(tensor.get_pattern()), array


STEPS = [any_slice, some_range, one_of, permuted, expanded, broadcast, squeezed, split, merged, by_pattern]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_chains_of_views(core, place, seed):
    random = np.random.default_rng(seed)
    tensor, array = make(core, place, (16, 6, 4, 10))
    for _ in range(8):
        tensor, array = STEPS[random.integers(len(STEPS))](random, tensor, array)
        if tensor.ndim > 7 or tensor.size > 50_000:
            break
        assert_same(tensor, array)
        assert tensor.strides == tuple(stride // 4 for stride in array.strides) or 1 in array.shape
        assert tensor.is_contiguous() == contiguous(array, place)


def contiguous(array, place):
    """Row-major; on the chip within every partition."""
    return bool(array[:1].flags.c_contiguous if place != "hbm" else array.flags.c_contiguous)


@pytest.mark.parametrize("place", PLACES)
def test_writing_through_a_view(core, place):
    tensor, array = make(core, place, (16, 6, 4, 10))
    for view, part in [
        (tensor[::2, 1:5, :, 3], array[::2, 1:5, :, 3]),
        (tensor.permute((0, 3, 2, 1)), array.transpose(0, 3, 2, 1)),
        (tensor[3:7].reshape((4, 240))[:, 10:20], array[3:7].reshape(4, 240)[:, 10:20]),
    ]:
        values = np.random.default_rng(0).standard_normal(part.shape, np.float32)
        view.write(values)
        part[...] = values
        assert_same(tensor, array)


# Access patterns: what counts is the storage, row after row


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("pattern", "offset"),
    [
        ([[60, 16], [1, 60]], 0),
        ([[60, 16], [1, 30]], 30),
        ([[60, 4], [3, 20]], 60 * 5),
        ([[120, 8], [1, 7], [7, 5]], 60 + 4),
        ([[60, 16], [0, 3], [2, 5]], 50),
        ([[60, 16], [-1, 10]], 9),
        ([[60, 4], [1, 60]], 60 * 12),
        ([[0, 1], [5, 12]], 60 * 15),
        ([[60, 2], [20, 3], [4, 5], [1, 4]], 60 * 7),
    ],
)
def test_access_patterns(core, place, pattern, offset):
    tensor, array = make(core, place, (16, 60))
    positions = offset + sum(
        np.arange(count).reshape([-1 if i == dim else 1 for i in range(len(pattern))]) * step
        for dim, (step, count) in enumerate(pattern)
    )
    assert_same(tensor.ap(pattern, offset=offset), array.reshape(-1)[positions])


@pytest.mark.parametrize("place", PLACES)
def test_a_pattern_starts_where_its_view_starts(core, place):
    tensor, array = make(core, place, (16, 60))
    view, part = tensor[2:10, 20:], array[2:10, 20:]
    assert view.offset == 2 * 60 + 20
    assert_same(view.ap([[60, 8], [1, 40]]), part)
    assert_same(view.ap([[60, 7], [2, 20]], offset=60), part[1:, ::2])
    assert_same(view.ap([[60, 8], [1, 45]], offset=-5), array[2:10, 15:])


@pytest.mark.parametrize("place", PLACES)
def test_a_pattern_in_another_dtype(core, place):
    tensor, array = make(core, place, (16, 60))
    halves = array.view(ml_dtypes.bfloat16)
    assert_same(tensor.ap([[120, 16], [2, 60]], offset=1, dtype=nl.bfloat16), halves[:, 1::2])


# Other dtypes


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [nl.uint8, nl.int16, nl.bfloat16, nl.int32, nl.uint32, nl.float8_e4m3fn_x4])
def test_the_same_bytes_as_another_dtype(core, place, dtype):
    tensor, array = make(core, place, (16, 60))
    assert_same(tensor.view(dtype), array.view(dtype.storage))
    assert_same(tensor[:, 8:24].view(dtype), array[:, 8:24].view(dtype.storage))
    assert_same(tensor.view(dtype).view(nl.float32), array)
    assert tensor.reinterpret_cast(dtype).dtype is dtype


@pytest.mark.parametrize("place", PLACES)
def test_writing_bytes_of_another_dtype(core, place):
    tensor, array = make(core, place, (16, 60))
    tensor.view(nl.uint8)[:, 3::4].write(np.full((16, 60), 0x40, np.uint8))
    array.view(np.uint8)[:, 3::4] = 0x40
    assert_same(tensor, array)


def test_what_cannot_be_seen_as_a_wider_dtype(core):
    tensor, _ = make(core, "sbuf", (16, 6), nl.bfloat16)
    for view, why in [(tensor[:, ::2], "not contiguous"), (tensor[:, :3], "multiple")]:
        with pytest.raises(NkiError, match=why):
            view.view(nl.float32)


# Names


@pytest.mark.parametrize("place", PLACES)
def test_rearranged_by_names(core, place):
    tensor, array = make(core, place, (16, 6, 4, 10))
    view = tensor.rearrange(("p", ("a", "b"), "c", "d"), ("p", "d", "b", "a", "c"), {"a": 2})
    assert_same(view, array.reshape(16, 2, 3, 4, 10).transpose(0, 4, 2, 1, 3))
    view = tensor.rearrange(("p", "a", "b", "c"), ("p", ("a", "b"), "c"))
    assert_same(view, array.reshape(16, 24, 10))
    view = tensor[:, :, :, 0].rearrange(("p", "a", "b"), ("p", ("b", "a")) if place == "none" else ("p", "b", "a"))
    assert_same(view, array[:, :, :, 0].transpose(0, 2, 1))


def test_the_dimensions_that_an_index_leaves(core):
    """On the chip a number keeps the partition, and two dimensions are left at least; in HBM one is."""
    tile, array = make(core, "sbuf", (16, 60))
    assert tile[3].shape == (1, 60) and tile[3, 4].shape == (1, 1) and tile[:, 4].shape == (16, 1)
    assert tile[..., -1].shape == (16, 1) and tile[-1].start_partition == 15
    tensor, _ = make(core, "hbm", (16, 60))
    assert tensor[3].shape == (60,) and tensor[3, 4].shape == (1,) and tensor[:, 4].shape == (16,)
    assert [row.shape for row in tensor][:2] == [(60,), (60,)] and len(tensor) == 16
    np.testing.assert_array_equal(tile[3, 4].read(), array[3:4, 4:5])
