"""NKI kernels inside compiled graphs: one node each, with results from trace mode, run by the simulator."""

import dataclasses
import enum
import re

import pytest
import torch
import torch_neuronx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def scaled(x, factor=2.0, dtype=None):
    """`x * factor`, as `dtype`."""
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    rounded = nl.ndarray(x.shape, dtype or x.dtype)
    nisa.tensor_scalar(dst=rounded, data=tile, op0=nl.multiply, operand0=factor)
    out = nl.ndarray(x.shape, rounded.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=rounded)
    return out


@nki.jit
def accumulate(total, x, log):
    """`total += x`, in place; both come back, with what `x` was, under names."""
    left, right = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=left, src=total)
    nisa.dma_copy(dst=right, src=x)
    before = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=before, src=left)
    nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.add)
    nisa.dma_copy(dst=total, src=left)
    nisa.dma_copy(dst=log[0], src=left)
    return {"total": total, "more": (before, x, 3)}


def compiled(function, executor="aten", **options):
    return torch.compile(function, backend="neuron", fullgraph=True, options={"executor": executor, **options})


def neuron(*tensors):
    return [tensor.to("neuron") for tensor in tensors]


EXECUTORS = ["aten", "inductor", pytest.param("tiered", marks=pytest.mark.slow)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_kernels_of_every_kind_of_call(executor, records):
    def function(x):
        first = scaled(x + 1, factor=3.0, dtype=nl.bfloat16)
        for power in range(2):
            first = torch_neuronx.wrap_nki(scaled)[(2,)](first, 1.0 + power)
        return first, scaled[2](x.T[1:])

    x = torch.randn(4, 8)
    with torch.no_grad(), nki.simulation() as runs:
        first, second = compiled(function, executor)(x.to("neuron"))
    assert torch.equal(first.cpu(), ((x + 1) * 3).bfloat16() * 2)
    assert torch.equal(second.cpu(), x.T[1:] * 2)
    assert [run.kernel for run in runs] == ["scaled"] * 4
    (record,) = records()
    assert record["lowering"] == "checked" and not torch_neuronx.neuron_dynamo_backend.get_graph_breaks()
    if executor == "tiered":
        torch_neuronx.neuron_dynamo_backend.finish_compilations()
        assert record["executor"] == "aten" and records()[0]["executor"] == "inductor"


def test_what_a_kernel_writes_is_in_the_callers_tensors():
    def function(total, x, log):
        result = accumulate(total, x=x, log=log)
        again = accumulate(total, x, log[1:])
        before, same, number = again["more"]
        return result["total"], before * number, same

    totals, xs, logs = torch.randn(4, 8), torch.randn(4, 8), torch.zeros(3, 4, 8)
    total, x, log = neuron(totals, xs, logs)
    with torch.no_grad():
        same_total, tripled, same_x = compiled(function)(total, x, log)
    assert same_total is total and same_x is x
    torch.testing.assert_close(total.cpu(), totals + 2 * xs)
    torch.testing.assert_close(tripled.cpu(), (totals + xs) * 3)
    torch.testing.assert_close(log.cpu(), torch.stack([totals + xs, totals + 2 * xs, logs[2]]))


# Arguments and results


class Mode(enum.Enum):
    PLAIN, NEGATED = 1.0, -1.0


@dataclasses.dataclass
class Settings:
    mode: Mode
    op: object
    tensors: dict
    factor: float = 1.0


@nki.jit
def combined(settings, *more, dtypes=(), **options):
    """`op(first, second) * factor * mode`, in each dtype; `options` say which of `more` to give back."""
    first, second = settings.tensors["both"]
    left, right = nl.ndarray(first.shape, first.dtype), nl.ndarray(first.shape, first.dtype)
    nisa.dma_copy(dst=left, src=first)
    nisa.dma_copy(dst=right, src=second)
    nisa.tensor_tensor(dst=left, data1=left, data2=right, op=settings.op)
    nisa.tensor_scalar(dst=left, data=left, op0=nl.multiply, operand0=settings.factor * settings.mode.value)
    results = []
    for dtype in dtypes:
        rounded = nl.ndarray(first.shape, dtype)
        nisa.tensor_copy(dst=rounded, src=left)
        results.append(nl.ndarray(first.shape, dtype, buffer=nl.shared_hbm))
        nisa.dma_copy(dst=results[-1], src=rounded)
    return results, {name: more[place] for name, place in options.items()}, None


def test_arguments_and_results_of_every_kind():
    settings = Settings(Mode.NEGATED, nl.add, {})

    def function(x, y):
        settings.tensors = {"both": [x, y]}
        return combined(settings, y, x, dtypes=(nl.float32, torch.bfloat16), last=1, first=0)

    x, y = torch.randn(4, 8), torch.randn(4, 8)
    given = neuron(x, y)
    with torch.no_grad():
        (exact, rounded), named, nothing = compiled(function)(*given)
    assert torch.equal(exact.cpu(), -(x + y)) and torch.equal(rounded.cpu(), -(x + y).bfloat16())
    assert named["last"] is given[0] and named["first"] is given[1] and nothing is None


def test_constants_are_part_of_the_graph():
    """Each other constant is another graph, whether it is an argument or in an object."""
    settings = Settings(Mode.PLAIN, nl.add, {})

    def function(x, op, factor):
        settings.tensors = {"both": (x, x)}
        return combined(settings, dtypes=(nl.float32,))[0][0] + scaled(x, factor=factor)

    x = torch.randn(4, 8)
    compiled_function = compiled(function)
    for mode, op, combine, number in ((Mode.PLAIN, nl.add, torch.add, 1.0), (Mode.NEGATED, nl.add, torch.add, 2)):
        settings.mode, settings.op, settings.factor = mode, op, 3.0 * number
        with torch.no_grad():
            result = compiled_function(x.to("neuron"), op, number)
        torch.testing.assert_close(result.cpu(), combine(x, x) * mode.value * 3.0 * number + x * number)


class Layer(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.kernels = kernel, {"scaled": [kernel]}

    def forward(self, x):
        return self.kernel(x) + self.kernels["scaled"][0][2](x, factor=0.5)


def test_kernels_in_modules_and_closures(records):
    kernel = scaled
    x = torch.randn(4, 8)

    def function(x):
        return kernel(x)

    with torch.no_grad():
        assert torch.equal(compiled(Layer(scaled))(x.to("neuron")).cpu(), x * 2.5)
        compiled_function = compiled(function)
        assert torch.equal(compiled_function(x.to("neuron")).cpu(), x * 2)
        kernel = nki.jit(lambda x: scaled(x, factor=5.0))  # made inside of a function, and another one than before
        assert torch.equal(compiled_function(x.to("neuron")).cpu(), x * 5)
    assert len(records()) == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends_and_export_have_kernels_as_one_node_too(backend):
    class Model(torch.nn.Module):
        def forward(self, x):
            return scaled(x, factor=3.0) + 1

    x = torch.randn(4, 8)
    with torch.no_grad():
        assert torch.equal(torch.compile(Model(), backend=backend, fullgraph=True)(x), x * 3 + 1)
        exported = torch.export.export(Model(), (x,))
        assert torch.equal(exported.module()(x), x * 3 + 1)
    targets = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.neuron.nki_kernel.default) == 1


def test_another_length_is_another_graph(records):
    compiled_function = compiled(lambda x: scaled(x))
    with torch.no_grad():
        for length in (4, 6, 9):
            x = torch.randn(length, 8)
            assert torch.equal(compiled_function(x.to("neuron")).cpu(), x * 2)
    assert len(records()) == 3


# Operators


@torch_neuronx.nki_op("nki_kernel_tests::scaled_by", mutates_args={})
def scaled_by(x: torch.Tensor, factor: float) -> torch.Tensor:
    return scaled[2](x.contiguous(), factor)


scaled_by.register_autograd(
    lambda ctx, gradient: (scaled_by(gradient, ctx.factor), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch_neuronx.nki_op("nki_kernel_tests::accumulated", mutates_args={"total", "log"})
def accumulated(total: torch.Tensor, x: torch.Tensor, log: torch.Tensor) -> torch.Tensor:
    return accumulate(total, x, log)["more"][0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_training_through_an_operator(executor, records):
    def loss(weight, x):
        return scaled_by((x @ weight).T, 3.0).sin().sum()

    weight, x = torch.randn(8, 5, requires_grad=True), torch.randn(4, 8)
    mine = weight.detach().to("neuron").requires_grad_()
    with nki.simulation() as runs:
        value = compiled(loss, executor)(mine, x.to("neuron"))
        value.backward()
    expected = ((x @ weight).T * 3).sin().sum()
    expected.backward()
    torch.testing.assert_close(value.cpu(), expected)
    torch.testing.assert_close(mine.grad.cpu(), weight.grad)
    assert [run.kernel for run in runs] == ["scaled", "scaled"]
    assert [record["lowering"] for record in records()] == ["checked", "checked"]


@pytest.mark.parametrize("run", [compiled, lambda function: function], ids=["compiled", "eager"])
def test_operators_that_write(run):
    def function(total, x, log):
        before = accumulated(total, x, log)
        accumulated(total, x, log[1:])
        return before + total

    totals, xs, logs = torch.randn(4, 8), torch.randn(4, 8), torch.zeros(3, 4, 8)
    total, x, log = neuron(totals, xs, logs)
    with torch.no_grad():
        result = run(function)(total, x, log)
    torch.testing.assert_close(total.cpu(), totals + 2 * xs)
    torch.testing.assert_close(result.cpu(), totals + total.cpu())
    torch.testing.assert_close(log.cpu(), torch.stack([totals + xs, totals + 2 * xs, logs[2]]))


def test_a_later_fake_kernel_wins():
    asked = []

    def copied(x: torch.Tensor) -> torch.Tensor:
        asked.append(x)
        return scaled(x, factor=1.0)

    operator = torch_neuronx.nki_op("nki_kernel_tests::copied", copied)
    operator.register_fake(lambda x: torch.empty_like(x))
    with FakeTensorMode():
        assert isinstance(operator(torch.empty(4, 8)), FakeTensor)
    assert not asked
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert torch.equal(compiled(lambda x: operator(x))(x.to("neuron")).cpu(), x)


# Without data, and in the lowered module


def test_fake_tensors_give_shapes_and_run_nothing():
    with FakeTensorMode() as mode, nki.simulation() as runs:
        x = torch.empty(4, 8, dtype=torch.float16, device="neuron")
        for kernel in (scaled, scaled[2]):
            result = kernel(x, dtype=nl.bfloat16)
            assert isinstance(result, FakeTensor) and result.fake_mode is mode
            assert (result.shape, result.dtype, result.device) == (x.shape, torch.bfloat16, x.device)
        log = torch.empty(2, 4, 8, dtype=torch.float16, device="neuron")
        returned = accumulate(x, x * 2, log)
        assert returned["total"] is x and returned["more"][0].shape == x.shape and returned["more"][2] == 3
    assert not runs


def test_compile_only_gives_zeros_and_runs_nothing(monkeypatch):
    from optimum_neuron_torch.emulator.compiler import compiled as compiled_graphs

    monkeypatch.setattr(compiled_graphs, "_IS_COMPILE_ONLY", True)
    x = torch.ones(4, 8, device="neuron")
    with torch.no_grad(), nki.simulation() as runs:
        result = compiled(lambda x: scaled(x, dtype=nl.bfloat16))(x)
    assert torch.equal(result.cpu(), torch.zeros(4, 8, dtype=torch.bfloat16)) and not runs


def test_a_kernel_is_a_custom_call_of_the_module(modules):
    def function(x, log):
        accumulate(x, x + 1, log)
        return scaled_by(scaled[2](x, dtype=nl.bfloat16), 0.5)

    with torch.no_grad():
        compiled(function)(*neuron(torch.ones(4, 8), torch.zeros(2, 4, 8)))
    (text,) = modules
    calls = re.findall(r"stablehlo.custom_call @(\w+)\(.*} : (\(.*)", text)
    tile = "tensor<4x8xf32>"
    log = "tensor<2x4x8xf32>"
    assert calls == [
        ("accumulate", f"({tile}, {tile}, {log}) -> ({tile}, {tile}, {log})"),
        ("scaled", f"({tile}) -> tensor<4x8xbf16>"),
        ("scaled", "(tensor<4x8xbf16>) -> tensor<4x8xbf16>"),
    ]
    assert 'stablehlo.composite "nki_kernel_tests.scaled_by"' in text
    assert f'kernel = "{__name__}:scaled"' in text and "lnc = 2" in text


# What cannot be


def test_xla_has_no_kernels(records):
    x = torch.randn(4, 8)
    with torch.no_grad():
        with pytest.raises(Exception, match="LoweringError: executor='xla'.*NKI kernels scaled.*aten"):
            compiled(lambda x: scaled_by(x, 2.0), "xla")(x.to("neuron"))
        with pytest.warns(RuntimeWarning):
            result = compiled(lambda x: scaled_by(x, 2.0), "xla", fallback_execution=True)(x.to("neuron"))
    assert torch.equal(result.cpu(), x * 2)
    assert records()[0]["lowering"] == "fallback"


def test_a_kernel_without_a_gradient_is_refused_where_one_is_asked_for():
    x = torch.randn(4, 8).to("neuron").requires_grad_()
    with pytest.raises(Exception, match="kernel scaled has no gradient.*register_autograd.*no_grad"):
        compiled(lambda x: scaled(x).sum())(x)
    with torch.no_grad():
        assert not compiled(lambda x: scaled(x))(x).requires_grad
    result = compiled(lambda x: scaled(x.detach()) * x)(x)
    result.sum().backward()
    assert torch.equal(x.grad, x.detach() * 2)


@nki.jit
def breaks_a_rule(x):
    tile = nl.ndarray((128, 4), x.dtype)
    nisa.memset(dst=tile[10:20], value=0.0)


class Opaque:
    pass


REFUSED = {
    "a rule of the chip": (lambda x: breaks_a_rule(x), r"nisa\.memset: 10 partitions"),
    "the wrong arguments": (lambda x: scaled(x, scale=1), "unexpected keyword argument 'scale'"),
    "an unknown object": (lambda x: scaled(x, Opaque()), "Opaque, which cannot be part of a compiled graph"),
    "three cores": (lambda x: scaled[3](x), r"kernel\[3\]: a logical NeuronCore has 1 or 2 cores"),
    "tensors on two devices": (lambda x: accumulate(x, torch.ones(4, 8), x[None]), "lie on one device"),
    "a view of what is written": (lambda x: accumulate(x, x + 1, x[None]), "share memory"),
    "an empty tensor": (lambda x: scaled(x[:0]), "every dimension of a kernel's tensors"),
    "float64": (lambda x: scaled(x.double()), "float64"),
    "no tensor": (lambda x: x + nki.jit(lambda: 1)(), "Dynamo|no tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(case):
    function, message = REFUSED[case]
    with torch.no_grad(), pytest.raises(Exception, match=message):
        compiled(function)(torch.ones(4, 8, device="neuron"))


def test_outside_of_fullgraph_such_a_kernel_runs_between_two_graphs(records):
    opaque = Opaque()

    @nki.jit
    def kernel(x, unused):
        return scaled(x)

    function = torch.compile(
        lambda x: kernel(x * 2, opaque) + 1, backend="neuron", dynamic=False, options={"executor": "aten"}
    )
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert torch.equal(function(x.to("neuron")).cpu(), x * 4 + 1)
    assert len(records()) == 2
    (found,) = torch_neuronx.neuron_dynamo_backend.get_graph_breaks()
    assert "NKI kernel" in found["reason"] and "Opaque" in found["reason"]
