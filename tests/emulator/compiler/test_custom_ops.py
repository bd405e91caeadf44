"""Custom operators with a Python body: opened for the executors, one operation of the lowered module."""

import copy
import re
import sys

import pytest
import torch
import torch.nn.functional as F

from optimum_neuron_torch.emulator.compiler import stablehlo
from optimum_neuron_torch.emulator.compiler.passes.custom_ops import python_body
from optimum_neuron_torch.nki.ops.attention import attention as nki_attention


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


@torch.library.custom_op("neuron_compiler_tests::two_results", mutates_args=())
def two_results(xs: list[torch.Tensor], power: int, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return sum(xs) ** power, xs[0] * 2


@two_results.register_fake
def _(xs, power, name):
    return torch.empty_like(xs[0]), torch.empty_like(xs[0])


@torch.library.custom_op("neuron_compiler_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_heads, self.output = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x, mask):
        heads = self.to_heads(x).unflatten(-1, (2, 8)).transpose(1, 2)
        attended = nki_attention(heads, heads.exp(), heads, None, mask, None, 0.3, None)
        return x + self.output(attended.transpose(1, 2).flatten(2))


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([_Layer(), _Layer(), _Layer()])

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x


def test_each_call_is_one_operation_and_the_oracle_computes_its_body(modules):
    """Three layers, forward and backward: three calls of one body in each graph, equal to plain PyTorch."""
    host = _Layers()
    device = copy.deepcopy(host).to("neuron")
    x, mask = torch.randn(2, 5, 16), torch.rand(2, 1, 5, 5) > 0.3
    compiled = torch.compile(device, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "xla"})
    expected, result = host(x, mask), compiled(x.to("neuron"), mask.to("neuron"))
    torch.testing.assert_close(result.cpu(), expected, atol=1e-5, rtol=1e-4)
    expected.square().mean().backward()
    result.square().mean().backward()
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, atol=1e-5, rtol=1e-4)
    forward, backward = modules
    for text, name, operands in (
        (forward, "attention", ["query", "key", "value", "bias"]),
        (backward, "attention_backward", ["grad", "query", "key", "value", "bias"]),
    ):
        main = text[: text.index("func.func private")]
        assert len(re.findall(rf'stablehlo.composite "optimum_neuron_torch\.{name}"', main)) == 3
        assert len(re.findall("func.func private", text)) == 1
        assert main.count("scale = 3.000000e-01") == 3
        assert main.count(f"operands = [{', '.join(f'{chr(34)}{operand}{chr(34)}' for operand in operands)}]") == 3


def test_bodies_of_calls_that_are_alike_are_traced_once(modules, monkeypatch):
    """Alike but for the tensors: not where a number is another, one tensor comes twice, or a layout differs."""
    traced = []
    original = stablehlo.trace_body
    monkeypatch.setattr(stablehlo, "trace_body", lambda body, *rest: traced.append(body) or original(body, *rest))

    def function(x, y):
        first = two_results([x, y], 2, "a")[0]
        alike = two_results([y, first], 2, "a")[0]
        another_number = two_results([x, y], 3, "a")[0]
        one_tensor = two_results([x, x], 2, "a")[0]
        another_layout = two_results([x.t(), x.t()], 2, "a")[0]
        return first, alike, another_number, one_tensor, another_layout

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    compiled = torch.compile(function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "xla"})
    torch.testing.assert_close([r.cpu() for r in compiled(x.to("neuron"), y.to("neuron"))], list(function(x, y)))
    assert len(traced) == 4
    assert modules[0].count('stablehlo.composite "neuron_compiler_tests.two_results"') == 5


@pytest.mark.parametrize("executor", ["aten", "xla"])
def test_lists_numbers_and_several_results(executor, modules):
    def function(x, y):
        powers, doubled = two_results([x, y, x], 3, "cube")
        again, _ = two_results([doubled, powers], 2, "square")
        return powers - doubled.sin(), again

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    compiled = torch.compile(function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": executor})
    torch.testing.assert_close([r.cpu() for r in compiled(x.to("neuron"), y.to("neuron"))], list(function(x, y)))
    assert modules[0].count('stablehlo.composite "neuron_compiler_tests.two_results"') == 2
    assert 'name = "cube"' in modules[0]
    assert "power = 3 : i64" in modules[0]


def test_an_operator_without_a_fake_kernel_is_named_with_the_way_out():
    compiled = torch.compile(lambda x: without_fake(x) + 1, backend="neuron", dynamic=False, fullgraph=True)
    with pytest.raises(Exception, match="neuron_compiler_tests.without_fake.*register_fake"):
        compiled(torch.ones(3, device="neuron"))


def test_a_body_that_does_not_lower_is_refused_with_the_callers_line():
    with pytest.raises(Exception, match="looks_at_values.*does not lower.*\n.*test_custom_ops.py"):
        torch.compile(lambda x: looks_at_values(x) + 1, backend="neuron", dynamic=False)(
            torch.ones(3, device="neuron")
        )


def test_reading_a_module_looks_for_no_files(monkeypatch):
    """MLIR's bindings look for a dialect's Python module with each operation they read, until they have one."""
    from torch_mlir import ir

    class Finder:
        found: list[str] = []

        def find_spec(self, name, path=None, target=None):
            self.found.append(name)

    with stablehlo._new_context(), ir.Location.unknown():
        module = ir.Module.parse(
            "func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
            "%y = stablehlo.add %x, %x : tensor<2xf32>\nreturn %y : tensor<2xf32>}"
        )
        block = module.body.operations[0].regions[0].blocks[0]
        list(block.operations)
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
        assert [operation.operation.name for operation in block.operations] == ["stablehlo.add", "func.return"]
    assert Finder.found == []
