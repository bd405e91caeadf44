"""What is hard to compile, or wrong: the right result, or an error that names what is wrong and the way out."""

import copy
import threading
import warnings

import pytest
import torch
from torch import nn


EXECUTORS = ("aten", "xla")


@pytest.fixture(params=EXECUTORS)
def executor(request):
    return request.param


def _compile(function, executor="aten", **kwargs):
    kwargs.setdefault("fullgraph", True)
    return torch.compile(function, backend="neuron", dynamic=False, options={"executor": executor}, **kwargs)


def _to(value, device):
    """Tensors of a (nested) value on a device, with their aliasing, strides and offsets: storages move."""
    storages = {}

    def move(tensor):
        if tensor.device.type == device:
            return tensor
        base = tensor._base if tensor._base is not None else tensor
        if id(base) not in storages:
            kept = torch.empty(0, dtype=base.dtype).set_(base.untyped_storage())
            storages[id(base)] = kept.to(device)
        moved = storages[id(base)].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        return moved.requires_grad_() if tensor.requires_grad else moved

    return torch.utils._pytree.tree_map_only(torch.Tensor, move, value)


def _check(function, args, executor, *, calls=2):
    """`function` compiled on neuron equals it on the CPU: its results, and what it does to its arguments."""
    expected_args, actual_args = args(), _to(args(), "neuron")
    compiled = _compile(function, executor)
    for _ in range(calls):
        expected, actual = function(*expected_args), compiled(*actual_args)
        _assert_same(actual, expected)
        _assert_same(actual_args, expected_args)


def _assert_same(actual, expected):
    actual, expected = torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert one.device.type == "neuron" and one.shape == other.shape and one.dtype == other.dtype
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-5, atol=1e-6)


def _randn(*size):
    torch.manual_seed(sum(size))
    return torch.randn(*size)


def _add(x, y):
    return x * 2 + y


def _write(x, y):
    x.add_(1)
    y.mul_(2)
    return x + y


def _write_rows(x, y):
    x[1:].copy_(y[:-1] * 3)
    return x.sum(0)


def _same(count):
    def make():
        x = _randn(4, 3)
        return (x,) * count

    return make


def _overlapping():
    base = _randn(6, 3)
    return base[:4], base[2:]


def _views_of_one_base():
    base = _randn(4, 3)
    return base, base.t()[0]


def _write_through_a_view(base, row):
    row.add_(10)
    return base * 2


LAYOUTS = {
    "contiguous": lambda: _randn(4, 3),
    "transposed": lambda: _randn(3, 4).t(),
    "sliced": lambda: _randn(8, 6)[::2, ::2],
    "offset": lambda: _randn(5, 3)[1:],
    "expanded": lambda: _randn(1, 3).expand(4, 3),
    "flipped": lambda: _randn(4, 3).flip(0),
    "diagonal": lambda: _randn(4, 4).diagonal().unsqueeze(1).expand(4, 3),
}

# name: (function, arguments)
CASES = {
    **{f"layout {name}": (_add, lambda make=make: (make(), _randn(4, 3))) for name, make in LAYOUTS.items()},
    "channels last": (
        lambda x: nn.functional.conv2d(x, torch.ones(2, 3, 1, 1, device=x.device)) + 1,
        lambda: (_randn(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "0-d": (_add, lambda: (torch.tensor(2.0), torch.tensor(3.0))),
    "empty": (_add, lambda: (_randn(0, 3), _randn(0, 3))),
    "batch 0": (lambda x, w: (x @ w).relu(), lambda: (_randn(0, 3), _randn(3, 5))),
    "empty mean is nan": (lambda x: x.sum(0) + 1, lambda: (_randn(0, 3),)),
    "mutated": (_write, lambda: (_randn(4, 3), _randn(4, 3))),
    "mutated row": (_write_rows, lambda: (_randn(4, 3), _randn(4, 3))),
    "mutated expanded source": (lambda x, y: x.add_(y), lambda: (_randn(4, 3), _randn(1, 3).expand(4, 3))),
    "mutated non-contiguous": (_write, lambda: (_randn(3, 4).t(), _randn(8, 3)[::2])),
    "same tensor twice": (_add, _same(2)),
    "same tensor twice, mutated": (lambda x, y: (x.add_(1), y * 2)[1], _same(2)),
    "overlapping views": (_add, _overlapping),
    "overlapping views, mutated": (lambda x, y: (x.add_(1), y * 2)[1], _overlapping),
    "view of a base, mutated": (_write_through_a_view, _views_of_one_base),
    "base of a view, mutated": (lambda base, row: (base.mul_(2), row + 1)[1], _views_of_one_base),
    "result is an input": (lambda x, y: (x, x + y), lambda: (_randn(4, 3), _randn(4, 3))),
    "result is a view of an input": (lambda x: (x.t(), x[1:], x + 1), lambda: (_randn(4, 3),)),
    "result is a mutated input": (lambda x: x.add_(1), lambda: (_randn(4, 3),)),
    "same result twice": (lambda x: (lambda y: (y, y))(x + 1), lambda: (_randn(4, 3),)),
    "result and its view": (lambda x: (lambda y: (y, y.t()))(x + 1), lambda: (_randn(4, 3),)),
    "None among results": (lambda x: (None, x + 1, None), lambda: (_randn(4, 3),)),
    "Python values among results": (lambda x: (x + 1, 3, "text", 2.5, True), lambda: (_randn(4, 3),)),
    "Python arguments": (
        lambda x, i, f, b, s: x * i + f if b and s == "go" else x,
        lambda: (_randn(4, 3), 3, 0.5, True, "go"),
    ),
    "integers": (lambda x: (x // 3, x % 5, x % -5, torch.fmod(x, 5)), lambda: (torch.arange(-6, 6),)),
    "bits": (lambda x: (x ^ 3, x & 3, x | 4, x >> 1, x << 2), lambda: (torch.arange(0, 9),)),
    "remainder": (lambda x: (x % 3, x % -3, torch.fmod(x, 3)), lambda: (torch.arange(-6.0, 6),)),
    "strided window": (lambda x: x.as_strided((3, 3), (2, 1), 1) + 1, lambda: (_randn(4, 3),)),
    "strided window, written": (lambda x: x.as_strided((3, 2), (3, 1), 1).add_(1), lambda: (_randn(4, 3),)),
    "large integers": (lambda x: x + 2**40, lambda: (torch.arange(4),)),
    "booleans": (
        lambda x: ((x ^ True) & x.any(), x != x.flip(0), x == False, x > x.flip(0)),  # noqa: E712
        lambda: (torch.tensor([True, False, False]),),
    ),
    "large constant": (
        lambda x: x + torch.arange(20000, device=x.device).view(4, 5000).float().sum(1, keepdim=True),
        lambda: (_randn(4, 3),),
    ),
    "nested containers": (
        lambda tree: {"sum": tree["a"][0] + tree["b"], "kept": tree["a"]},
        lambda: ({"a": [_randn(4, 3), 2], "b": _randn(4, 3)},),
    ),
    "negative zero and infinities": (
        lambda x: (x * -1, x.abs(), x == x),
        lambda: (torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")]).nan_to_num(nan=1.0),),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_results_and_writes_equal_the_cpus(case, executor):
    function, args = CASES[case]
    _check(function, args, executor)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_results_and_writes_equal_the_cpus_with_inductor(case):
    function, args = CASES[case]
    _check(function, args, "inductor")


def test_lazily_conjugated_and_negated_inputs(executor):
    x = torch.complex(_randn(3), _randn(4)[:3])
    negative = x.conj().imag  # a view with the negative bit
    assert negative.is_neg()
    on_device = x.to("neuron").conj().imag
    torch.testing.assert_close(_compile(_add, executor)(on_device, on_device).cpu(), _add(negative, negative))


def test_complex_tensors():
    x = torch.complex(_randn(3), _randn(4)[:3])
    compiled = torch.compile(
        lambda x: (x * x.conj()).real + x.imag, backend="neuron", options={"lowering": "off", "executor": "aten"}
    )
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), (x * x.conj()).real + x.imag)


# ---- what cannot be one graph ---------------------------------------------------------------------------------------


def _branch(x):
    return x + 1 if x.sum() > 0 else x - 1


UNBACKED = {
    "branch": _branch,
    "nonzero": lambda x: x.nonzero(),
    "boolean mask": lambda x: x[x > 0] * 2,
    "item": lambda x: x * x.max().item(),
    "tolist": lambda x: sum(x.tolist()),
    "unique": lambda x: x.unique() + 1,
    "repeat": lambda x: torch.repeat_interleave(x, (x > 0).long() + 1),
}


@pytest.mark.parametrize("case", UNBACKED)
def test_sizes_and_branches_that_depend_on_data_split_the_graph_and_compute_right(case, executor):
    function, x = UNBACKED[case], _randn(5)
    got = _compile(function, executor, fullgraph=False)(x.to("neuron"))
    want = function(x)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got.cpu(), want)
    else:
        assert got == pytest.approx(want)


def test_a_number_read_from_a_tensor_may_stay_in_the_graph(executor):
    x = _randn(5)
    torch.testing.assert_close(_compile(UNBACKED["item"], executor)(x.to("neuron")).cpu(), UNBACKED["item"](x))


def test_a_view_made_in_place_of_an_input_splits_the_graph():
    def transpose(x):
        x.t_()
        return x + 1

    x = _randn(4, 3).to("neuron")
    torch.testing.assert_close(_compile(transpose, fullgraph=False)(x).cpu(), _randn(4, 3).t() + 1)
    assert x.shape == (3, 4)


@pytest.mark.parametrize("case", sorted(UNBACKED.keys() - {"item"}))
def test_with_fullgraph_they_are_errors_that_name_the_line(case):
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="test_bad_input.py"):
        _compile(UNBACKED[case])(_randn(5).to("neuron"))


# ---- devices and kinds of tensors -----------------------------------------------------------------------------------


def test_a_cpu_tensor_beside_neurons_is_an_error_as_in_eager_unless_it_is_a_scalar():
    x, y = _randn(3).to("neuron"), _randn(3)
    with pytest.raises(RuntimeError, match="neuron:0.*cpu|cpu.*neuron:0"):
        _compile(_add)(x, y)
    torch.testing.assert_close(_compile(_add)(x, torch.tensor(2.0)).cpu(), x.cpu() * 2 + 2)


def test_two_cores_in_one_graph():
    if torch.neuron.device_count() < 2:
        pytest.skip("one core")
    x, y = _randn(3).to("neuron:0"), _randn(3).to("neuron:1")
    with pytest.raises(RuntimeError, match="neuron:0.*neuron:1|neuron:1.*neuron:0"):
        _compile(_add)(x, y)
    result = _compile(_add)(y, y)
    assert result.device == torch.device("neuron:1")
    torch.testing.assert_close(result.cpu(), y.cpu() * 3)


def test_meta_tensors_have_no_data_to_compute_with():
    with pytest.raises(RuntimeError, match="meta"):
        _compile(_add)(torch.empty(3, device="meta"), _randn(3).to("neuron"))


def test_sparse_inputs_are_refused():
    with pytest.raises((RuntimeError, NotImplementedError), match="(?i)sparse"):
        _compile(lambda x, y: x.to(y.device) @ y)(torch.eye(3).to_sparse(), _randn(3, 3).to("neuron"))


def test_nested_tensors_are_refused_or_right():
    parts = [_randn(2, 3), _randn(4, 3)]
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        nested = torch.nested.nested_tensor(parts, layout=torch.jagged).to("neuron")
        _compile(lambda x: x * 2)(nested)
    assert str(caught.value)


# ---- gradients ------------------------------------------------------------------------------------------------------


def _loss(x, w):
    return ((x @ w).tanh() ** 2).sum()


def _gradients(function, device):
    x, w = _randn(4, 3).to(device).requires_grad_(), _randn(3, 2).to(device).requires_grad_()
    return torch.autograd.grad(function(x, w), (x, w))


def test_autograd_grad(executor):
    for one, other in zip(_gradients(_compile(_loss, executor), "neuron"), _gradients(_loss, "cpu"), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_backward_twice_with_retain_graph(executor):
    def run(function, device):
        x, w = _randn(4, 3).to(device).requires_grad_(), _randn(3, 2).to(device)
        loss = function(x, w)
        loss.backward(retain_graph=True)
        loss.backward()
        return x.grad.cpu()

    torch.testing.assert_close(run(_compile(_loss, executor), "neuron"), run(_loss, "cpu"))


def test_double_backward_is_refused_by_name():
    x, w = _randn(4, 3).to("neuron").requires_grad_(), _randn(3, 2).to("neuron")
    (gradient,) = torch.autograd.grad(_compile(_loss)(x, w), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def _module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_hooks_on_parameters_and_accumulation(executor):
    def run(device):
        module = _module().to(device)
        seen = []
        module[0].weight.register_hook(lambda gradient: gradient * 2)
        module[2].weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.sum().item()))
        called = _compile(module, executor) if device == "neuron" else module
        for _ in range(2):
            called(_randn(5, 3).to(device)).pow(2).sum().backward()
        return seen, [parameter.grad.cpu() for parameter in module.parameters()]

    (seen, gradients), (seen_cpu, gradients_cpu) = run("neuron"), run("cpu")
    assert seen == pytest.approx(seen_cpu, rel=1e-4)
    for one, other in zip(gradients, gradients_cpu, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_modules_that_write_to_their_buffers(executor):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    module = copy.deepcopy(reference).to("neuron")
    compiled = _compile(module, executor)
    for seed in (3, 4):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(compiled(x.to("neuron")).cpu(), reference(x), rtol=1e-4, atol=1e-5)
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(dict(module.named_buffers())[name].cpu(), buffer)


def test_a_parameter_that_is_written_to_is_what_the_next_call_sees(executor):
    module = _module().to("neuron")
    compiled = _compile(module, executor)
    x = _randn(5, 3).to("neuron")
    with torch.no_grad():
        first = compiled(x)
        module[2].bias.add_(1)
        torch.testing.assert_close(compiled(x).cpu(), first.cpu() + 1)
        module[2].bias = nn.Parameter(module[2].bias + 1)
        torch.testing.assert_close(compiled(x).cpu(), first.cpu() + 2)


@pytest.mark.parametrize("kind", ["requires_grad", "inference mode", "Parameter", "Buffer"])
def test_kinds_of_inputs(kind, executor):
    def make(device):
        with torch.inference_mode(kind == "inference mode"):
            x = _randn(4, 3).to(device)
        if kind == "requires_grad":
            return x.requires_grad_()
        return {"Parameter": nn.Parameter, "Buffer": nn.Buffer}.get(kind, lambda value: value)(x)

    with torch.inference_mode(kind == "inference mode"):
        result = _compile(_add, executor)(make("neuron"), make("neuron"))
    torch.testing.assert_close(result.detach().cpu(), _add(make("cpu"), make("cpu")).detach())


# ---- objects --------------------------------------------------------------------------------------------------------


def test_a_deep_copy_of_a_compiled_module_has_weights_of_its_own():
    compiled = _compile(_module().to("neuron"))
    x = _randn(5, 3).to("neuron")
    with torch.no_grad():
        before = compiled(x)
        other = copy.deepcopy(compiled)
        for parameter in other.parameters():
            parameter.zero_()
        assert not other(x).cpu().any()
        torch.testing.assert_close(compiled(x), before)


def test_a_compiled_modules_state_is_saved_and_loaded(tmp_path):
    compiled = _compile(_module().to("neuron"))
    x = _randn(5, 3).to("neuron")
    with torch.no_grad():
        before = compiled(x)
        torch.save(compiled.state_dict(), tmp_path / "state.pt")
        for parameter in compiled.parameters():
            parameter.zero_()
        compiled.load_state_dict(torch.load(tmp_path / "state.pt"))
        torch.testing.assert_close(compiled(x), before)


def test_an_exception_inside_reaches_the_caller_and_leaves_no_trace():
    def failing(x, fails):
        y = x + 1
        if fails:
            raise ValueError("mine")
        return y

    compiled = _compile(failing, fullgraph=False)
    x = _randn(3).to("neuron")
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            compiled(x, True)
        torch.testing.assert_close(compiled(x, False).cpu(), x.cpu() + 1)


def test_a_wrong_shape_is_eagers_error_with_the_users_line():
    with pytest.raises(Exception, match=r"(?s)same reduction dim.*test_bad_input\.py"):
        _compile(lambda x, w: x @ w)(_randn(4, 3).to("neuron"), _randn(4, 2).to("neuron"))


def test_threads_compile_and_run_one_function():
    compiled = _compile(lambda x: (x @ x.t()).softmax(-1))
    failures = []

    def work(seed):
        try:
            for size in (3, 4):
                x = torch.randn(size, 5, generator=torch.Generator().manual_seed(seed))
                for _ in range(5):
                    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), (x @ x.t()).softmax(-1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_custom_operator_without_a_fake_kernel_says_how_to_write_one():
    with torch.library._scoped_library("neuron_bad_input", "FRAGMENT") as library:
        library.define("no_fake(Tensor x) -> Tensor")
        library.impl("no_fake", lambda x: x + 1, "CompositeExplicitAutograd")
        with pytest.raises(Exception, match="no_fake") as caught:
            _compile(lambda x: torch.ops.neuron_bad_input.no_fake(x))(_randn(3).to("neuron"))
    assert "register_fake" in str(caught.value) or "fake" in str(caught.value)


def test_nothing_warns_on_the_ordinary_path():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        _compile(_add)(_randn(3).to("neuron"), _randn(3).to("neuron"))
