"""scaled_dot_product_attention through the device's fused operation, where PyTorch traces or transforms it."""

import pytest
import torch
from functorch.compile import aot_module, nop
from torch import func
from torch._subclasses.fake_utils import CrossRefFakeMode
from torch.nn import functional as F


GENERATOR = torch.Generator().manual_seed(0)
QUERY, KEY, VALUE = (torch.randn(2, 4, 6, 8, generator=GENERATOR) for _ in range(3))
BIAS = torch.randn(2, 1, 6, 6, generator=GENERATOR)
NAMES = ("query", "key", "value", "attn_mask")


def trained(function, where, needing, dtype=torch.float32, key=KEY, value=VALUE, mask=None):
    """The result of `function` and the gradients of those of its four arguments that are in `needing`."""
    torch.manual_seed(0)
    arguments = {
        name: None if x is None else x.to(where, dtype if x.is_floating_point() else x.dtype, copy=True)
        for name, x in zip(NAMES, (QUERY, key, value, mask), strict=True)
    }
    for name in needing:
        arguments[name].requires_grad_()
    output = function(*arguments.values())
    output.float().square().sum().backward()
    return [output.detach().cpu()] + [x.grad.cpu() for x in arguments.values() if x is not None and x.grad is not None]


def attention(**options):
    return lambda query, key, value, mask: 2 * F.scaled_dot_product_attention(query, key, value, mask, **options)


CALLS = {
    "all": (attention(), NAMES[:3], {}),
    "bfloat16": (attention(), NAMES[:3], {"dtype": torch.bfloat16}),
    "query only": (attention(), ["query"], {}),
    "value only": (attention(is_causal=True), ["value"], {}),
    "boolean mask": (attention(), NAMES[:3], {"mask": BIAS > -1}),
    "bias": (attention(), NAMES[:3], {"mask": BIAS}),
    "bias that learns": (attention(), NAMES, {"mask": BIAS}),
    "bias only": (attention(), ["attn_mask"], {"mask": BIAS}),
    "grouped queries": (attention(enable_gqa=True), NAMES[:3], {"key": KEY[:, :2], "value": VALUE[:, :2]}),
    "result in another layout": (
        lambda *inputs: F.scaled_dot_product_attention(*inputs).transpose(1, 2).reshape(2, 6, 32), NAMES[:3], {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_training_with_another_backend(neuron, name):
    function, needing, options = CALLS[name]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", dynamic=False, fullgraph=True)
    actual = trained(compiled, neuron, needing, **options)
    expected = trained(function, "cpu", needing, **options)
    assert len(actual) == len(needing) + 1
    tolerance = {"atol": 1e-5, "rtol": 1e-4} if options.get("dtype") is None else {"atol": 6e-2, "rtol": 3e-2}
    torch.testing.assert_close(actual, expected, **tolerance)


def test_training_with_dropout_and_another_backend(neuron):
    function = attention(dropout_p=0.3)
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", dynamic=False, fullgraph=True)
    torch.testing.assert_close(trained(compiled, neuron, NAMES[:3]), trained(function, neuron, NAMES[:3]))


def test_training_a_traced_module(neuron):
    def gradients(where, wrap):
        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(where)
        x = QUERY.flatten(0, 1).to(where)
        wrap(layer)(x, x, x, need_weights=False)[0].square().sum().backward()
        return [parameter.grad.cpu() for parameter in layer.parameters()]

    torch.testing.assert_close(
        gradients(neuron, lambda layer: aot_module(layer, nop)), gradients("cpu", lambda layer: layer)
    )


@pytest.mark.parametrize("layout", ["heads first", "positions first", "a part of a projection", "one query"])
def test_results_are_what_fake_tensors_promise(neuron, layout):
    x = torch.randn(2, 5, 3, 24, device=neuron).transpose(1, 2)
    query, key, value = {
        "heads first": lambda: [x.contiguous()] * 3,
        "positions first": lambda: [x] * 3,
        "a part of a projection": lambda: x.chunk(3, -1),
        "one query": lambda: [x[:, :, :1], x, x],
    }[layout]()
    inputs = [part.detach().requires_grad_() for part in (query, key, value)]
    with CrossRefFakeMode():  # raises where an operation's result differs from its fake one
        F.scaled_dot_product_attention(*inputs).square().sum().backward()


def loss(*inputs: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*inputs).square().sum()


MAPPED = {
    "heads and positions": lambda *inputs: func.vmap(F.scaled_dot_product_attention)(*inputs),
    "batches": lambda *inputs: func.vmap(F.scaled_dot_product_attention)(*[x[:, None] for x in inputs]),
    "queries only": lambda query, *others: func.vmap(lambda x: F.scaled_dot_product_attention(x, *others))(
        torch.stack([query, 2 * query])
    ),
    "biases only": lambda *inputs: func.vmap(lambda bias: F.scaled_dot_product_attention(*inputs[:3], bias))(
        torch.stack([inputs[3], 2 * inputs[3]])
    ),
    "gradients of each": lambda *inputs: func.vmap(func.grad(loss, argnums=(0, 1, 2)))(*[x[:, None] for x in inputs]),
    "gradient of all": lambda *inputs: func.grad(
        lambda *inputs: func.vmap(loss)(*[x[:, None] for x in inputs]).sum(), argnums=(0, 1, 2)
    )(*inputs),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap(neuron, name):
    inputs = (QUERY, KEY, VALUE, BIAS.expand(2, 4, 6, 6))
    actual = MAPPED[name](*[x.to(neuron) for x in inputs])
    expected = MAPPED[name](*inputs)
    for one, other in zip(*(torch.utils._pytree.tree_leaves(found) for found in (actual, expected)), strict=True):
        assert one.device == neuron
        torch.testing.assert_close(one.cpu(), other, atol=1e-5, rtol=1e-4)


def test_gradient_of_a_bias_through_vmap(neuron):
    bias = BIAS.to(neuron).requires_grad_()
    inputs = [x.to(neuron)[:, None] for x in (QUERY, KEY, VALUE)]
    func.vmap(loss)(*inputs, bias[:, None]).sum().backward()
    _, expected = trained(F.scaled_dot_product_attention, "cpu", ["attn_mask"], mask=BIAS)
    torch.testing.assert_close(bias.grad.cpu(), expected)


def test_the_fused_operation_refuses_the_gradient_of_a_bias(neuron):
    query, key, value = (x.to(neuron) for x in (QUERY, KEY, VALUE))
    bias = BIAS.to(neuron).requires_grad_()
    output, *_ = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(query, key, value, bias)
    with pytest.raises(NotImplementedError, match=r"attn_bias of shape \[2, 1, 6, 6\].*math path"):
        output.sum().backward()
