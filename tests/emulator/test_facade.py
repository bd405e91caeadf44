"""The `torch_neuronx` package that the emulator provides; its names one by one are in test_surface.py."""

import importlib.util

import pytest
import torch

from optimum_neuron_torch.emulator import device


@pytest.fixture
def neuron() -> torch.device:
    """Core 0 with counters at zero."""
    device.clear_counters()
    return torch.device("neuron", 0)


def test_device_module_is_importable():
    import torch.neuron as module

    assert module is torch.neuron


def test_package_is_found_as_an_ordinary_one(neuron):
    spec = importlib.util.find_spec("torch_neuronx")
    assert spec is not None and spec.submodule_search_locations
    import torch_neuronx
    import torch_neuronx.metrics
    from torch_neuronx import neuron_dynamo_backend, utils

    assert torch_neuronx.is_emulated is True and torch_neuronx.__spec__.name == "torch_neuronx"
    assert torch_neuronx.utils is utils
    assert isinstance(neuron_dynamo_backend.get_dynamo_metrics(), list)
    assert torch_neuronx.memory_allocated() == torch.neuron.memory_allocated()


def test_hugging_face_sees_the_device():
    from accelerate.utils import is_neuron_available
    from transformers.utils import is_torch_bf16_gpu_available
    from transformers.utils.import_utils import is_torch_neuron_available

    assert is_torch_neuron_available() and is_neuron_available() and is_torch_bf16_gpu_available()


def test_metrics_and_op_tracking(neuron):
    import torch_neuronx

    x = torch.ones(3).to(neuron)
    x + x
    metrics = torch_neuronx.metrics
    assert metrics.get_counter_value("eager_signatures") == 1
    assert metrics.get_counter_value("copies") == metrics.get_counter_value("copies.host_to_device") == 1
    assert metrics.get_counter_value("never counted") is None
    assert torch_neuronx.get_executed_ops() == ["aten::add.Tensor"] and torch_neuronx.get_fallback_ops() == []
    assert "eager_signatures: 1" in metrics.report()
    assert metrics.report_filtered(["copies"]) == "copies: 1"
    torch_neuronx.clear_op_tracking()
    assert torch_neuronx.get_executed_ops() == []


def test_nki_op_is_a_traceable_custom_operator(neuron):
    import torch_neuronx

    @torch_neuronx.nki_op("optimum_neuron_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    x = torch.ones(3, device=neuron)
    assert torch.equal(scaled(x, 2.0), x * 2)
    assert torch.ops.optimum_neuron_tests.scaled(torch.empty(5, device="meta"), 2.0).shape == (5,)
    with pytest.raises(ValueError, match="namespace"):
        torch_neuronx.nki_op("scaled", scaled)
    with pytest.raises(TypeError, match="wrap_nki.*kernel"):
        torch_neuronx.wrap_nki("scaled")


def test_wrap_nki_takes_kernels_and_functions(neuron):
    import torch_neuronx

    import nki
    import nki.isa as nisa
    import nki.language as nl

    def copied(x):
        tile, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = torch.randn(2, 3, device=neuron)
    for kernel in (copied, nki.jit(copied)):
        assert torch.equal(torch_neuronx.wrap_nki(kernel)(x), x)
        assert torch.equal(torch_neuronx.wrap_nki(kernel)[2](x), x)
