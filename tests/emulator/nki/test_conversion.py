"""Arrays of every kind as arguments: what a kernel sees, what it leaves in them, and what comes back."""

import collections
import dataclasses
import warnings

import ml_dtypes
import numpy as np
import pytest


torch = pytest.importorskip("torch")

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402
from optimum_neuron_torch.emulator.nki.errors import NkiError, NkiWarning  # noqa: E402


@nki.jit
def copied(x):
    """A copy of `x`, by way of SBUF."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    move(out, x)
    return out


def move(dst, src):
    rows = src.reshape((1, src.size))
    tile = nl.ndarray(rows.shape, src.dtype)
    nisa.dma_copy(dst=tile, src=rows)
    nisa.dma_copy(dst=dst.reshape(rows.shape), src=tile)


@nki.jit
def overwrite(dst, src):
    """`dst[...] = src`; returns nothing."""
    move(dst, src)


def numbers(*shape):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.float32)


# NumPy

NUMPY = {
    "plain": numbers(3, 4),
    "transposed": numbers(4, 3).T,
    "fortran": np.asfortranarray(numbers(3, 4)),
    "every other": numbers(6, 8)[::2, ::2],
    "backwards": numbers(3, 4)[::-1, ::-1],
    "big endian": numbers(3, 4).astype(">f4"),
    "big endian integers": numbers(3, 4).astype(">i2"),
    "unaligned": np.frombuffer(b"x" + numbers(3, 4).tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4),
    "repeated": np.broadcast_to(numbers(4), (3, 4)),
    "zero dimensions": np.array(3.5, np.float32),
    "five dimensions": numbers(2, 1, 3, 1, 4),
    "bool": numbers(3, 4) > 4,
    **{
        name: numbers(3, 4).astype(getattr(ml_dtypes, name))
        for name in ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    },
    **{
        name: numbers(3, 4).astype(name) for name in ("float16", "int8", "uint8", "int16", "uint16", "int32", "uint32")
    },
    "memory map": np.memmap,
}


@pytest.fixture(params=NUMPY)
def array(request, tmp_path):
    if request.param == "memory map":
        array = np.memmap(tmp_path / "array", np.float32, "w+", shape=(3, 4))
        array[...] = numbers(3, 4)
        return array
    return NUMPY[request.param].copy("K") if NUMPY[request.param].flags.writeable else NUMPY[request.param]


def test_numpy_arrays_come_back_equal(array):
    before = array.copy()
    result = copied(array)
    assert type(result) is np.ndarray and result.shape == (array.shape or (1,))
    assert result.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(result.reshape(array.shape), before)
    np.testing.assert_array_equal(array, before)


def test_what_a_kernel_writes_is_in_the_callers_array(array):
    wanted = np.ones(array.shape, array.dtype.newbyteorder("="))
    if not array.flags.writeable:
        with pytest.raises(NkiError, match="read-only"):
            overwrite(array, wanted)
        return
    overwrite(array, wanted)
    np.testing.assert_array_equal(array, wanted)


def test_scalars_of_numpy_stay_numbers():
    @nki.jit
    def kernel(x):
        assert isinstance(x, np.float32)
        return float(x) + 1

    assert kernel(np.float32(2)) == 3.0


def test_a_masked_array_is_refused():
    with pytest.raises(NkiError, match="argument x is a masked array"):
        copied(np.ma.masked_array(numbers(2, 2), mask=[[0, 1], [0, 0]]))


# PyTorch

TORCH = {
    "plain": torch.arange(12.0).reshape(3, 4),
    "transposed": torch.arange(12.0).reshape(4, 3).T,
    "every other": torch.arange(48.0).reshape(6, 8)[::2, ::2],
    "expanded": torch.arange(4.0).expand(3, 4),
    "channels last": torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "zero dimensions": torch.tensor(3.5),
    "parameter": torch.nn.Parameter(torch.arange(12.0).reshape(3, 4), requires_grad=False),
    "negated": torch.view_as_complex(torch.arange(24.0).reshape(3, 4, 2)).conj().imag,
    "bool": torch.arange(12).reshape(3, 4) > 4,
    **{
        str(dtype): torch.arange(12.0).reshape(3, 4).to(dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)
    },
    **{
        str(dtype): torch.arange(12).reshape(3, 4).to(dtype)
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32)
    },
    "transposed bfloat16": torch.arange(12.0).reshape(4, 3).to(torch.bfloat16).T,
    "transposed float8": torch.arange(12.0).reshape(4, 3).to(torch.float8_e4m3fn).T,
}
WRITES_HAVE_NO_PLACE = ("expanded", "negated")


def same(one, other):
    """Bit for bit: PyTorch does not compare every dtype."""
    one, other = one.detach().cpu().contiguous(), other.detach().cpu().contiguous()
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and (one.reshape(-1).view(torch.uint8).tolist() == other.reshape(-1).view(torch.uint8).tolist())
    )


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("kind", TORCH)
def test_torch_tensors_come_back_equal(kind, device):
    given = TORCH[kind].to(device)
    before = given.detach().clone().resolve_neg()
    result = copied(given)
    assert result.device == given.device and not result.requires_grad
    assert same(result.reshape(given.shape), before) and same(given.resolve_neg(), before)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("kind", TORCH)
def test_what_a_kernel_writes_is_in_the_callers_tensor(kind, device):
    given = TORCH[kind].clone(memory_format=torch.preserve_format) if kind not in WRITES_HAVE_NO_PLACE else TORCH[kind]
    given = given.to(device)
    wanted = torch.ones(given.shape, device=device).to(given.dtype)
    if kind in WRITES_HAVE_NO_PLACE and (given.is_neg() or 0 in given.stride()):
        with pytest.raises(NkiError, match="read-only"):
            overwrite(given, wanted)
        return
    overwrite(given, wanted)
    assert same(given, wanted)


def test_a_tensor_that_requires_a_gradient_warns():
    x = torch.ones(3, 4, requires_grad=True)
    with pytest.warns(NkiWarning, match="has no gradient"):
        assert not copied(x).requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            copied(x)


def test_tensors_on_different_devices_are_refused():
    with pytest.raises(NkiError, match="argument dst on cpu, argument src on neuron:0"):
        overwrite(torch.ones(3, 4), torch.ones(3, 4, device="neuron"))


def test_float8_e4m3_has_no_place_in_torch():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, nl.float8_e4m3, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    with pytest.raises(NkiError, match="PyTorch has no float8_e4m3"):
        kernel(torch.ones(3, 4))
    assert kernel(np.ones((3, 4), np.float32)).dtype == ml_dtypes.float8_e4m3


def test_numpy_and_torch_together_give_torch():
    @nki.jit
    def kernel(x, y):
        return copied(x), copied(y)

    first, second = kernel(numbers(3, 4), torch.ones(3, 4))
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)


# Sharing


@pytest.mark.parametrize("make", [lambda: numbers(3, 4), lambda: torch.arange(12.0).reshape(3, 4)])
def test_one_array_twice_is_one_tensor(make):
    @nki.jit
    def kernel(x, y, z):
        assert x is y and x is z[0]["deep"]
        return x

    x = make()
    assert kernel(x, x, [{"deep": x}]) is x


def test_views_of_one_array_share_what_is_written():
    x = torch.arange(12.0)
    first, second = x.view(3, 4), x.view(2, 6)

    @nki.jit
    def kernel(a, b, ones):
        move(a, ones)
        return copied(b)

    assert torch.equal(kernel(first, second, torch.ones(3, 4)), torch.ones(2, 6))
    assert torch.equal(x, torch.ones(12))


def test_outputs_that_are_arguments_are_the_callers_own():
    @nki.jit
    def kernel(x, ones):
        move(x, ones)
        return x, x.reshape((x.size,)), [x]

    for x, ones in [(torch.zeros(3, 4).T, torch.ones(4, 3)), (np.zeros((3, 4), np.float32), numbers(3, 4))]:
        same_one, flat, (again,) = kernel(x, ones)
        assert same_one is x and again is x
        assert flat.shape == (12,) and (flat == ones.reshape(-1)).all() and (x == ones).all()


def test_a_zero_dimensional_argument_is_returned_as_it_is():
    x = torch.tensor(2.0)
    assert nki.jit(lambda x: x)(x) is x


def test_a_part_of_an_argument_is_a_copy():
    x = numbers(4, 4)
    part = nki.jit(lambda x: x[1:3, 0:2])(x)
    np.testing.assert_array_equal(part, x[1:3, 0:2])
    part[...] = -1
    np.testing.assert_array_equal(x, numbers(4, 4))


@pytest.mark.parametrize("written", ["whole", "transposed"])
def test_a_copied_argument_that_overlaps_another_one_and_is_written(written):
    """A matrix and its transpose: the kernel's copy of one cannot see what it writes to the other."""
    whole = numbers(3, 3)

    @nki.jit
    def kernel(whole, transposed, ones):
        move({"whole": whole, "transposed": transposed}[written], ones)

    with pytest.raises(NkiError, match="argument transposed is not contiguous and shares memory"):
        kernel(whole, whole.T, np.ones((3, 3), np.float32))


def test_interleaved_arguments_do_not_overlap():
    qkv = torch.arange(24.0).reshape(4, 6)
    q, k = qkv[:, :3], qkv[:, 3:]
    overwrite(q, k)
    assert torch.equal(qkv[:, :3], torch.arange(24.0).reshape(4, 6)[:, 3:])


def test_a_matrix_and_its_transpose_that_are_only_read():
    @nki.jit
    def kernel(x, y):
        return copied(x), copied(y)

    x = numbers(3, 4)
    first, second = kernel(x, x.T)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, x.T)


# Containers


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Frozen:
    tensor: object
    number: int = 3


def test_containers_are_looked_into_and_stay_what_they_were():
    @nki.jit
    def kernel(tree):
        point, frozen, counted, plain = tree
        assert point.x.shape == (3, 4) and frozen.number == 3 and counted["missing"] == 0
        return Point(copied(point.x), point.y), Frozen(copied(frozen.tensor)), {"a": [None, "text", 1.5]}, plain

    x, plain = numbers(3, 4), [1, "two", None]
    counted = collections.defaultdict(int, {"tensor": x})
    given = [Point(x, 2), Frozen(x), counted, plain]
    point, frozen, more, same_plain = kernel(given)
    assert isinstance(point, Point) and isinstance(frozen, Frozen) and more == {"a": [None, "text", 1.5]}
    np.testing.assert_array_equal(point.x, x)
    np.testing.assert_array_equal(frozen.tensor, x)
    assert same_plain is plain and given[1].tensor is x and counted["tensor"] is x


def test_kernels_own_objects_as_arguments():
    @dataclasses.dataclass
    class Config(nl.NKIObject):
        weight: object = None
        size: int = 4

    @nki.jit
    def kernel(config):
        return copied(config.weight) if config.weight is not None else config.size

    x = numbers(3, 4)
    np.testing.assert_array_equal(kernel(Config(weight=x)), x)
    assert kernel(Config()) == 4


def test_defaults_and_keywords():
    @nki.jit
    def kernel(x, *more, scale=2.0, **options):
        return [copied(t) for t in (x, *more)], scale, copied(options["bias"])

    x = numbers(3, 4)
    results, scale, bias = kernel(x, x, bias=x)
    assert len(results) == 2 and scale == 2.0
    np.testing.assert_array_equal(bias, x)


# JAX


def test_jax_arrays():
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(12, dtype=jax.numpy.bfloat16).reshape(3, 4)
    result = copied(x)
    assert isinstance(result, jax.Array) and result.dtype == x.dtype and (result == x).all()
    with pytest.raises(NkiError, match="read-only"):
        overwrite(x, x)
    with pytest.raises(NkiError, match=r"argument x has a shape and no data .*outside jax.jit"):
        jax.jit(copied)(x)
