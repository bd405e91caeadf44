"""How other code gets at a tensor: copies, pickles, NumPy, DLPack, storages, `.data`, memory formats, pinning."""

import copy
import gc
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from optimum_neuron_torch.emulator import device


@pytest.fixture
def x(neuron) -> torch.Tensor:
    return torch.arange(6.0, device=neuron).view(2, 3)


# -- copies and pickles -----------------------------------------------------------------------------------------------


def test_copies(x):
    pair = (x, x[1:])
    assert copy.copy(x).data_ptr() == x.data_ptr()
    twin, view = copy.deepcopy(pair)
    twin[1, 0] = 40
    assert view[0, 0].item() == 40 and x[1, 0].item() == 3 and twin.device == x.device
    again = pickle.loads(pickle.dumps(x.t()))
    assert torch.equal(again.cpu(), x.t().cpu()) and again.device == x.device and again.stride() == (1, 3)


def test_copies_of_modules(neuron):
    module = nn.Linear(3, 2, device="neuron:1")
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert isinstance(twin.weight, nn.Parameter) and twin.weight.device.index == 1 and twin.weight.requires_grad
        assert torch.equal(twin.weight, module.weight) and twin.weight.data_ptr() != module.weight.data_ptr()
    assert copy.copy(module).weight is module.weight


# -- NumPy and DLPack -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [lambda x: x.numpy(), np.asarray, np.array, lambda x: np.add(x, 1)])
def test_numpy_is_refused(x, use):
    with pytest.raises(TypeError, match=r"can't convert neuron:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        use(x)


def test_numpy_on_request(x):
    array = x.numpy(force=True)
    array[0, 0] = 50
    assert array[1].tolist() == [3.0, 4.0, 5.0] and x[0, 0].item() == 0
    with pytest.raises(TypeError):
        memoryview(x)
    assert torch.asarray(np.ones(2), device="neuron:1").device.index == 1
    assert torch.as_tensor(x, device="cpu").is_cpu


def test_dlpack_within_the_device_shares_memory(x):
    """As DLPack means it: a neuron tensor over the same memory, which it keeps alive."""
    assert x.__dlpack_device__() == (torch.utils.dlpack.DLDeviceType.kDLExtDev, 0)
    twins = [torch.from_dlpack(x), torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))]
    assert {str(twin.device) for twin in twins} == {"neuron:0"}
    twins[0].add_(1)
    assert torch.equal(x, twins[1]) and x[0, 0].item() == 1
    expected = (x.cpu() * 2).tolist()
    address = x.data_ptr()
    del x
    gc.collect()
    assert (twins[1] * 2).tolist() == expected and twins[1].data_ptr() == address
    assert torch.from_dlpack(torch.ones(2, device="neuron:3")).device.index == 3


def test_dlpack_to_the_host_copies(x):
    for twin in (
        torch.from_dlpack(x, device="cpu", copy=True),
        torch.from_numpy(np.from_dlpack(x, device="cpu").copy()),
    ):
        twin.zero_()
        assert twin.is_cpu and x.sum().item() == 15
    with pytest.raises((RuntimeError, BufferError), match="(?i)device"):
        np.from_dlpack(x)
    assert torch.from_dlpack(torch.ones(2), device="neuron").device == x.device


def test_dlpack_of_pinned_memory_is_the_hosts(neuron):
    pinned = torch.ones(3).pin_memory()
    assert pinned.__dlpack_device__() == torch.ones(3).__dlpack_device__()
    assert np.from_dlpack(pinned).tolist() == [1.0] * 3
    torch.from_dlpack(pinned).zero_()
    assert pinned.sum().item() == 0


# -- storages ---------------------------------------------------------------------------------------------------------


def test_storages(x):
    storage = x.untyped_storage()
    assert storage.device == x.device and storage.nbytes() == 24 and storage.data_ptr() == x.data_ptr()
    assert storage.cpu().device.type == "cpu" and torch.ones(2).untyped_storage().neuron(1).device.index == 1
    assert torch.UntypedStorage(8, device="neuron:1").device.index == 1
    clone = storage.clone()
    assert clone.copy_(torch.zeros(6).untyped_storage()).tolist() == [0] * 24 and x.sum().item() == 15
    assert torch.empty(0, device="neuron").set_(storage, 2, (2,), (1,)).tolist() == [2.0, 3.0]


def test_set_to_another_device_is_refused(x):
    for elsewhere in (torch.ones(3), torch.ones(3, device="neuron:1")):
        for source in (elsewhere, elsewhere.untyped_storage()):
            with pytest.raises(RuntimeError, match='storage of a tensor on device "neuron:0".*devices must match'):
                x.clone().set_(source)


def test_storages_are_freed_and_filled_again(x):
    """What FSDP does with the memory of gathered weights."""
    weight = torch.ones(1024, 1024, device=x.device)
    weight + 1  # makes the alias that the kernels use
    view, before = weight.view(-1), torch.neuron.memory_allocated()
    storage = weight.untyped_storage()
    storage.resize_(0)
    assert before - torch.neuron.memory_allocated() == 4 * 2**20
    storage.resize_(4 * 2**20)
    assert torch.neuron.memory_allocated() == before
    weight.fill_(3)
    assert view.sum().item() == (view + 0).sum().item() == 3 * 2**20


@pytest.mark.parametrize(
    "use", [lambda w: w + 1, lambda w: w.cpu(), lambda w: w.copy_(torch.ones(4)), repr, lambda w: w @ w, torch.exp_]
)
def test_freed_storages_are_no_crash(neuron, use):
    weight = torch.ones(4, device=neuron)
    weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"Float tensor of shape \[4\] on neuron:0 has no memory"):
        use(weight)
    with pytest.raises(RuntimeError, match="has no memory"):
        device.host_alias(weight)


# -- .data ------------------------------------------------------------------------------------------------------------


def test_data_moves_between_devices(neuron):
    """Group offloading exchanges the data of Parameters in place; gradients follow."""
    weight = nn.Parameter(torch.ones(3))
    (weight * 2).sum().backward()
    for place in ("neuron:1", "cpu", "neuron:0", "neuron:2"):
        weight.grad = None
        weight.data = weight.data.to(place) + 1
        assert str(weight.device) == place
        (weight * weight).sum().backward()
        assert str(weight.grad.device) == place and torch.equal(weight.grad, 2 * weight.detach())
    assert weight.tolist() == [5.0] * 3 and device.host_alias(weight).tolist() == [5.0] * 3


def test_data_of_other_kinds_is_refused(x):
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = torch.eye(3).to_sparse()


def test_modules_keep_their_parameters(neuron):
    """So tied weights stay tied, and an optimizer that was made before goes on."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = list(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    module.to(neuron)
    assert all(a is b for a, b in zip(before, module.parameters(), strict=True))
    assert module[1].weight is module[0].weight and module[0].weight.grad.device == neuron
    start = module[0].weight.detach().clone()
    optimizer.zero_grad()
    module(torch.ones(1, 2, device=neuron)).sum().backward()
    optimizer.step()
    assert not torch.equal(module[0].weight, start)
    module.cpu()
    assert all(a is b and b.is_cpu for a, b in zip(before, module.parameters(), strict=True))


def test_swap_tensors(neuron):
    here, host = torch.ones(2, device=neuron), torch.zeros(3)
    torch.utils.swap_tensors(here, host)
    assert here.is_cpu and host.device == neuron
    assert (here + 1).tolist() == [1.0] * 3 and (host + 1).tolist() == [2.0, 2.0]


# -- formats and pinned memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "layout"), [((1, 4, 3, 3), torch.channels_last), ((1, 2, 3, 3, 3), torch.channels_last_3d)]
)
def test_memory_formats(neuron, shape, layout):
    host = torch.randn(shape)
    for moved in (host.to(neuron, memory_format=layout), host.to(neuron).to(memory_format=layout)):
        assert moved.is_contiguous(memory_format=layout) and torch.equal(moved.cpu(), host)
        assert moved.cpu().stride() == torch.empty_like(moved).stride() == host.to(memory_format=layout).stride()


def test_pinned_memory(x):
    host = torch.randn(3, 4)
    pinned = host[:, 1:3].pin_memory()
    assert pinned.is_pinned() and pinned.is_pinned("neuron") and torch.equal(pinned, host[:, 1:3])
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert host.untyped_storage().pin_memory().is_pinned() and torch.zeros(3, pin_memory=True).is_pinned()
    assert torch.equal(pinned.to("neuron:1", non_blocking=True).cpu(), pinned)
    assert x.to("cpu", non_blocking=True).sum().item() == 15 and not x.is_pinned()
    for make in (x.pin_memory, lambda: torch.zeros(3, pin_memory=True, device="neuron")):
        with pytest.raises(RuntimeError, match="(?i)only dense CPU tensors can be pinned"):
            make()
