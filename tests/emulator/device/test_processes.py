"""Other processes: forked and spawned ones, tensors sent between them, workers of a DataLoader."""

import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset


PATIENCE = 100  # seconds; a spawned process imports torch on a busy machine


def answer(method: str, target, *arguments):
    """What `target(queue, *arguments)` put into its queue in a new process."""
    context = mp.get_context(method)
    answers = context.Queue()
    process = context.Process(target=target, args=(answers, *arguments))
    process.start()
    try:
        return answers.get(timeout=PATIENCE)
    finally:
        process.join(PATIENCE)


def use_device(answers) -> None:
    try:
        answers.put((torch.ones(3, device="neuron:1") + 1).sum().item())
    except RuntimeError as error:
        answers.put(str(error))


def use_host(answers) -> None:
    torch.manual_seed(3)
    answers.put((torch.rand(1).item(), torch.ones(2).pin_memory().is_pinned(), torch.neuron.is_initialized()))


def test_a_child_of_a_process_that_used_the_device(neuron):
    """It may not use it, and is told how to start; what it does on the host is undisturbed."""
    torch.ones(1, device=neuron)
    message = answer("fork", use_device)
    assert "forked process: its parent had already used it" in message and "'spawn'" in message
    assert answer("fork", use_host) == (torch.rand(1, generator=torch.Generator().manual_seed(3)).item(), True, False)


PARENT = """
import os, torch
torch.manual_seed(0)
assert torch.accelerator.is_available() and torch.neuron.device_count() == 4
torch.neuron.memory_allocated(), torch.neuron.get_rng_state(), torch.ones(2).pin_memory()
torch.accelerator.synchronize()
{before}
child = os.fork()
if child == 0:
    try:
        os._exit(0 if (torch.ones(3, device="neuron:1") + 1).sum().item() == 6 else 1)
    except RuntimeError as error:
        os._exit(2 if "forked process" in str(error) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("before", "code"), [("", 0), ("torch.empty(1, device='neuron')", 2)])
def test_asking_about_the_device_does_not_use_it(before, code):
    """Only where the parent had memory on the device is the child refused."""
    script = PARENT.format(before=before)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout.strip() == str(code), result.stderr


def double(answers, given: torch.Tensor, model: nn.Module) -> None:
    model.weight.data.mul_(2)
    answers.put((str(given.device), given.mul_(2).tolist(), model.weight.tolist(), type(model.weight).__name__))


@pytest.mark.slow
def test_spawned_processes_and_copies_of_tensors(neuron):
    """Tensors arrive on their core as copies: neither side sees what the other writes."""
    assert answer("spawn", use_device) == 6.0
    given, model = torch.arange(3.0, device="neuron:2"), nn.Linear(1, 1, device=neuron)
    weight = model.weight.tolist()
    place, values, doubled, kind = answer("spawn", double, given, model)
    assert (place, values, kind) == ("neuron:2", [0.0, 2.0, 4.0], "Parameter") and doubled == [[2 * weight[0][0]]]
    assert given.tolist() == [0.0, 1.0, 2.0] and model.weight.tolist() == weight


def test_tensors_through_a_queue(neuron):
    """Within one process: the reduction is the one that other processes use."""
    channel = mp.get_context("fork").Queue()
    base = torch.arange(3.0, device="neuron:1")
    channel.put({"x": base, "view": base.view(1, 3).t(), "parameter": nn.Parameter(base.clone())})
    received = channel.get(timeout=PATIENCE)
    assert {tensor.device.index for tensor in received.values()} == {1}
    assert isinstance(received["parameter"], nn.Parameter) and received["parameter"].requires_grad
    received["x"].add_(10)
    assert base.tolist() == received["view"].flatten().tolist() == [0.0, 1.0, 2.0]


def test_what_processes_cannot_share(neuron):
    x = torch.ones(3, device=neuron)
    for shares in (x, nn.Linear(2, 2, device=neuron), x.untyped_storage()):
        with pytest.raises(NotImplementedError, match="cannot share memory of neuron:0.*on the CPU"):
            shares.share_memory() if isinstance(shares, nn.Module) else shares.share_memory_()
    assert not x.is_shared() and torch.ones(1).share_memory_().is_shared()
    with pytest.raises(NotImplementedError, match="Send a tensor"):
        ForkingPickler.dumps(x.untyped_storage())
    with pytest.raises(RuntimeError, match="non-leaf"):
        ForkingPickler.dumps(x.requires_grad_() * 2)


class Numbers(Dataset):
    """The numbers from 0 to 7, made on a device."""

    def __init__(self, where: str = "cpu") -> None:
        self.where = where

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index), device=self.where)


EXPECTED = [float(number) for number in range(8)]


def loaded(loader: DataLoader) -> list[float]:
    return [number for batch in loader for number in batch[:, 0].tolist()]


@pytest.mark.parametrize("options", [{}, {"pin_memory": True}, {"pin_memory": True, "persistent_workers": True}])
def test_forked_workers_that_use_the_host(neuron, options):
    torch.ones(1, device=neuron)
    loader = DataLoader(Numbers(), batch_size=3, num_workers=2, multiprocessing_context="fork", **options)
    batches = list(loader)
    assert {batch.is_pinned() for batch in batches} == {bool(options)} and {batch.is_cpu for batch in batches} == {
        True
    }
    assert torch.cat(batches)[:, 0].tolist() == loaded(loader) == EXPECTED
    moved = [batch.to(neuron, non_blocking=True) for batch in batches]
    assert torch.cat(moved)[:, 0].tolist() == EXPECTED


def test_forked_workers_that_use_the_device(neuron):
    torch.ones(1, device=neuron)
    with pytest.raises(RuntimeError, match="(?s)DataLoader worker.*its parent had already used it.*'spawn'"):
        loaded(DataLoader(Numbers("neuron:1"), batch_size=4, num_workers=1, multiprocessing_context="fork"))


@pytest.mark.slow
@pytest.mark.parametrize("pin_memory", [False, True])
def test_spawned_workers(neuron, pin_memory):
    options = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "spawn"}
    assert loaded(DataLoader(Numbers(), pin_memory=pin_memory, **options)) == EXPECTED
    if not pin_memory:
        batches = list(DataLoader(Numbers("neuron:1"), **options))
        assert torch.cat(batches)[:, 0].tolist() == EXPECTED and batches[0].device.index == 1


def test_default_device_of_loaders(neuron):
    """The shuffling draws on the host, batches come from there, whatever the default device is."""
    with torch.device("neuron"):
        generator = torch.Generator("cpu").manual_seed(0)
        batches = list(DataLoader(Numbers(), batch_size=8, shuffle=True, generator=generator))
    assert sorted(batches[0][:, 0].tolist()) == EXPECTED and batches[0].is_cpu
