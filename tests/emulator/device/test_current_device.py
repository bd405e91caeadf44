"""The current core, scopes that change it, indices that do not exist, and tensors of different devices in one call."""

import pytest
import torch
from torch.nn import functional as F

from optimum_neuron_torch.emulator import device


def test_scopes_nest_and_end_with_exceptions(neuron):
    scope = torch.neuron.device(1)
    with pytest.raises(KeyError), scope:
        with torch.neuron.device("neuron:2"):
            assert torch.empty(1, device="neuron").device.index == 2
        with scope:  # the same object again
            assert torch.neuron.current_device() == 1
        assert torch.neuron.current_device() == 1
        raise KeyError
    assert torch.neuron.current_device() == 0


@pytest.mark.parametrize("nothing", [None, -1])
def test_scopes_that_change_nothing(neuron, nothing):
    torch.neuron.set_device(3)
    with torch.neuron.device(nothing):
        assert torch.neuron.current_device() == 3
    with torch.neuron.device_of(torch.ones(1)):
        assert torch.neuron.current_device() == 3
    assert torch.neuron.current_device() == 3


def test_device_of_a_tensor(neuron):
    with torch.neuron.device_of(torch.ones(1, device="neuron:2")):
        assert torch.neuron.current_device() == 2
    assert torch.neuron.current_device() == 0


def test_default_device(neuron):
    with torch.device("neuron:1"):
        assert torch.ones(2).device == torch.nn.Linear(2, 2).weight.device == torch.device("neuron:1")
        assert torch.neuron.current_device() == 0  # a scope of torch.device names the default, not the current core
    torch.set_default_device("neuron:2")
    try:
        assert torch.tensor([1]).device == torch.get_default_device() == torch.device("neuron:2")
        assert torch.Generator().device.type == "cpu"
    finally:
        torch.set_default_device(None)


def test_results_stay_on_the_core_of_their_arguments(neuron):
    with torch.neuron.device(2):
        x = torch.ones(3, 3, device="neuron:1")
        results = [x + 1, x @ x, torch.empty_like(x), x.new_ones(2), F.conv1d(x, x[:, :, None]), x[0], F.dropout(x)]
    assert {result.device.index for result in results} == {1}
    assert x.to("neuron").device.index == 0  # without an index: the current core
    assert torch.ones(1).to(2).device == torch.ones(1).neuron(2).device == torch.device("neuron:2")


@pytest.mark.parametrize(
    "use",
    [
        torch.neuron.set_device,
        torch.neuron.device,
        torch.neuron.synchronize,
        torch.neuron.get_device_properties,
        torch.neuron.get_device_name,
        torch.neuron.memory_allocated,
        torch.neuron.mem_get_info,
        torch.neuron.memory_summary,
        torch.neuron.reset_peak_memory_stats,
        torch.neuron.get_rng_state,
        torch.neuron.Stream,
        torch.neuron.current_stream,
        lambda index: torch.Generator(f"neuron:{index}"),
        lambda index: torch.ones(1, device=f"neuron:{index}"),
        lambda index: torch.ones(1).neuron(index),
        torch.accelerator.set_device_index,
        torch.accelerator.synchronize,
        torch.accelerator.memory_stats,
        torch.accelerator.get_memory_info,
        torch.accelerator.reset_peak_memory_stats,
        torch.accelerator.reset_accumulated_memory_stats,
        torch.accelerator.current_stream,
        lambda index: torch.accelerator.device_index(index).__enter__(),
    ],
)
def test_cores_that_do_not_exist(neuron, use):
    with pytest.raises(RuntimeError, match=r"neuron:9 does not exist: this machine has 4 logical NeuronCores"):
        use(9)
    assert torch.neuron.current_device() == 0


@pytest.mark.parametrize("index", [256, 300])
def test_indices_do_not_wrap_around(neuron, index):
    with pytest.raises(RuntimeError, match=f"neuron:{index} does not exist"):
        torch.neuron.set_device(index)


def test_other_devices_are_refused(neuron):
    with pytest.raises(ValueError, match="Expected a neuron device, but got 'cpu'"):
        torch.neuron.set_device("cpu")
    with pytest.raises(TypeError):
        torch.neuron.set_device(1.5)


def attention(*tensors, **options):
    return F.scaled_dot_product_attention(*(tensor.expand(1, 2, 3, 3) for tensor in tensors), **options)


MIXED = {
    "in place": lambda here, there: here.add_(there),
    "host first": lambda here, there: there + here,
    "host in place": lambda here, there: there.add_(here),
    "out": lambda here, there: torch.add(here, here, out=there),
    "number out": lambda here, there: torch.add(here[0, 0], 1, out=there[0, 0].clone()),
    "mm out": lambda here, there: torch.mm(here, here, out=there),
    "where": lambda here, there: torch.where(here > 0, here, there),
    "gather": lambda here, there: here.gather(0, there.long()),
    "linear bias": lambda here, there: F.linear(here, here, there[0]),
    "embedding": lambda here, there: F.embedding(there.long(), here),
    "cross_entropy": lambda here, there: F.cross_entropy(here, there[0].long()),
    "layer_norm": lambda here, there: F.layer_norm(here, (3,), there[0]),
    "batch_norm": lambda here, there: F.batch_norm(here, there[0], there[0]),
    "masked_fill": lambda here, there: here.masked_fill(there > 0, 0.0),
    "foreach": lambda here, there: torch._foreach_add([here], [there]),
    "equal": torch.equal,
    "indexed host": lambda here, there: there[here[0].long()],
    "masked host": lambda here, there: there[here > 0],
    "index_put values": lambda here, there: here.index_put_((here[0].long(),), there),
    "convolution": lambda here, there: F.conv1d(here, there[:, :, None]),
    "convolution bias": lambda here, there: F.conv1d(here, here[:, :, None], there[0]),
    "histc out": lambda here, there: torch.histc(here.int(), 3, out=there[0].int()),
    "attention mask": lambda here, there: attention(here, here, here, attn_mask=there),
}


@pytest.mark.parametrize("elsewhere", ["cpu", "neuron:1"])
@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused(neuron, name, elsewhere):
    """Nothing is computed on either device, and no argument is changed."""
    here, there = torch.ones(3, 3, device=neuron), torch.ones(3, 3, device=elsewhere)
    with pytest.raises(RuntimeError, match="same device, but found at least two devices") as caught:
        MIXED[name](here, there)
    assert "neuron:0" in str(caught.value) and elsewhere in str(caught.value)
    assert here.tolist() == there.tolist() == [[1.0] * 3] * 3


def test_errors_of_own_kernels_name_the_argument(neuron):
    here, there = torch.ones(3, 3, device=neuron), torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="argument bias in method aten::convolution"):
        F.conv1d(here, here[:, :, None], there[0])
    with pytest.raises(RuntimeError, match="argument attn_bias in method aten::_scaled_dot_product_fused"):
        attention(here, here, here, attn_mask=there)


def test_numbers_and_indices_may_be_on_the_host(neuron):
    x = torch.arange(9.0, device=neuron).view(3, 3)
    host = x.cpu()
    assert (x + torch.tensor(2.0)).sum().item() == (host + 2).sum().item()
    assert torch.equal(x[torch.tensor([2, 0])].cpu(), host[torch.tensor([2, 0])])
    assert torch.equal(x[host > 4].cpu(), host[host > 4])
    x[torch.tensor([0])] = torch.tensor(5.0)
    assert x[0].tolist() == [5.0] * 3


def test_copies_between_cores(neuron):
    """Dense ones of one dtype move bytes; others are computed. The result is on the core that was named."""
    x = torch.randn(4, 6, device=neuron)
    device.clear_counters()
    moved = x.to("neuron:3")
    assert device.counters()["copies_by_shape"] == {("device_to_device", (4, 6)): 1}
    assert device.counters()["eager_signatures"] == 0
    other = torch.empty(6, 4, dtype=torch.bfloat16, device="neuron:2").copy_(x.t(), non_blocking=True)
    assert device.counters()["eager_signatures"] == 1
    assert torch.equal(moved.cpu(), x.cpu()) and torch.equal(other.cpu(), x.cpu().t().bfloat16())
    moved.add_(1)
    assert not torch.equal(moved.cpu(), x.cpu())


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.to("neuron:1"),
        lambda x: torch.ones(2).to("neuron:1"),
        lambda x: x.copy_(device.device_alias(torch.ones(2), 1)),
    ],
    ids=["between cores", "to another core", "from another core"],
)
def test_strict_multicore_refuses_copies(neuron, use):
    with device.strict("multicore"):
        x = torch.ones(2, device=neuron) + 1
        with pytest.raises(RuntimeError, match=r"strict mode \(multicore\): .*neuron:0 and now on neuron:1"):
            use(x)


def test_generators_of_the_device_do_not_draw_on_the_host(neuron):
    generator = torch.Generator(neuron)
    with pytest.raises(RuntimeError, match="generator of neuron:0 for a tensor on the CPU"):
        torch.randn(3, generator=generator)
    with pytest.raises(RuntimeError, match="generator of neuron:0 for a tensor on the CPU"):
        torch.ones(3).bernoulli_(generator=generator)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_are_refused(neuron):
    with pytest.raises(NotImplementedError, match="quantized tensor"):
        torch.quantize_per_tensor(torch.ones(3, device=neuron), 0.1, 0, torch.qint8)
