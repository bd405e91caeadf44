"""Calling kernels: what goes in, what comes out, what is shared with the caller."""

import threading

import numpy as np
import pytest


torch = pytest.importorskip("torch")

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402
from optimum_neuron_torch.emulator.nki.errors import NkiError  # noqa: E402


@nki.jit
def doubled(values):
    """`2 * values`, 128 rows at a time; every core takes its share of them."""
    result = nl.ndarray(values.shape, values.dtype, buffer=nl.shared_hbm)
    cores, core = nl.num_programs(0), nl.program_id(0)
    for tile in range(core, values.shape[0] // 128, cores):
        rows = nl.ds(tile * 128, 128)
        on_chip = nl.ndarray((128, values.shape[1]), values.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=on_chip, src=values[rows, :])
        nisa.tensor_tensor(dst=on_chip, data1=on_chip, data2=on_chip, op=nl.add)
        nisa.dma_copy(dst=result[rows, :], src=on_chip)
    return result


def some_values(rows=256, columns=48):
    return np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)


@pytest.mark.parametrize("call", [doubled, doubled[1], doubled[2], nki.simulate(doubled), nki.simulate(doubled)[2]])
def test_numpy_gives_numpy(call):
    values = some_values(512)
    result = call(values)
    assert isinstance(result, np.ndarray)
    np.testing.assert_array_equal(result, 2 * values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32])
def test_torch_gives_torch(dtype):
    values = torch.randint(-8, 8, (128, 16)).to(dtype)
    result = doubled(values)
    assert result.dtype == dtype
    assert torch.equal(result.float(), 2 * values.float())


def test_a_plain_function_can_be_simulated():
    values = some_values()
    np.testing.assert_array_equal(nki.simulate(doubled.func)(values), 2 * values)


def test_inside_a_kernel_a_kernel_is_a_function():
    @nki.jit
    def outer(values):
        return doubled(values)

    values = some_values()
    np.testing.assert_array_equal(outer(values), 2 * values)


def test_a_kernel_writes_to_its_arguments_in_place():
    @nki.jit
    def clear_first(values):
        zeros = nl.ndarray((1, values.shape[1]), values.dtype)
        nisa.memset(zeros, value=0)
        nisa.dma_copy(dst=values[0:1, :], src=zeros)

    for values in (some_values(), np.asfortranarray(some_values()), some_values(8, 96)[:, ::2]):
        expected = values.copy()
        expected[0] = 0
        assert clear_first(values) is None
        np.testing.assert_array_equal(values, expected)
    tensor = torch.ones(4, 6).T
    clear_first(tensor)
    assert tensor[0].eq(0).all() and tensor[1:].eq(1).all()


def test_an_argument_that_is_returned_is_the_callers_own():
    @nki.jit
    def itself(values):
        return values

    values = some_values()
    assert itself(values) is values


def test_results_keep_the_structure_of_what_the_kernel_returns():
    @nki.jit
    def both(values):
        return {"twice": doubled(values), "pair": (values, doubled(values))}

    values = some_values()
    result = both(values)
    np.testing.assert_array_equal(result["twice"], result["pair"][1])


def test_results_must_be_in_shared_hbm():
    @nki.jit
    def on_chip(values):
        return nl.ndarray((128, 4), nl.float32, buffer=nl.sbuf)

    with pytest.raises(NkiError, match="shared HBM, not sbuf"):
        on_chip(some_values())


@pytest.mark.parametrize("lnc", [0, 3, True, "2", (1, 2)])
def test_a_logical_core_has_one_or_two_cores(lnc):
    with pytest.raises(NkiError, match="1 or 2 cores"):
        doubled[lnc]


def test_wrong_arguments_name_the_kernels_signature():
    with pytest.raises(NkiError, match=r"doubled\(values\).*missing"):
        doubled()


def test_an_instruction_outside_a_kernel_is_refused():
    with pytest.raises(NkiError, match="only inside a kernel"):
        nl.ndarray((128, 4), nl.float32)


def test_after_an_error_the_next_call_is_right():
    @nki.jit
    def failing(values):
        nl.ndarray((256, 4), nl.float32)

    values = some_values()
    for lnc in (1, 2):
        with pytest.raises(NkiError, match="256, 4"):
            failing[lnc](values)
        np.testing.assert_array_equal(doubled[lnc](values), 2 * values)


def test_an_error_in_the_kernels_own_python_comes_out_as_it_is():
    @nki.jit
    def broken(values):
        return {}["missing"]

    for lnc in (1, 2):
        with pytest.raises(KeyError, match="missing"):
            broken[lnc](some_values())


def test_64_bit_arguments_are_refused_with_the_way_out():
    with pytest.raises((NkiError, ValueError), match="float32"):
        doubled(np.zeros((128, 4)))


def test_simulation_collects_what_ends_inside_in_whatever_thread():
    def from_a_thread():
        thread = threading.Thread(target=doubled, args=(some_values(),))
        thread.start()
        thread.join()

    with nki.simulation() as outer:
        doubled(some_values())
        with nki.simulation() as inner:
            from_a_thread()
        assert [report.kernel for report in inner] == ["doubled"]
        from_a_thread()
    doubled(some_values())
    assert (len(outer), len(inner)) == (3, 1)
