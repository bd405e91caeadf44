"""Calls of kernels that cannot work: wrong arguments, wrong cores, wrong chip, wrong results."""

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki.errors import NkiError


@nki.jit
def double(x, scale=2.0):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


ONES = np.ones((4, 8), np.float32)


def words(error, *expected):
    missing = [word for word in expected if word not in str(error.value)]
    assert not missing, f"{missing} not in: {error.value}"


@pytest.mark.parametrize("cores", [0, 3, -1, True, 2.0, "2", (1, 2), (2, 1), None])
def test_number_of_cores_that_no_chip_has(cores):
    with pytest.raises(NkiError) as error:
        double[cores](ONES)
    words(error, f"kernel[{cores!r}]", "1 or 2 cores")


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, ("double", "x", "missing")),
        ((ONES, 1.0, 2.0), {}, ("double", "too many")),
        ((ONES,), {"factor": 3.0}, ("double", "factor", "scale=2.0")),
        ((ONES,), {"x": ONES}, ("double", "multiple values")),
    ],
)
def test_arguments_that_do_not_fit(args, kwargs, expected):
    with pytest.raises(NkiError) as error:
        double(*args, **kwargs)
    words(error, *expected)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.ones((4, 8)), ("float64", "float32", "argument x")),
        (np.ones((4, 8), np.int64), ("int64", "int32", "argument x")),
        (np.ones((4, 8), np.complex64), ("complex64", "float32", "argument x")),
        (np.array([["a", "b"]]), ("<U1", "argument x", "float32")),
        (np.array([[None, 1]]), ("dtype('O')", "argument x", "float32")),
        (np.ones((0, 8), np.float32), ("[0, 8]", "argument x", "one element")),
    ],
)
def test_arrays_of_other_elements(array, expected):
    with pytest.raises(NkiError) as error:
        double(array)
    words(error, *expected)


def test_torch_tensors_of_other_elements():
    torch = pytest.importorskip("torch")
    for tensor, expected in [
        (torch.ones(4, 8, dtype=torch.float64), ("float64", "float32", "argument x")),
        (torch.ones(4, 8, dtype=torch.int64), ("int64", "int32", "argument x")),
        (torch.ones(4, 8).to_sparse(), ("sparse", "argument x")),
        (torch.quantize_per_tensor(torch.ones(4, 8), 1.0, 0, torch.qint8), ("qint8", "argument x")),
    ]:
        with pytest.raises(NkiError) as error:
            double(tensor)
        words(error, *expected)


def test_tensor_in_a_list_names_its_place():
    with pytest.raises(NkiError) as error:
        double({"deep": [ONES, np.ones(3)]})
    words(error, "argument x['deep'][1]", "float64")


@pytest.mark.parametrize("kernel", [None, 3, "double"])
def test_what_is_no_function(kernel):
    for make in (nki.jit, nki.simulate):
        if kernel is None and make is nki.jit:
            continue  # nki.jit() makes a decorator
        with pytest.raises(NkiError, match="takes a"):
            make(kernel)


def test_generator_as_a_kernel():
    @nki.jit
    def kernel(x):
        yield x

    with pytest.raises(NkiError) as error:
        kernel(ONES)
    words(error, "kernel", "generator")


def test_coroutine_as_a_kernel():
    @nki.jit
    async def kernel(x):
        return x

    with pytest.raises(NkiError) as error:
        kernel(ONES)
    words(error, "kernel", "coroutine")


# The chip


def test_chip_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    with pytest.raises(NkiError) as error:
        double(ONES)
    words(error, "NEURON_PLATFORM_TARGET_OVERRIDE", "trn9", "trn2", "gen3")


def test_chip_named_in_the_decorator():
    with pytest.raises(NkiError) as error:
        nki.jit(double.func, platform_target="trn3")
    words(error, "platform_target='trn3'", "NEURON_PLATFORM_TARGET_OVERRIDE")


def test_two_cores_of_a_chip_that_pairs_none(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    with pytest.raises(NkiError) as error:
        double[2](ONES)
    words(error, "kernel[2]", "Trn1")


@pytest.mark.parametrize(
    ("name", "value"), [("STEPS", "many"), ("STEPS", "0"), ("STEPS", "-5"), ("STRICT", "perhaps")]
)
def test_settings_that_mean_nothing(monkeypatch, name, value):
    monkeypatch.setenv(f"NEURON_EMULATOR_NKI_{name}", value)
    with pytest.raises(NkiError) as error:
        double(ONES)
    words(error, f"NEURON_EMULATOR_NKI_{name}", value)


# Outside a kernel, and after one


@pytest.mark.parametrize(
    "use",
    [
        lambda: nl.ndarray((128, 4), nl.float32),
        lambda: nisa.memset(dst=None, value=0.0),
        lambda: nl.program_id(0),
    ],
)
def test_outside_a_kernel(use):
    with pytest.raises(NkiError, match="inside a kernel"):
        use()


def test_tensor_that_left_its_kernel():
    kept = []

    @nki.jit
    def kernel():
        kept.append(nl.ndarray((4, 4), nl.float32))

    kernel()
    with pytest.raises(NkiError, match="inside a kernel"):
        nisa.memset(dst=kept[0], value=0.0)


@pytest.mark.parametrize("wrap", [lambda out: Box(out), lambda out: {out}, lambda out: iter([out])])
def test_result_hidden_in_an_object(wrap):
    @nki.jit
    def kernel():
        out = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
        return wrap(out)

    with pytest.raises(NkiError) as error:
        kernel()
    words(error, "returns", "tuple")


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


def test_the_next_call_is_right():
    @nki.jit
    def fails(x):
        nl.ndarray((256, 4), nl.float32)

    for _ in range(2):
        with pytest.raises(NkiError):
            fails(ONES)
        with pytest.raises(NkiError):
            fails[2](ONES)
        np.testing.assert_array_equal(double(ONES), ONES)
        np.testing.assert_array_equal(double[2](ONES), ONES)
