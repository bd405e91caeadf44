"""Without a named backend, neuron tensors choose `neuron` and others Inductor, as before."""

import os
import subprocess
import sys

import pytest
import torch

from optimum_neuron_torch.emulator import wiring


@pytest.fixture(autouse=True)
def quick_executor(monkeypatch):
    monkeypatch.setenv("NEURON_EMULATOR_EXECUTOR", "aten")


class Doubler(torch.nn.Module):
    def forward(self, x):
        return x * 2


def _direct():
    return torch.compile(lambda x: x * 2)


def _decorator():
    @torch.compile(dynamic=False)
    def function(x):
        return x * 2

    return function


def _module():
    return torch.compile(Doubler())


def _method():
    module = Doubler()
    module.compile()
    return module


@pytest.mark.parametrize("make", [_direct, _decorator, _module, _method])
def test_neuron_tensors_choose_neuron(make, records):
    result = make()(torch.ones(3, device="neuron"))
    assert result.cpu().tolist() == [2, 2, 2]
    assert len(records()) == 1


def test_cpu_tensors_keep_inductor_with_its_mode(records, monkeypatch):
    from torch._inductor import compile_fx

    seen = []
    monkeypatch.setattr(compile_fx, "compile_fx", lambda gm, inputs, **kwargs: seen.append(kwargs) or gm.forward)
    torch.compile(lambda x: x * 2, options={"epilogue_fusion": False})(torch.ones(3))
    assert seen[0]["config_patches"] == {"epilogue_fusion": False}
    assert records() == []


def test_a_named_inductor_is_refused(records):
    """Not replaced, and not left to fail inside Inductor, which has no kernels for the device."""
    with pytest.raises(RuntimeError, match="no code generator for the neuron device.*backend='neuron'"):
        torch.compile(lambda x: x * 2, backend="inductor")(torch.ones(3, device="neuron"))
    assert records() == []


def test_neuron_options_choose_neuron(records):
    torch.compile(lambda x: x * 2, options={"model_name": "mine"})(torch.ones(3, device="neuron"))
    assert records()[0]["model_name"] == "mine"


def test_the_patches_can_be_undone():
    patched = torch.compile
    wiring.uninstall()
    try:
        assert torch.compile is not patched
    finally:
        wiring.install()
    assert torch.compile is not patched and torch.compile.__wrapped__ is not patched


@pytest.mark.parametrize("switch", ["NEURON_EMULATOR", "TORCH_DEVICE_BACKEND_AUTOLOAD"])
def test_without_the_device_the_backend_is_refused_by_name(switch):
    """At the call: not a graph that runs on the CPU and looks like one for Trainium."""
    program = "import torch; torch.compile(lambda x: x + 1, backend='neuron')"
    result = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, switch: "0"}, capture_output=True, text=True, timeout=120
    )
    assert f"needs a neuron device, and this process has none: {switch}=0 is set" in result.stderr
