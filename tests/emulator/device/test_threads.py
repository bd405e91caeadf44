"""Several threads: each has its own core and stream; results, counts and memory are those of serial work."""

import gc
import queue
import random
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from optimum_neuron_torch.emulator import device


def run_together(*functions) -> None:
    """Each in a thread of its own; raises what the first of them raised."""
    errors = []

    def run(function) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def train_on(core: int, results: dict) -> None:
    """Forward, backward and random numbers on the thread's own current core."""
    torch.neuron.set_device(core)
    torch.neuron.manual_seed(core)
    stream = torch.neuron.Stream()
    with torch.neuron.stream(stream):
        weight, x = (torch.randn(16, 16, device="neuron") for _ in range(2))
        weight.requires_grad_()
        for _ in range(100):
            y = torch.native_dropout(F.dropout(torch.tanh(x @ weight), 0.1), 0.1, True)[0]
            y.sum().backward()
            assert y.device.index == torch.neuron.current_device() == core
            assert torch.neuron.current_stream() == stream
    results[core] = weight.grad.cpu(), y.detach().cpu(), torch.neuron.get_rng_state()


def counted(*functions) -> dict:
    device.clear_counters()
    run_together(*functions)
    return device.counters()


def test_cores_work_at_once(neuron):
    serial, together = {}, {}
    device.clear_counters()
    for core in range(4):
        run_together(lambda core=core: train_on(core, serial))
    expected = device.counters()
    actual = counted(*(lambda core=core: train_on(core, together) for core in range(4)))
    for core in range(4):
        assert all(torch.equal(a, b) for a, b in zip(together[core], serial[core], strict=True))
    assert actual == expected and actual["eager_calls"] > 4 * 100 * 5
    assert torch.neuron.current_device() == 0


def test_the_hosts_random_numbers_are_undisturbed(neuron):
    torch.manual_seed(0)
    expected = [torch.rand(1).item() for _ in range(2000)]
    torch.manual_seed(0)
    done, actual = threading.Event(), []

    def draw_on_device() -> None:
        while not done.is_set():
            torch.native_dropout(torch.ones(2000, device=neuron), 0.5, True)

    def draw_on_host() -> None:
        actual.extend(torch.rand(1).item() for _ in range(2000))
        done.set()

    run_together(draw_on_device, draw_on_host)
    assert actual == expected


def test_backward_runs_on_the_core_of_the_forward(neuron):
    """In a worker thread of autograd, with the core and the stream that the forward had."""
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append((torch.neuron.current_device(), torch.neuron.current_stream(), threading.get_ident()))
            return gradient * 2

    streams = [torch.neuron.Stream(core) for core in (1, 2)]
    leaves = [torch.ones(3, device=stream.device, requires_grad=True) for stream in streams]
    total = torch.zeros(3, device=neuron)
    for leaf, stream in zip(leaves, streams, strict=True):
        with torch.neuron.stream(stream):
            total = total + Double.apply(leaf).to(neuron)
    total.sum().backward()
    assert {core: stream for core, stream, _ in seen} == {1: streams[0], 2: streams[1]}
    assert threading.get_ident() not in [thread for *_, thread in seen]
    assert [leaf.grad.tolist() for leaf in leaves] == [[2.0] * 3] * 2
    assert torch.neuron.current_device() == 0


def test_replicas_on_all_cores(neuron):
    """Data parallelism by threads: one replica per core, gradients summed, as on the host in one batch."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(8, 4)
    model(batch).pow(2).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    replicas = []

    def work(core: int) -> None:
        with torch.neuron.device(core):
            replica = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to("neuron")
            replica.load_state_dict(model.state_dict())
            replica(batch[2 * core : 2 * core + 2].to("neuron")).pow(2).sum().backward()
            replicas.append(replica)

    run_together(*(lambda core=core: work(core) for core in range(4)))
    for index, gradient in enumerate(expected):
        summed = sum(list(replica.parameters())[index].grad.cpu() for replica in replicas)
        torch.testing.assert_close(summed, gradient)


def test_layers_on_two_cores(neuron):
    torch.manual_seed(0)
    first, second, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(2, 4)
    second(torch.relu(first(x))).sum().backward()
    expected = [first.weight.grad.clone(), second.weight.grad.clone()]
    first.zero_grad(), second.zero_grad()
    first.to("neuron:0"), second.to("neuron:1")
    second(torch.relu(first(x.to("neuron:0"))).to("neuron:1")).sum().backward()
    assert (first.weight.grad.device.index, second.weight.grad.device.index) == (0, 1)
    assert torch.equal(first.weight.grad.cpu(), expected[0]) and torch.equal(second.weight.grad.cpu(), expected[1])


@pytest.fixture
def in_use(neuron):
    """Checks that the bytes in use per core are afterwards what they were before."""
    gc.collect()
    figures = ["allocated_bytes.all.current", "allocation.all.current", "requested_bytes.all.current"]

    def now() -> list[int]:
        return [torch.neuron.memory_stats(core)[figure] for core in range(4) for figure in figures]

    before = now()
    yield
    gc.collect()
    assert now() == before


def test_many_threads_allocate(in_use):
    def work(seed: int) -> None:
        sizes, live = random.Random(seed), []
        for _ in range(800):
            size = sizes.randrange(1, 5000)
            live.append((seed, torch.full((size,), float(seed), device=f"neuron:{seed % 4}")))
            if len(live) > 20:
                owner, tensor = live.pop(sizes.randrange(20))
                assert tensor[-1].item() == tensor.mean().item() == owner

    run_together(*(lambda seed=seed: work(seed) for seed in range(6)))


def test_one_thread_frees_what_another_allocated(in_use):
    channel, sums = queue.Queue(maxsize=20), []

    def produce() -> None:
        for number in range(300):
            channel.put(torch.full((100,), float(number), device="neuron:1"))
        channel.put(None)

    def consume() -> None:
        while (tensor := channel.get()) is not None:
            sums.append((tensor * 2).sum().item())

    run_together(produce, consume)
    assert sums == [200.0 * number for number in range(300)]


FIRST_USE = """
import threading, torch
start, results = threading.Barrier(8), []

def work(number: int) -> None:
    start.wait()
    results.append((torch.full((4,), float(number), device=f"neuron:{number % 4}") + 1).sum().item())

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(results))
"""


@pytest.mark.slow
def test_first_use_by_many_threads_at_once():
    result = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=100)
    assert result.stdout.strip() == str([4.0 * (number + 1) for number in range(8)]), result.stderr
