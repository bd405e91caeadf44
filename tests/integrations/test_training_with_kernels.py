"""Training steps of a model whose kernels are simulated: checkpointed, under autocast, compiled by its user."""

import copy
from collections import Counter

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import optimum_neuron_torch as ont
from tests.tiny_models import TINY


CONFIG = ont.NeuronConfig(nki="simulate", verify=False, options={"executor": "aten"})
IDS = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def models():
    """The same model on the host, and prepared on the device."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    host = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **TINY)).train()
    return host, ont.prepare(copy.deepcopy(host).to("neuron"), CONFIG).train()


def step(model, call, device):
    ids = IDS.to(device)
    call(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.square().mean().backward()


def assert_gradients_equal(device, host):
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        limit = 1e-5 * max(theirs.grad.abs().max().item(), 1e-4)
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-5, atol=limit)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_is_checkpointed_runs_its_kernels_again(models, use_reentrant):
    host, device = models
    device.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    functions = [vars(layer)["_gradient_checkpointing_func"] for layer in device.model.layers]
    step(host, host, "cpu")
    with ont.runtime.collecting_kernel_runs() as runs:
        if use_reentrant:
            device.enable_input_require_grads()
        step(device, device, "neuron")
    assert_gradients_equal(device, host)
    counts = Counter(run.kernel for run in runs)
    assert counts["flash_attention_kernel"] == 2 * counts["flash_attention_backward_kernel"] == 4
    assert [vars(layer)["_gradient_checkpointing_func"] for layer in device.model.layers] == functions


def test_compiled_by_its_user(models):
    host, device = models
    step(host, host, "cpu")
    compiled = torch.compile(device, backend="neuron", fullgraph=True, options={"executor": "aten"})
    try:
        with ont.runtime.collecting_kernel_runs() as runs:
            for _ in range(2):
                device.zero_grad()
                step(device, compiled, "neuron")
    finally:  # PyTorch's attention, which is exchanged once a user compiles
        ont.unwire()
        ont.wire()
    assert_gradients_equal(device, host)
    counts = Counter(run.kernel for run in runs)
    assert counts["flash_attention_kernel"] == counts["flash_attention_backward_kernel"] == 4
