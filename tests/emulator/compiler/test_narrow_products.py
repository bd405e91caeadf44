"""Products of few rows with a weight: turned round for Inductor in bfloat16, and no less exact for it."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optimum_neuron_torch.emulator.compiler.executors.inductor_compiler import decompositions


aten = torch.ops.aten
SUMMED, COLUMNS = 192, 160


def _inputs(rows, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(rows)
    shapes = ((COLUMNS,), (rows, SUMMED), (COLUMNS, SUMMED))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def _with_bias(bias, x, weight):
    return torch.addmm(bias, x, weight.t())


def _without_bias(bias, x, weight):
    return torch.mm(x, weight.t())


def _products(graph):
    """The operators of `graph` that multiply, with the shapes of what they multiply."""
    names = (aten.mm.default, aten.addmm.default, aten.mv.default, aten.addmv.default)
    nodes = [node for node in graph.graph.nodes if node.target in names]
    return [(node.target, tuple(node.args[-2].meta["val"].shape)) for node in nodes]


@pytest.mark.parametrize("rows", [1, 2, 8, 128])
@pytest.mark.parametrize("function", [_with_bias, _without_bias])
def test_the_weight_comes_first_and_nothing_is_lost(function, rows):
    inputs = _inputs(rows)
    graph = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)
    ((operator, shape),) = _products(graph)
    assert shape == (COLUMNS, SUMMED)
    assert (operator in (aten.mv.default, aten.addmv.default)) == (rows == 1)
    exact = function(*(tensor.double() for tensor in inputs))
    error, plain = ((result.double() - exact).abs() for result in (graph(*inputs), function(*inputs)))
    assert error.max() <= 1.01 * plain.max()
    assert error.mean() <= 1.01 * plain.mean()


@pytest.mark.parametrize("rows, dtype", [(1, torch.float32), (8, torch.float16), (COLUMNS, torch.bfloat16)])
def test_other_products_stay_as_they_are(rows, dtype):
    graph = make_fx(_with_bias, decomposition_table=decompositions(), tracing_mode="fake")(*_inputs(rows, dtype))
    assert _products(graph) == [(aten.addmm.default, (rows, SUMMED))]


def test_a_right_operand_that_is_no_weight_stays():
    def product(x, other):
        return torch.mm(x, other)

    x, other = torch.randn(4, SUMMED).bfloat16(), torch.randn(SUMMED, COLUMNS).bfloat16()
    graph = make_fx(product, decomposition_table=decompositions(), tracing_mode="fake")(x, other)
    assert _products(graph) == [(aten.mm.default, (4, SUMMED))]


@pytest.mark.parametrize("rows", [1, 3])
def test_a_compiled_model_gives_what_the_cpu_gives(rows):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(SUMMED, COLUMNS), torch.nn.GELU(), torch.nn.Linear(COLUMNS, 256))
    model = model.bfloat16().eval()
    x = torch.randn(rows, 1, SUMMED).bfloat16()
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model.to("neuron"), options={"executor": "inductor", "lowering": "off"})
        found = compiled(x.to("neuron")).cpu()
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
