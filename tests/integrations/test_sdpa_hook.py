"""PyTorch's scaled_dot_product_attention on neuron: by the kernels where they run, else as PyTorch computes it."""

import contextvars
import copy
import os
import subprocess
import sys
import threading
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

import optimum_neuron_torch as ont
from optimum_neuron_torch.buckets.notes import counting
from optimum_neuron_torch.report import StrictError


PATHS = tuple(f"nki ({kernel} kernel), scaled_dot_product_attention" for kernel in ("flash", "decode"))
STOCK = F.scaled_dot_product_attention
ATTENTION_KERNELS = {"optimum_neuron_torch::attention_kernel", "optimum_neuron_torch::decode_attention_kernel"}


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(dtype)


def inputs(queries=6, keys=6, heads=(4, 4), size=8, value_size=8, leading=(2,), dtype=torch.float32):
    shapes = (heads[0], queries, size), (heads[1], keys, size), (heads[1], keys, value_size)
    return [randn(*leading, *shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]


def on_neuron(options):
    return {name: value.to("neuron") if isinstance(value, torch.Tensor) else value for name, value in options.items()}


def in_float64(options):
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in options.items()
    }


BOOLEAN = torch.rand(2, 1, 10, 13, generator=torch.Generator().manual_seed(1)) > 0.4
TAKEN = {
    "plain": (inputs(), {}),
    "scale": (inputs(), {"scale": 0.3}),
    "causal": (inputs(), {"is_causal": True}),
    "causal with more keys": (inputs(keys=9), {"is_causal": True}),
    "one causal query sees the first key": (inputs(queries=1, keys=9), {"is_causal": True}),
    "one query": (inputs(queries=1, keys=9), {}),
    "few grouped queries with a mask": (
        inputs(queries=2, keys=13, heads=(4, 2)),
        {"attn_mask": BOOLEAN[:, :, :2], "enable_gqa": True},
    ),
    "grouped heads": (inputs(heads=(4, 2)), {"enable_gqa": True, "is_causal": True}),
    "one key head that is broadcast": (inputs(heads=(4, 1)), {"is_causal": True}),
    "values of another size": (inputs(value_size=5), {}),
    "boolean mask": (inputs(queries=10, keys=13), {"attn_mask": BOOLEAN}),
    "two-dimensional mask": (inputs(queries=10, keys=13), {"attn_mask": BOOLEAN[0, 0]}),
    "float mask": (inputs(queries=10, keys=13), {"attn_mask": randn(1, 4, 10, 13)}),
    "mask of hidden keys": (
        inputs(queries=10, keys=13),
        {"attn_mask": torch.zeros(BOOLEAN.shape).masked_fill(~BOOLEAN, -torch.inf)},
    ),
    "least number in a mask": (
        inputs(queries=10, keys=13),
        {"attn_mask": torch.where(BOOLEAN, 0.0, torch.finfo(torch.float32).min)},
    ),
    "two dimensions": ([tensor[0, 0] for tensor in inputs()], {}),
    "three dimensions": (inputs(leading=()), {"is_causal": True}),
    "three dimensions, mask of heads": (inputs(queries=10, keys=13, leading=()), {"attn_mask": randn(4, 10, 13)}),
    "five dimensions": (inputs(leading=(2, 3)), {}),
    "five dimensions, mask of rows": (inputs(queries=10, keys=13, leading=(3, 2)), {"attn_mask": BOOLEAN}),
}


@pytest.mark.parametrize("case", TAKEN)
def test_calls_that_a_kernel_takes(case):
    tensors, options = TAKEN[case]
    expected = STOCK(*(tensor.double() for tensor in tensors), **in_float64(options))
    with ont.nki.simulation() as runs, counting(Counter()) as paths:
        output = F.scaled_dot_product_attention(*(tensor.to("neuron") for tensor in tensors), **on_neuron(options))
    (path,) = paths.elements()
    assert len(runs) == 1 and path == PATHS["decode" in str(runs[0])]
    assert output.dtype == tensors[0].dtype
    torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


REFUSED = {
    "dropout": (inputs(), {"dropout_p": 1e-9}, "dropout"),
    "float64": ([tensor.double() for tensor in inputs()], {}, "float64"),
    "batch 0": (inputs(leading=(0,)), {}, "empty"),
    "wide heads": (inputs(size=264, value_size=264), {}, "head size"),
    "more causal queries than keys": (inputs(queries=9), {"is_causal": True}, "more queries"),
    "broadcast keys": ([inputs()[0], *(tensor[:1] for tensor in inputs()[1:])], {}, "broadcast"),
    "is_causal beside a mask": (inputs(), {"attn_mask": randn(6, 6), "is_causal": True}, "is_causal with a mask"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_no_kernel_takes_are_pytorchs_own_and_have_a_reason(case):
    tensors, options, reason = REFUSED[case]
    tensors, options = [tensor.to("neuron") for tensor in tensors], on_neuron(options)
    expected = STOCK(*tensors, **options)
    with ont.nki.simulation() as runs, counting(Counter()) as paths:
        output = F.scaled_dot_product_attention(*tensors, **options)
    (path,) = paths
    assert runs == [] and path.startswith("sdpa (") and reason in path
    torch.testing.assert_close(output, expected, rtol=0, atol=0)


class Attention(torch.nn.Module):
    """With heads wider than kernels take."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(264))

    def forward(self, hidden_states):
        query = (hidden_states * self.weight)[:, None]
        return F.scaled_dot_product_attention(query, query, query)


@pytest.mark.parametrize("compiled", [False, "model"])
def test_reasons_are_in_the_report_of_a_model(compiled, no_graphs_before):
    """Of a call that runs, and of one that is traced; an error where that is asked for."""
    options = {"nki": "simulate", "compile": compiled, "verify": False}
    options |= {"options": {"executor": "aten", "lowering": "off"}} if compiled else {}
    model = ont.prepare(Attention().eval(), ont.NeuronConfig(**options))
    hidden_states = randn(2, 6, 264)
    with torch.no_grad(), pytest.warns(UserWarning, match="head size 264"):
        model(hidden_states)
    reasons = [row["reason"] for row in ont.report(model).departures if row["kind"] == "attention"]
    assert len(reasons) == 1 and "head size 264" in reasons[0]
    model = ont.prepare(Attention().eval(), ont.NeuronConfig(**options, strict=("attention",)))
    with torch.no_grad(), pytest.raises(StrictError, match="head size 264"):
        model(hidden_states)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16))

    def forward(self, hidden_states):
        query = (hidden_states * self.weight)[:, None]
        return F.scaled_dot_product_attention(query, query, query)[:, 0]


class Layers(torch.nn.Module):
    """Two layers that call PyTorch's attention."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


@pytest.mark.parametrize("compiled", [False, "blocks", "model"])
def test_the_report_counts_the_calls_of_each_path(compiled, no_graphs_before):
    """Also in graphs that come from the cache, as those of the second round do."""
    options = {"nki": "simulate", "compile": compiled, "verify": False}
    options |= {"options": {"executor": "aten", "lowering": "off"}} if compiled else {}
    hidden_states = randn(2, 6, 16)
    for _ in range(2):
        model = ont.prepare(Layers().eval(), ont.NeuronConfig(**options))
        with torch.no_grad():
            model(hidden_states)
            assert ont.report(model).attention == {PATHS[0]: 2}
            with ont.runtime.collecting_kernel_runs() as runs:
                for _ in range(3):
                    model(hidden_states)
        assert len(runs) == 6
        assert ont.report(model).attention == {PATHS[0]: 8} and f"{PATHS[0]} 8" in str(ont.report(model))


@pytest.mark.parametrize(
    "options", [{"attn_mask": BOOLEAN.int()}, {"attn_mask": BOOLEAN[..., :4]}, {"attn_mask": BOOLEAN[None]}]
)
def test_errors_are_pytorchs_own(options):
    tensors = [tensor.to("neuron") for tensor in inputs(queries=10, keys=13)]
    with pytest.raises(RuntimeError) as stock:
        STOCK(*tensors, **on_neuron(options))
    with ont.nki.simulation(), pytest.raises(RuntimeError) as ours:
        F.scaled_dot_product_attention(*tensors, **on_neuron(options))
    assert str(ours.value) == str(stock.value)


def test_noncontiguous_tensors():
    """As models make them: heads split off a row, then moved in front."""
    rows = randn(2, 7, 3 * 4 * 8)
    query, key, value = rows.view(2, 7, 3, 4, 8).unbind(2)
    split = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    expected = STOCK(*(tensor.double() for tensor in split))
    with ont.nki.simulation() as runs:
        moved = rows.to("neuron").view(2, 7, 3, 4, 8).unbind(2)
        output = F.scaled_dot_product_attention(*(tensor.transpose(1, 2) for tensor in moved))
    assert len(runs) == 1
    torch.testing.assert_close(output.cpu().double(), expected, rtol=1e-5, atol=1e-5)


def test_autocast_gives_the_dtype():
    tensors = [tensor.to("neuron") for tensor in inputs()]
    with ont.nki.simulation() as runs, torch.autocast("neuron", torch.bfloat16):
        output = F.scaled_dot_product_attention(*tensors, attn_mask=randn(6, 6).to("neuron"))
    assert len(runs) == 1 and output.dtype == torch.bfloat16


def test_gradients_of_all_inputs_and_of_a_mask():
    tensors = [*inputs(queries=10, keys=13, heads=(4, 2)), randn(1, 4, 10, 13)]

    def gradients(function, *arguments):
        arguments = [argument.detach().requires_grad_() for argument in arguments]
        function(*arguments, enable_gqa=True).square().sum().backward()
        return [argument.grad.cpu().double() for argument in arguments]

    expected = gradients(STOCK, *(tensor.double() for tensor in tensors))
    with ont.nki.simulation() as runs:
        found = gradients(F.scaled_dot_product_attention, *(tensor.to("neuron") for tensor in tensors))
    assert len(runs) == 2
    for gradient, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-5 * reference.abs().max().item())


@pytest.fixture
def no_graphs_before():
    """Dynamo's limit of recompilations counts those of other tests with the same function."""
    torch._dynamo.reset()


def causal(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def targets_of(function, *tensors):
    """The operators of the graph that AOTAutograd makes of `function`."""
    found = []

    def keep(graph, example_inputs):
        found.extend(str(node.target).removesuffix(".default").replace(".", "::") for node in graph.graph.nodes)
        return boxed_nop(graph, example_inputs)

    backend = aot_autograd(fw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    torch.compile(function, backend=backend, fullgraph=True)(*tensors)
    return set(found)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_compiled_graph_holds_the_kernel_and_follows_the_mode(no_graphs_before, mode):
    with mode():
        tensors = [tensor.to("neuron").requires_grad_(mode is torch.enable_grad) for tensor in inputs()]
        with ont.nki.simulation():
            assert targets_of(causal, *tensors) & ATTENTION_KERNELS
        if mode is not torch.enable_grad:  # the device's own has outputs that this backend does not take there
            assert not targets_of(causal, *tensors) & ATTENTION_KERNELS


def test_compiled_by_the_device(no_graphs_before):
    tensors = inputs()
    moved = [tensor.to("neuron") for tensor in tensors]
    compiled = torch.compile(causal, backend="neuron", fullgraph=True)
    plain = compiled(*moved)
    for _ in range(2):  # the second time neither compiles
        with ont.nki.simulation() as runs:
            simulated = compiled(*moved)
        assert len(runs) == 1
        torch.testing.assert_close(compiled(*moved), plain, rtol=0, atol=0)
        torch.testing.assert_close(simulated, plain, rtol=1e-5, atol=1e-5)


def test_two_rounds_compile_two_graphs(no_graphs_before):
    graphs = []
    compiled = torch.compile(causal, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    tensors = [tensor.to("neuron") for tensor in inputs()]
    for _ in range(3):
        compiled(*tensors)
        with ont.nki.simulation():
            compiled(*tensors)
    assert len(graphs) == 2


def test_fake_tensors():
    with ont.nki.simulation() as runs, FakeTensorMode():
        query = torch.empty(2, 3, 5, 8, device="neuron")
        output = F.scaled_dot_product_attention(query, query, query)
    assert output.shape == (2, 3, 5, 8) and output.device.type == "neuron" and runs == []


@pytest.mark.parametrize(
    "transform",
    [
        lambda query: torch.vmap(lambda one: F.scaled_dot_product_attention(one, one, one))(query),
        lambda query: torch.func.grad(lambda all_: F.scaled_dot_product_attention(all_, all_, all_).sum())(query),
    ],
)
def test_transforms_of_torch_func_are_pytorchs_own(transform):
    query = inputs()[0].to("neuron")
    expected = transform(query)
    with ont.nki.simulation() as runs:
        torch.testing.assert_close(transform(query), expected, rtol=0, atol=0)
    assert runs == []


def test_a_users_choice_of_backend_is_kept():
    query = inputs()[0].to("neuron")
    with ont.nki.simulation() as runs, sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(query, query, query)
    assert runs == []


def test_multihead_attention_of_pytorch():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
    x = randn(2, 5, 16)
    expected = layer(x, x, x, need_weights=False)[0]
    with ont.nki.simulation() as runs:
        moved = x.to("neuron")
        output = layer.to("neuron")(moved, moved, moved, need_weights=False)[0]
    assert len(runs) == 1
    torch.testing.assert_close(output.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_tensors_of_the_host_and_other_threads_are_left_alone():
    query = inputs()[0]
    with ont.nki.simulation() as runs, counting(Counter()) as paths:
        F.scaled_dot_product_attention(query, query, query)
        moved = query.to("neuron")
        context = contextvars.copy_context()  # what it counted would be among the paths
        arguments = (F.scaled_dot_product_attention, moved, moved, moved)
        thread = threading.Thread(target=context.run, args=arguments)
        thread.start()
        thread.join()
    assert runs == [] and paths == {}


def test_nothing_is_changed_while_no_kernels_run():
    assert F.scaled_dot_product_attention is STOCK
    with ont.nki.simulation():
        assert F.scaled_dot_product_attention is not STOCK
        with ont.nki.simulation():
            pass
        assert F.scaled_dot_product_attention is not STOCK
    assert F.scaled_dot_product_attention is STOCK


def test_what_another_put_there_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", STOCK)
    with ont.nki.simulation():
        theirs = F.scaled_dot_product_attention = lambda *args, **kwargs: STOCK(*args, **kwargs)
    assert F.scaled_dot_product_attention is theirs


def test_unwire_takes_it_back():
    query = inputs()[0].to("neuron")
    ont.unwire()
    try:
        with ont.nki.simulation() as runs:
            assert F.scaled_dot_product_attention is STOCK
            F.scaled_dot_product_attention(query, query, query)
        assert runs == []
    finally:
        ont.wire()


@pytest.mark.parametrize("order", ["plugin first", "device first"])
def test_on_a_device_of_its_own_the_function_is_exchanged_at_once(order, tmp_path):
    """A package of the native device's name, which PyTorch does not load here."""
    (tmp_path / "torch_neuronx.py").write_text("")
    plugin, device = "import optimum_neuron_torch as ont", "import torch, torch_neuronx"
    program = "\n".join(
        [
            *([plugin, device] if order == "plugin first" else [device, plugin]),
            "import torch.nn.functional as F",
            "assert type(F.scaled_dot_product_attention).__name__ == 'function'",
            "query = torch.ones(1, 1, 2, 4)",
            "assert torch.equal(F.scaled_dot_product_attention(query, query, query), query)",
            "ont.unwire()",
            "assert type(F.scaled_dot_product_attention).__name__ == 'builtin_function_or_method'",
        ]
    )
    environment = {**os.environ, "NEURON_EMULATOR": "0", "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_a_prepared_model_that_its_user_compiles_runs_kernels(no_graphs_before):
    """Without compiling again at each call."""
    plain = Layers().eval()
    model = ont.prepare(copy.deepcopy(plain), ont.NeuronConfig(nki="simulate", verify=False))
    compiled = torch.compile(model, backend="neuron", fullgraph=True, options={"executor": "aten", "lowering": "off"})
    hidden_states = randn(2, 6, 16)
    graphs = ont.report().graphs + ont.report().cached
    try:
        with torch.no_grad(), ont.runtime.collecting_kernel_runs() as runs:
            found = [compiled(hidden_states.to("neuron")).cpu() for _ in range(3)]
            expected = plain(hidden_states)
    finally:
        ont.unwire()
        ont.wire()
    assert len(runs) == 6 and ont.report().graphs + ont.report().cached == graphs + 1
    for output in found:
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert F.scaled_dot_product_attention is STOCK
