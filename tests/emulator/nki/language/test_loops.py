"""Loops over numbers and over registers."""

import warnings

import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki import TensorSpec, trace
from optimum_neuron_torch.emulator.nki.errors import NkiError, NkiWarning
from tests.emulator.nki.language.tiles import nisa, nki, nl, normal


def in_kernel(function, *arrays):
    def kernel(*tensors):
        return function(*tensors)

    return nki.simulate(kernel)(*arrays)


def register(number):
    return nisa.register_alloc(number)


@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range", "range"])
def test_ranges_are_pythons(name):
    function = getattr(nl, name)
    for arguments in [(5,), (2, 5), (2, 11, 3), (0,), (5, 2)]:
        assert list(function(*arguments)) == list(range(*arguments))
        assert all(type(i) is int for i in function(*arguments))


@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range"])
def test_ranges_refuse_registers(name):
    with pytest.raises(NkiError, match="nl.fori_loop takes registers"):
        in_kernel(lambda: getattr(nl, name)(register(3)))
    with pytest.raises(NkiError, match="bounds are integers"):
        getattr(nl, name)(2.5)


@pytest.mark.parametrize("bounds", [(0, 4, 1), (1, 4, 1), (0, 7, 3), (3, 3, 1), (5, 2, 1)])
@pytest.mark.parametrize("as_registers", [False, True])
def test_fori_loop(bounds, as_registers):
    def kernel():
        lower, upper, step = bounds
        if as_registers:
            lower, upper = register(lower), register(upper)
        seen = []

        def body(i):
            assert isinstance(i, nisa.VirtualRegister)
            seen.append(i.number())

        assert nl.fori_loop(lower, upper, body, step) is None
        assert seen == list(range(*bounds))

    in_kernel(kernel)


def test_the_documented_fori_loop():
    # A runtime bound, and the loop's register as a dynamic offset.
    def kernel(data, count):
        output = nl.ndarray(data.shape, data.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=output, src=nl.zeros(data.shape, data.dtype))
        bound, limit = nl.load(count), nisa.register_alloc()
        nisa.register_load(limit, bound)
        element = nl.ndarray((1, 1), data.dtype)

        def body(i):
            nisa.dma_copy(dst=element, src=data.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
            nisa.dma_copy(dst=output.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), src=element)

        nl.fori_loop(0, limit, body)
        return output

    data = normal(1, 10)
    for count in (0, 3, 10):
        output = nki.simulate(kernel)(data, np.int32([[count]]))
        np.testing.assert_array_equal(output, np.where(np.arange(10) < count, data, 0))


def test_writing_to_the_register_of_a_fori_loop_does_not_change_it():
    def kernel():
        seen = []

        def body(i):
            seen.append(i.number())
            nisa.register_move(i, 100)

        nl.fori_loop(0, register(3), body)
        assert seen == [0, 1, 2]

    in_kernel(kernel)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_documented_while_loop(count):
    def kernel(count_input, data):
        output = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        value, total = nl.load(data), nl.zeros((1, 1), nl.float32)
        left, one = nl.load(count_input), nl.full((1, 1), 1, nl.int32)
        condition = nisa.register_alloc()
        nisa.register_load(condition, left)

        def body(r):
            nisa.tensor_tensor(dst=total, data1=total, data2=value, op=nl.add)
            nisa.tensor_tensor(dst=left, data1=left, data2=one, op=nl.subtract)
            nisa.register_load(r, left)
            return r

        assert nl.while_loop(condition, body) is None
        assert condition.number() == count
        nl.store(output, total)
        return output

    total = nki.simulate(kernel)(np.int32([[count]]), np.float32([[2.5]]))
    assert total.tolist() == [[2.5 * count]]


def test_bad_loops_are_refused():
    for loop, message in [
        (lambda: nl.fori_loop(0, 4, None), "body_fun is a function"),
        (lambda: nl.fori_loop(0, 4, print, step=0), "positive integer"),
        (lambda: nl.fori_loop(0, 4, print, step=register(1)), "positive integer"),
        (lambda: nl.fori_loop(0, 2.5, print), "integers or registers"),
        (lambda: nl.fori_loop(0, nisa.register_alloc(), print), "never loaded"),
        (lambda: nl.while_loop(3, print), "init is a register"),
        (lambda: nl.while_loop(register(1), lambda r: None), "returned None"),
    ]:
        with pytest.raises(NkiError, match=message):
            in_kernel(loop)


@pytest.mark.parametrize(
    "loop",
    [lambda: nl.while_loop(nisa.register_alloc(1), lambda r: r), lambda: nl.fori_loop(0, 2**40, lambda i: None)],
)
def test_a_loop_that_never_ends_is_stopped(loop, monkeypatch):
    monkeypatch.setenv("NEURON_EMULATOR_NKI_STEPS", "1000")
    with pytest.raises(NkiError, match="never ends"):
        in_kernel(loop)


def test_no_reorder():
    def kernel(values):
        out = nl.ndarray(values.shape, values.dtype, buffer=nl.shared_hbm)
        with nl.no_reorder():
            tile = nl.load(values)
            for _ in range(2):
                tile = nl.add(tile, tile)
            nl.store(out, tile)
        nl.fori_loop(0, 1, lambda i: None)
        return out

    values = normal(16, 4)
    np.testing.assert_array_equal(nki.simulate(kernel)(values), 4 * values)


def test_loops_over_registers_do_not_go_inside_no_reorder():
    def kernel():
        with nl.no_reorder():
            nl.fori_loop(0, 2, lambda i: None)

    with pytest.raises(NkiError, match="nl.no_reorder"):
        in_kernel(kernel)


def test_dynamic_range_runs_with_a_warning():
    def kernel(values):
        out = nl.ndarray(values.shape, values.dtype, buffer=nl.shared_hbm)
        for i in nl.dynamic_range(register(4)):
            nisa.dma_copy(dst=out[nl.ds(i, 1), :], src=values[nl.ds(i, 1), :])
        return out

    values = normal(4, 8)
    with pytest.warns(NkiWarning, match="nl.fori_loop"):
        np.testing.assert_array_equal(nki.simulate(kernel)(values), values)


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        (lambda i: i == 2, [False, False, True, False]),
        (lambda i: i != 2, [True, True, False, True]),
        (lambda i: i in (0, 3), [True, False, False, True]),
        (lambda i: i < 2, [True, True, False, False]),
        (lambda i: 2 <= i, [False, False, True, True]),
        (lambda i: i == None, [False] * 4),  # noqa: E711
    ],
)
def test_registers_are_compared_by_their_numbers(compare, expected):
    """By identity, as Python does it, a branch would never be taken, and nobody would know."""

    @nki.jit
    def kernel(values):
        taken = []
        nl.fori_loop(0, 4, lambda i: taken.append(compare(i)))
        return taken

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NkiWarning)
        assert kernel(np.zeros((1, 1), np.float32)) == expected


def test_registers_without_a_number_are_not_compared():
    @nki.jit
    def kernel(values):
        number = register(None)
        nisa.register_load(number, values)
        return number == 2

    with pytest.raises(NkiError, match="comparisons; use nl.fori_loop"):
        trace(kernel, TensorSpec((1, 1), "int32"))
