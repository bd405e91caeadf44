"""Operations on the device against the CPU: values, views, in-place writes, gradients, devices that do not match."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from optimum_neuron_torch.emulator import device


def assert_same(actual, expected):
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


IMAGE = (2, 6, 9, 10)

# One function each of everything that has a kernel of its own or takes a path of its own through the fallback.
COMPUTATIONS = {
    "matmul": lambda x: x @ x.mT,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, 3),
    "conv2d": lambda x: F.conv2d(x, x[:, :, :3, :3].contiguous(), groups=1),
    "conv_transpose2d": lambda x: F.conv_transpose2d(
        x, x[:1, :, :3, :3].expand(6, 6, 3, 3), stride=2, output_padding=1
    ),
    "conv1d grouped": lambda x: F.conv1d(
        x[..., 0], x[:1, :3, :4, 0].reshape(3, 1, 4).repeat(2, 1, 1), groups=6, dilation=2
    ),
    "conv3d": lambda x: F.conv3d(x[None], x[None, :, :2, :2, :2], stride=(2, 1, 1), padding=1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention with bias": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x[:, :1] @ x[:, :1].mT),
    "attention with mask": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(9, 9, dtype=torch.bool, device=x.device).tril()
    ),
    "grouped queries": lambda x: F.scaled_dot_product_attention(x, x[:, :2], x[:, :2], enable_gqa=True),
    "one result list": lambda x: torch.cat(torch.split(x, 2, dim=1)[::-1], dim=1),
    "two results": lambda x: torch.var_mean(x, dim=1)[0],
    "index by host tensor": lambda x: x[torch.tensor([1, 0])],
    "index_put": lambda x: x.index_put((torch.tensor([0]),), x[:1] * 2),
    "scalar promotion": lambda x: x * torch.tensor(2.0) + 1,
    "complex": lambda x: torch.fft.rfft(x).conj().abs(),
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "sort": lambda x: torch.sort(x, dim=-1)[0],
    "cumulative": lambda x: torch.logcumsumexp(x, dim=-1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "unfold": lambda x: x.unfold(2, 3, 2),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "einsum": lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
}


@pytest.mark.parametrize("compute", COMPUTATIONS.values(), ids=COMPUTATIONS)
def test_values_and_gradients_are_the_cpus(neuron, compute):
    x = torch.randn(IMAGE, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = x.detach().to(neuron).requires_grad_()
    expected, actual = compute(x), compute(y)
    assert actual.device == neuron
    assert_same(actual, expected)
    expected.sum().backward()
    actual.sum().backward()
    assert_same(y.grad, x.grad)


def test_fused_attention_is_the_devices_hook(neuron):
    query = torch.randn(1, 2, 8, 16, device=neuron, requires_grad=True)
    result = F.scaled_dot_product_attention(query, query, query)
    assert "Overrideable" in type(result.grad_fn).__name__


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 3), (7, 0, 20), (5, 0, 0)])
def test_integer_histogram(neuron, dtype, bins, low, high):
    """Against the floating point kernel, whose bins are the same for these values."""
    values = torch.randint(0, 21, (200,), generator=torch.Generator().manual_seed(1))
    actual = torch.histc(values.to(neuron, dtype), bins=bins, min=low, max=high)
    assert actual.dtype == dtype
    assert_same(actual.float(), torch.histc(values.float(), bins=bins, min=low, max=high))


def test_views_and_in_place_writes_share_memory(neuron):
    x = torch.zeros(4, 6, device=neuron)
    x.t()[2:4].add_(1)
    x.view(2, 12)[0, ::2] = 5
    x[1:, :1].copy_(torch.full((3, 1), 7.0))
    host = torch.zeros(4, 6)
    host.t()[2:4].add_(1)
    host.view(2, 12)[0, ::2] = 5
    host[1:, :1].copy_(torch.full((3, 1), 7.0))
    assert_same(x, host)
    assert x.t().untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_out_arguments_and_resizing(neuron):
    x = torch.arange(6.0, device=neuron)
    out = torch.empty(0, device=neuron)
    result = torch.add(x, 1, out=out)
    assert result is out
    assert_same(out, torch.arange(6.0) + 1)
    view = out[:3]
    out.resize_(1000)
    assert out.shape == (1000,) and view.shape == (3,)
    assert_same(view, torch.arange(3.0) + 1)
    other = torch.empty(0, device=neuron).set_(x)
    other[0] = 9
    assert x[0].item() == 9
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    ("compute", "devices"),
    [
        (lambda x: x + torch.ones(3, 3), "neuron:0 and cpu"),
        (lambda x: torch.mm(torch.ones(3, 3), x), "neuron:0 and cpu"),
        (lambda x: x @ x.to("neuron:1"), "neuron:0 and neuron:1"),
        (lambda x: F.conv1d(x, torch.ones(3, 3, 1)), "neuron:0 and cpu"),
        (lambda x: x.index_put_((torch.tensor([0]),), torch.ones(1, 3)), "neuron:0 and cpu"),
        (lambda x: torch.cat([x, torch.ones(3, 3)]), "neuron:0 and cpu"),
    ],
)
def test_mixed_devices_are_named(neuron, compute, devices):
    with pytest.raises(RuntimeError, match=f"same device, but found at least two devices, {devices}"):
        compute(torch.ones(3, 3, device=neuron))


def test_cores(neuron):
    x = torch.randn(5, device="neuron:2")
    assert (x + 1).device.index == 2
    assert x.to("neuron:1").device.index == 1
    assert_same(x.to("neuron:1"), x.cpu())
    with torch.neuron.device(3):
        assert torch.empty(1, device="neuron").device.index == 3
    assert torch.neuron.current_device() == 0
    with pytest.raises(RuntimeError, match=r"neuron:9 does not exist: .* 4 logical NeuronCores"):
        torch.zeros(1, device="neuron:9")
    with pytest.raises(RuntimeError, match="neuron:9 does not exist"):
        torch.ones(1).to("neuron:9")
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.neuron.set_device(4)


def test_missing_kernels_and_layouts_are_told(neuron):
    with pytest.raises(NotImplementedError, match="no sparse tensors|layout Sparse"):
        torch.eye(3, device=neuron).to_sparse()
    embedding = nn.Embedding(4, 2, sparse=True, device=neuron)
    with pytest.raises((NotImplementedError, RuntimeError), match="(?i)sparse"):
        embedding(torch.tensor([1], device=neuron)).sum().backward()


def train(where: str, *, autocast: bool, fused: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4))
    data, labels = torch.randn(32, 8), torch.randint(0, 4, (32,))
    model.to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    torch.manual_seed(1)
    losses = []
    for _ in range(5):
        with torch.autocast(where, dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(data.to(where)), labels.to(where))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fused", [False, True])
def test_training_has_the_cpus_losses(neuron, fused):
    """Dropout included: the device draws the CPU's numbers."""
    assert train("neuron", autocast=False, fused=fused) == train("cpu", autocast=False, fused=fused)


def test_autocast(neuron):
    """PyTorch's lists for accelerators: products in bfloat16, losses and normalisation in float32."""
    x = torch.randn(4, 4, device=neuron)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert F.softmax(x @ x, dim=-1).dtype == torch.float32
        assert F.layer_norm(x.bfloat16(), (4,)).dtype == torch.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(torch.sigmoid(x), torch.ones_like(x))
    losses, reference = train("neuron", autocast=True, fused=True), train("cpu", autocast=False, fused=True)
    assert losses == pytest.approx(reference, rel=0.05)


@pytest.mark.parametrize(
    "draw",
    [
        lambda where: torch.randn(1000, device=where),
        lambda where: torch.randint(0, 10**6, (50,), device=where),
        lambda where: torch.randperm(100, device=where),
        lambda where: F.dropout(torch.ones(100, device=where)),
        lambda where: torch.multinomial(torch.ones(20, device=where), 10),
        lambda where: torch.native_dropout(torch.ones(100, device=where), 0.5, True)[0],
        lambda where: torch.empty(10, device=where).exponential_(),
    ],
)
def test_random_numbers_are_the_cpus(neuron, draw):
    torch.manual_seed(5)
    expected = [draw("cpu"), draw("cpu")]
    torch.manual_seed(5)
    host_state = torch.get_rng_state()
    actual = [draw(neuron), draw(neuron)]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(actual, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), host_state)


def test_generators_and_their_states(neuron):
    generator = torch.Generator(device=neuron).manual_seed(3)
    assert_same(
        torch.randn(4, device=neuron, generator=generator), torch.randn(4, generator=torch.Generator().manual_seed(3))
    )
    states = torch.neuron.get_rng_state_all()
    first = torch.rand(3, device=neuron)
    torch.neuron.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device=neuron), first)
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        torch.rand(3, device=neuron)
    torch.neuron.manual_seed(7)
    assert torch.neuron.initial_seed() == 7


def test_inference_mode(neuron):
    x = torch.ones(3, 3, device=neuron)
    with torch.inference_mode():
        y = F.linear(x, x)
        y[0].add_(1)
        view = y.t()
    assert y.is_inference() and view.is_inference()
    assert_same(y + x, torch.tensor([[5.0] * 3, [4.0] * 3, [4.0] * 3]))


def test_deepcopy_and_module_methods(neuron):
    module = nn.Linear(3, 2).neuron()
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.zero_()
    assert module.weight.is_neuron and module.weight.abs().sum() > 0
    assert twin.weight.device == module.weight.device
    alias = device.host_alias(module.weight)
    third = copy.deepcopy(module)
    with torch.no_grad():
        third.weight.zero_()
    assert_same(device.host_alias(third.weight), torch.zeros(2, 3))
    assert alias.abs().sum() > 0


def test_moving_a_module_keeps_its_parameters(neuron):
    """As between CPU and CUDA: ties hold, an optimizer made before updates what moved, memory returns."""
    module = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])
    module[1].weight = weight = module[0].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = weight.detach().clone()
    module.to(neuron)
    assert module[0].weight is weight and module[1].weight is weight and weight.device == neuron
    module[0](torch.ones(1, 64, device=neuron)).sum().backward()
    optimizer.step()
    device.host_alias(weight)
    allocated = torch.neuron.memory_allocated()
    module.to("cpu")
    assert module[1].weight is weight
    assert_same(weight.detach(), before - 1)
    assert allocated - torch.neuron.memory_allocated() >= 64 * 64 * 4
    assert not torch._has_compatible_shallow_copy_type(torch.empty(1, device=neuron), torch.empty(1, device="meta"))


LIBRARY_BEFORE_FIRST_USE = """
import torch

library = torch.library.Library("made_up", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CPU")
library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
print(torch.ops.made_up.twice(torch.ones(2, device="neuron")).tolist())
"""


def test_libraries_defined_before_the_first_use(neuron):
    """The device registers itself for PyTorch's operations only, whatever else is defined when it starts."""
    done = subprocess.run([sys.executable, "-c", LIBRARY_BEFORE_FIRST_USE], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[2.0, 2.0]\n", 0), done.stderr
