"""Autocast and gradient scaling on the device: dtypes, nesting, the weight cache, what the CPU's scaler does."""

import pytest
import torch
from torch import nn


def product(x: torch.Tensor) -> torch.dtype:
    return (x @ x).dtype


def test_scopes(neuron):
    x, host = torch.ones(4, 4, device=neuron), torch.ones(4, 4)
    with torch.autocast("neuron"):
        assert product(x) == torch.bfloat16 and product(host) == torch.float32
        with torch.autocast("neuron", enabled=False):
            assert product(x) == torch.float32
        with torch.autocast("neuron", dtype=torch.float16), torch.autocast("cpu"):
            assert product(x) == torch.float16 and product(host) == torch.bfloat16
        assert product(x) == torch.bfloat16
    assert product(x) == torch.float32
    assert torch.amp.is_autocast_available("neuron") and torch.get_autocast_dtype("neuron") == torch.bfloat16
    assert torch.neuron.get_amp_supported_dtype() == [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_switch_it_off(neuron, dtype):
    x = torch.ones(4, 4, device=neuron)
    with pytest.warns(UserWarning, match="only supports dtypes of torch.bfloat16, torch.float16"):
        scope = torch.autocast("neuron", dtype=dtype)
    with scope:
        assert product(x) == torch.float32 and not torch.is_autocast_enabled("neuron")


@pytest.mark.parametrize("cache_enabled", [True, False])
def test_weights_are_cast_once(neuron, cache_enabled):
    layer, x = nn.Linear(4, 4, device=neuron), torch.ones(2, 4, device=neuron)
    with torch.autocast("neuron", cache_enabled=cache_enabled):
        first, second = layer(x), layer(x)
    casts = [result.grad_fn.next_functions[-1][0] for result in (first, second)]
    assert (casts[0].next_functions[0][0] is casts[1].next_functions[0][0]) or not cache_enabled
    (first.float() + second.float()).sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.equal(layer.weight.grad.cpu(), torch.full((4, 4), 4.0))


def test_custom_functions(neuron):
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="neuron", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="neuron")
        def backward(ctx, gradient):
            return gradient

    with torch.autocast("neuron"):
        assert Product.apply(torch.ones(4, 4, dtype=torch.bfloat16, device=neuron)).dtype == torch.float32


def scaled_training(where: str, make) -> tuple[list[float], list[torch.Tensor], torch.amp.GradScaler]:
    """Five steps, the third of which overflows."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(where)
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler(where, init_scale=16.0, growth_interval=2)
    x, scales = torch.ones(2, 4).to(where), []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(x).pow(2).sum() * (float("inf") if step == 2 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, [parameter.detach().cpu() for parameter in model.parameters()], scaler


@pytest.mark.parametrize(
    "make",
    [lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)],
    ids=["sgd", "fused adamw"],
)
def test_gradient_scaler_is_the_cpus(neuron, make):
    scales, weights, scaler = scaled_training("neuron", make)
    expected_scales, expected, _ = scaled_training("cpu", make)
    assert scales == expected_scales and len(set(scales)) > 1
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
    assert scaler._scale.device == torch.device("neuron:0") and scaler.state_dict()["scale"] == scales[-1]
