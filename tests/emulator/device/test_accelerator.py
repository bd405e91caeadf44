"""`torch.accelerator` and the device module that PyTorch finds for the device: every public name, on neuron."""

import inspect

import pytest
import torch


def test_every_public_name_is_called_below():
    """One that a later PyTorch adds fails here."""
    source = inspect.getsource(inspect.getmodule(test_every_public_name_is_called_below))
    assert [name for name in torch.accelerator.__all__ if f"accelerator.{name}(" not in source] == []


def test_what_it_is(neuron):
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.current_accelerator(check_available=True).type == "neuron"
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 4
    assert torch.get_device_module() is torch.get_device_module("neuron:1") is torch.neuron


@pytest.mark.filterwarnings("ignore:Use:FutureWarning")
def test_current_core(neuron):
    torch.accelerator.set_device_index("neuron:2")
    assert torch.accelerator.current_device_index() == torch.neuron.current_device() == 2
    torch.accelerator.set_device_idx(1)
    assert torch.accelerator.current_device_idx() == torch.empty(1, device="neuron").device.index == 1
    with torch.accelerator.device_index(3), torch.accelerator.device_index(None):
        assert torch.neuron.current_device() == 3
    assert torch.neuron.current_device() == 1


def test_streams(neuron):
    stream = torch.Stream("neuron:1")
    torch.accelerator.set_stream(stream)
    try:
        assert torch.accelerator.current_stream(1) == torch.accelerator.current_stream("neuron:1") == stream
        assert torch.accelerator.current_device_index() == 1
    finally:
        torch.accelerator.set_stream(torch.neuron.default_stream(1))
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("neuron:3")


def test_memory(neuron):
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(1)
    before, reserved = torch.accelerator.memory_allocated(1), torch.accelerator.memory_reserved(1)
    elsewhere = torch.accelerator.memory_allocated(0)
    x = torch.empty(2**20, device="neuron:1")
    assert torch.accelerator.memory_allocated(1) - before == torch.accelerator.memory_reserved(1) - reserved == 2**22
    assert torch.accelerator.memory_allocated(0) == elsewhere
    free, total = torch.accelerator.get_memory_info(1)
    assert 0 < free < total
    del x
    assert torch.accelerator.memory_allocated(1) == before
    assert torch.accelerator.max_memory_allocated(1) == before + 2**22
    assert torch.accelerator.max_memory_reserved("neuron:1") == reserved + 2**22
    assert torch.accelerator.memory_stats(1)["num_device_alloc"] > 0
    torch.accelerator.reset_accumulated_memory_stats(1)
    assert torch.accelerator.memory_stats(1)["num_device_alloc"] == 0
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved(1) == reserved
    torch.accelerator.empty_host_cache()


def test_capability(neuron):
    dtypes = torch.accelerator.get_device_capability(1)["supported_dtypes"]
    assert {torch.bfloat16, torch.float32, torch.int64, torch.bool} <= dtypes
    assert torch.neuron.get_device_capability("neuron:1") == torch.accelerator.get_device_capability()


@pytest.mark.parametrize(
    "use",
    [
        torch.accelerator.set_device_index,
        torch.accelerator.current_stream,
        torch.accelerator.memory_stats,
        torch.accelerator.get_device_capability,
        torch.accelerator.synchronize,
    ],
)
def test_other_devices_are_refused(neuron, use):
    with pytest.raises(ValueError, match="cpu doesn't match the current accelerator neuron"):
        use("cpu")


def test_graphs_are_refused(neuron):
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: neuron"):
        torch.accelerator.Graph()
