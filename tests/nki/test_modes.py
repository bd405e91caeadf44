"""Where kernels run: within simulation(), in the thread that asked, and under nki="simulate"."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import optimum_neuron_torch as ont
from optimum_neuron_torch import runtime
from optimum_neuron_torch.nki.launching import kernel_op
from optimum_neuron_torch.nki.modes import kernels_run


def test_kernels_run_within_simulation_and_in_that_thread_alone():
    seen = []
    assert not kernels_run()
    with ont.nki.simulation() as runs:
        thread = threading.Thread(target=lambda: seen.append(kernels_run()))
        thread.start()
        thread.join()
        assert kernels_run() and seen == [False] and runs == []
        with runtime.simulating(False):
            assert not kernels_run()
    assert not kernels_run()


def test_native_kernels_run_for_what_is_on_the_device(monkeypatch):
    """As where the package is the native one: a model that was moved to the host computes there."""
    monkeypatch.setattr(runtime, "_finds_native_kernels", lambda: True)
    host, neuron = torch.ones(2, 4), torch.ones(2, 4, device="neuron")
    assert kernels_run() and kernels_run(neuron) and not kernels_run(host)
    with runtime.simulating(False):
        assert not kernels_run() and not kernels_run(neuron)
    assert kernels_run(neuron)

    def fail(*args):
        raise AssertionError("a kernel was launched on the host")

    for op in ("attention", "rms_norm", "layer_norm", "swiglu"):
        monkeypatch.setattr(f"optimum_neuron_torch.nki.ops.{op}.launch", fail)
    query = torch.randn(1, 2, 4, 8)
    for result in (
        ont.nki.attention(query, query, query), ont.nki.rms_norm(query), ont.nki.layer_norm(query),
        ont.nki.swiglu(query, query), ont.nki.swiglu_halves(torch.randn(1, 2, 4, 16)),
    ):  # fmt: skip
        assert result.shape == query.shape
    with pytest.raises(AssertionError, match="launched"):
        ont.nki.rms_norm(neuron)


def test_simulation_ends_with_its_block_where_that_raises():
    with pytest.raises(ZeroDivisionError), ont.nki.simulation():
        raise ZeroDivisionError
    assert not kernels_run()


def test_a_compiled_choice_follows_the_mode():
    @torch.compile(backend="eager", fullgraph=True)
    def chosen(x):
        return x + 1 if kernels_run() else x - 1

    assert chosen(torch.zeros(1)).item() == -1
    with ont.nki.simulation():
        assert chosen(torch.zeros(1)).item() == 1
    assert chosen(torch.zeros(1)).item() == -1


def test_without_a_simulator_the_reason_is_given():
    program = (
        "import torch, optimum_neuron_torch as ont\n"
        "try:\n    ont.prepare(torch.nn.Linear(2, 2).to('neuron'), ont.NeuronConfig(nki='simulate'))\n"
        "except RuntimeError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "NEURON_EMULATOR_NKI": "0"}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "cannot be simulated" in said.stdout and "NEURON_EMULATOR_NKI" in said.stdout


def test_an_op_launches_its_kernel_on_the_cores_of_a_logical_one(monkeypatch):
    """Doubling kernel, on tensors of the host and of the device, with a cheap fake."""
    import nki
    import nki.isa as nisa
    import nki.language as nl
    from optimum_neuron_torch.nki.launching import launch

    @nki.jit
    def doubled(x):
        tile, result = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=result, src=tile)
        return result

    @kernel_op("doubled_for_test_kernel", torch.empty_like)
    def doubled_kernel(x: torch.Tensor) -> torch.Tensor:
        return launch(doubled, x)

    x = torch.arange(6.0).reshape(2, 3)
    for size in (1, 2):
        monkeypatch.setattr(runtime, "logical_core_size", lambda size=size: size)
        with ont.nki.simulation() as runs:
            assert torch.equal(doubled_kernel(x), 2 * x)
            assert torch.equal(doubled_kernel(x.to("neuron")).cpu(), 2 * x)
        assert [run.lnc for run in runs] == [size, size]
