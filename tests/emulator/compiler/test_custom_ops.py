"""Custom operators with a Python body are opened for the executors and for the lowering."""

import pytest
import torch
import torch.nn.functional as F

from optimum_neuron_torch.emulator.compiler.passes.custom_ops import python_body


@torch.library.custom_op("neuron_compiler_tests::attention", mutates_args=())
def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True).contiguous()


@attention.register_fake
def _(query, key, value, mask, scale):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@torch.library.custom_op("neuron_compiler_tests::looks_at_values", mutates_args=())
def looks_at_values(x: torch.Tensor) -> torch.Tensor:
    return x * len(x.tolist())


@looks_at_values.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize("executor", ["aten", "xla"])
@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_operator_lowers_and_agrees(executor, queries, masked, records):
    query, key, value = torch.randn(2, 4, queries, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    mask = torch.rand(2, 1, queries, 6) > 0.3 if masked else None
    expected = attention(query, key, value, mask, 0.5)
    arguments = [x.to("neuron") if x is not None else None for x in (query, key, value, mask)]
    compiled = torch.compile(
        lambda *args: attention(*args, 0.5), backend="neuron", dynamic=False, options={"executor": executor}
    )
    with torch.no_grad():
        result = compiled(*arguments)
    torch.testing.assert_close(result.cpu(), expected, atol=1e-5, rtol=1e-4)
    assert records()[0]["lowering"] == "checked"


def test_operators_that_look_at_values_stay_closed(records):
    compiled = torch.compile(
        lambda x: looks_at_values(x) + 1,
        backend="neuron",
        dynamic=False,
        options={"executor": "aten", "lowering": "off"},
    )
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), x * 3 + 1)


def test_aten_operators_have_no_python_body():
    assert python_body(torch.ops.aten.add.Tensor) is None
