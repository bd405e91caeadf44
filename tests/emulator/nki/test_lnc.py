"""Two cores that share HBM: turns, barriers, messages, and what happens where they wait in vain."""

import signal
import threading

import numpy as np
import pytest

from optimum_neuron_torch.emulator.nki.chips import CHIPS
from optimum_neuron_torch.emulator.nki.core import Run, current, running
from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.lnc import execute_together
from optimum_neuron_torch.emulator.nki.memory import MemoryRegion


def run_on_both(function):
    return execute_together(Run("test", CHIPS[3], 2), function, (), {})


def test_the_first_cores_result_counts():
    assert run_on_both(lambda: current().index) == 0


def test_cores_run_in_turns_and_always_in_the_same_order():
    def work(order):
        core = current()
        for step in range(3):
            order.append((core.index, step))
            core.run.link.barrier(core, "step", "the barrier")
        return order

    orders = []
    for _ in range(5):
        order = []
        run_on_both(lambda order=order: work(order))
        orders.append(order)
    assert all(order == orders[0] for order in orders)
    assert sorted(orders[0]) == [(core, step) for core in (0, 1) for step in range(3)]
    steps = [step for _, step in orders[0]]
    assert steps == sorted(steps)  # nobody passes a barrier before the other has come


def test_messages_arrive_in_order_and_per_pipe():
    received = {}

    def work():
        core = current()
        other = 1 - core.index
        for pipe in (7, 8):
            for number in range(2):
                sent = np.array([core.index, pipe, number])
                received[core.index, pipe, number] = core.run.link.exchange(core, sent, other, other, pipe, "data")

    run_on_both(work)
    for (core, pipe, number), values in received.items():
        assert values.tolist() == [1 - core, pipe, number]


def test_shared_tensors_are_one_and_private_ones_two():
    owners = {}

    def work():
        core = current()
        for region in (MemoryRegion.shared_hbm, MemoryRegion.private_hbm):
            owners[core.index, region.name] = core.allocate((4, 4), "float32", region).storage.owner

    run_on_both(work)
    assert owners[0, "shared_hbm"] == owners[1, "shared_hbm"]
    assert owners[0, "private_hbm"] != owners[1, "private_hbm"]


def test_shared_tensors_of_different_shapes_are_refused():
    def work():
        core = current()
        core.allocate((4, 4 + core.index), "float32", MemoryRegion.shared_hbm)

    with pytest.raises(NkiError, match="same shared tensors in the same order"):
        run_on_both(work)


@pytest.mark.parametrize("alone", [0, 1])
def test_a_barrier_that_one_core_never_reaches_is_named(alone):
    def work():
        core = current()
        if core.index == alone:
            core.run.link.barrier(core, "x", "the barrier of the test")

    with pytest.raises(
        NkiError, match=f"core {alone} waits for ever: the barrier of the test; core {1 - alone} has ended"
    ):
        run_on_both(work)


def test_two_cores_that_wait_for_each_other_are_named():
    def work():
        core = current()
        core.run.link.barrier(core, core.index, f"barrier {core.index}")

    with pytest.raises(NkiError, match=r"core \d waits for ever: barrier \d; core \d waits: barrier \d"):
        run_on_both(work)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_on_one_core_ends_the_other(failing):
    def work():
        core = current()
        if core.index == failing:
            raise KeyError("this one")
        core.run.link.barrier(core, "x", "nothing")

    with pytest.raises(KeyError, match="this one"):
        run_on_both(work)


def test_a_thread_is_free_after_a_run():
    with pytest.raises(NkiError), running(Run("test", CHIPS[3], 1).cores[0]):
        raise NkiError("anything")
    with pytest.raises(NkiError, match="only inside a kernel"):
        current()


@pytest.fixture
def _interruptible():
    """What starts tests in the background may have them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_call_leaves_no_core_running():
    """Cores that ran on would write to memory that the next kernel has."""
    ended = []

    def work():
        core, step = current(), 0
        if core.index == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        try:
            while step < 1_000_000:
                step += 1
                core.allocate((128, 4), "float32", MemoryRegion.sbuf, address=(0, 0))
                core.run.link.barrier(core, "step", "the barrier")
        finally:
            ended.append((core.index, step))

    with pytest.raises(KeyboardInterrupt):
        run_on_both(work)
    assert sorted(index for index, _ in ended) == [0, 1]
    assert all(step < 1_000_000 for _, step in ended)
    assert run_on_both(lambda: current().index) == 0
