"""Strict mode: what each kind refuses and what it leaves alone, its scopes, and its environment variable."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import torch_neuronx.metrics
from torch.autograd import forward_ad

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.device import strict_mode
from optimum_neuron_torch.emulator.device.strict_mode import KINDS


N = "neuron"
LAST = torch.channels_last


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device=N)


def dual() -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.make_dual(ones(2), ones(2)) * 2


def sparse_embedding() -> None:
    embedding = torch.nn.Embedding(4, 3, sparse=True).to(N)
    embedding(torch.tensor([1, 2]).to(N)).sum().backward()


# What each kind refuses: the call, and what the message names.
REFUSED = [
    ("fallback", lambda: torch.linalg.qr(ones(2, 2)), r"aten::linalg_qr with Float\[2, 2\]"),
    ("fallback", lambda: ones(3).normal_(), r"aten::normal_ with Float\[3\]"),
    ("unknown", lambda: ones(2).lgamma(), r"aten::lgamma with Float\[2\]"),
    ("unknown", lambda: ones(2, 4).argmax(dim=1), r"aten::argmax with Float\[2, 4\]"),
    ("float64", lambda: torch.zeros(2, dtype=torch.float64, device=N), r"aten::empty of Double\[2\]"),
    ("float64", lambda: torch.ones(2, dtype=torch.float64).to(N), r"Double\[2\]"),
    ("float64", lambda: ones(2).double(), r"Double\[2\]"),
    ("float64", lambda: ones(2, 3).sum(dtype=torch.float64), r"aten::sum.* with Double\[\]"),
    ("float64", lambda: torch.from_numpy(np.ones(2)).to(N), r"Double\[2\]"),
    ("int64", lambda: torch.full((2,), 2**31, device=N), r"Long\[2\]"),
    ("int64", lambda: torch.tensor([2**40]).to(N), r"aten::copy_ with Long\[1\]"),
    ("int64", lambda: torch.tensor([2**31 - 1]).to(N) + 1, r"aten::add.Tensor with Long\[1\]"),
    ("int64", lambda: ones(2, dtype=torch.int64) << 33, r"Long\[2\]"),
    ("int64", lambda: torch.tensor([2**20]).to(N).mul_(2**20), r"aten::mul_.Tensor with Long\[1\]"),
    ("complex", lambda: torch.fft.fft(ones(4)), r"ComplexFloat"),
    ("complex", lambda: torch.zeros(2, dtype=torch.complex64).to(N), r"ComplexFloat\[2\]"),
    ("complex", lambda: torch.view_as_complex(ones(3, 2)), r"aten::view_as_complex of ComplexFloat"),
    ("sparse", lambda: ones(2, 2).to_sparse(), r"aten::_to_sparse with Float\[2, 2\]"),
    ("sparse", lambda: torch.eye(2).to_sparse().to(N), r"sparse_coo.* with Long"),
    ("forward_ad", dual, r"aten::_make_dual with Float\[2\], Float\[2\]"),
    ("forward_ad", lambda: torch.func.jvp(torch.sin, (ones(2),), (ones(2),)), r"aten::_make_dual"),
    ("forward_ad", lambda: torch.func.jacfwd(torch.sin)(ones(2)), r"aten::_make_dual"),
    ("forward_ad", lambda: torch.func.hessian(lambda x: (x**3).sum())(ones(2)), r"aten::_make_dual"),
    ("channels_last", lambda: ones(1, 3, 4, 4).to(memory_format=LAST), r"Float\[1, 3, 4, 4\]"),
    ("channels_last", lambda: ones(1, 3, 4, 4).contiguous(memory_format=LAST), r"Float\[1, 3, 4, 4\]"),
    ("channels_last", lambda: torch.empty(1, 3, 4, 4, device=N, memory_format=LAST), r"Float\[1, 3, 4, 4\]"),
    ("channels_last", lambda: torch.nn.Conv2d(3, 2, 3).to(N).to(memory_format=LAST), r"Float\[2, 3, 3, 3\]"),
    (
        "multicore",
        lambda: (torch.ones(1, device="neuron:0"), torch.ones(1, device="neuron:1")),
        "neuron:0 .*neuron:1;",
    ),
]


@pytest.mark.parametrize(("kind", "call", "named"), REFUSED)
def test_refused_with_the_kind_the_operation_and_the_line(neuron, kind, call, named):
    """Fine without the kind (sparse tensors apart); with it, an error that names this file's line."""
    if kind != "sparse":
        call()
    pattern = rf"strict mode \({kind}\): .*{named}.*Called at .*test_strict\.py:\d+ in \S+.*leave '{kind}' out"
    with device.strict(kind):
        with pytest.raises(RuntimeError, match=pattern):
            call()
    with device.strict(*(other for other in KINDS if other not in (kind, "fallback", "unknown", "sparse"))):
        if kind not in ("sparse", "multicore"):
            call()


def training_step() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    model.to(N)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast(N, torch.bfloat16):
        loss = model(torch.rand(2, 3, 4, 4).to(N)).float().log_softmax(-1)[:, 0].sum()
    loss.backward()
    optimizer.step()


# Code that no kind has anything to say about.
CLEAN = {
    "training": training_step,
    "numbers": lambda: ones(2) * 2.5 + np.float64(3) - torch.tensor(1.0, dtype=torch.float64),
    "float64 of the host": lambda: torch.ones(2, dtype=torch.float64).to(N, torch.float32),
    "ids": lambda: torch.nn.functional.embedding(torch.arange(4).to(N), ones(8, 2)),
    "int64 at the edge": lambda: torch.tensor([2**31 - 1, -(2**31)]).to(N) + 0,
    "empty int64": lambda: torch.zeros(0, dtype=torch.int64, device=N).cumsum(0),
    "permuted": lambda: torch.rand(1, 4, 4, 3).to(N).permute(0, 3, 1, 2) + 1,
    "permuted on the host": lambda: torch.rand(1, 4, 4, 3).permute(0, 3, 1, 2).to(N),
    "one channel": lambda: torch.rand(2, 1, 4, 4).to(N) * 2,
    "reverse mode": lambda: torch.func.vjp(torch.sin, ones(2))[1](ones(2)),
    "gradients of gradients": lambda: torch.func.grad(torch.func.grad(lambda x: x**3))(ones(())),
    "another core": lambda: torch.ones(2, device="neuron:1") + 1,
}


@pytest.mark.parametrize("call", CLEAN.values(), ids=CLEAN.keys())
def test_clean_code_passes_all_kinds(neuron, call):
    with device.strict("all"):
        call()


def test_sparse_is_an_error_without_strict_mode_too(neuron):
    for call in (lambda: ones(2, 2).to_sparse(), lambda: torch.eye(2).to_sparse().to(N), sparse_embedding):
        with pytest.raises(NotImplementedError, match=r"no sparse tensors.*to_dense.*Called at"):
            call()


def test_what_is_not_refused_is_counted(neuron):
    torch.linalg.qr(ones(2, 2))
    ones(2).lgamma()
    ones(2).double() * 2
    torch.view_as_complex(ones(3, 2)).abs()
    assert torch_neuronx.metrics.get_counter_value("dtype_calls.float64") >= 1
    assert torch_neuronx.metrics.get_counter_value("dtype_calls.complex64") == 1
    assert device.fallback_ops() == ["aten::linalg_qr"] and device.unknown_ops() == ["aten::lgamma"]
    assert {"aten::mul.Tensor", "aten::copy_"} <= set(device.executed_ops())
    assert device.counters()["operations"]["aten::lgamma"] == (1, 1)


# ---- recompile ----------------------------------------------------------------------------------------------------


@pytest.fixture
def warm():
    """A function that says that warm-up is over; taken back afterwards."""
    yield device.mark_warm
    device.mark_warm(False)


def test_recompile_refuses_eager_signatures_after_warm_up(neuron, warm):
    x, y = ones(8), ones(9)
    with device.strict("recompile"):
        x + x
        warm()
        x + x
        y.view(3, 3).t().cpu()  # views and plain copies compile nothing
        with pytest.raises(
            RuntimeError, match=r"strict mode \(recompile\): aten::add.Tensor with Float\[9\], Float\[9\]"
        ):
            y + y
        with pytest.raises(RuntimeError, match=r"recompile.*aten::add.Tensor"):
            x + 2  # another constant
        device.mark_warm(False)
        y + y
        warm()
        y + y


def test_recompile_says_nothing_without_strict_mode(neuron, warm):
    warm()
    before = device.counters()["eager_signatures"]
    ones(11) + ones(11)
    assert device.counters()["eager_signatures"] > before


# ---- scopes -------------------------------------------------------------------------------------------------------


def test_scopes_nest_and_end_with_exceptions(neuron):
    assert device.strict_kinds() == frozenset()
    with device.strict("float64"):
        with pytest.raises(ZeroDivisionError), device.strict("complex", "float64"):
            assert device.strict_kinds() == {"float64", "complex"}
            raise ZeroDivisionError
        assert device.strict_kinds() == {"float64"}
        with device.strict():
            assert device.strict_kinds() == set(KINDS)
        assert device.strict_kinds() == {"float64"}
    assert device.strict_kinds() == frozenset()


def test_a_refused_call_leaves_the_device_usable(neuron):
    x = ones(3)
    before = torch.neuron.memory_allocated()
    with device.strict("all"), pytest.raises(RuntimeError, match="float64"):
        x.double()
    assert torch.neuron.memory_allocated() == before
    assert torch.equal(x.double().cpu(), torch.ones(3, dtype=torch.float64))


def test_scopes_of_threads_overlap(neuron):
    """The first to begin is the first to end; each keeps its kind until it ends, and nothing is left behind."""
    both_in, first_out = threading.Barrier(2), threading.Event()
    seen: dict[str, frozenset[str]] = {}

    def first() -> None:
        with device.strict("float64"):
            both_in.wait(10)
        first_out.set()

    def second() -> None:
        with device.strict("complex"):
            both_in.wait(10)
            first_out.wait(10)
            seen["after the first"] = device.strict_kinds()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen["after the first"] == {"complex"} and device.strict_kinds() == frozenset()


def test_other_threads_and_backward_passes_are_held_to_it(neuron):
    errors = []

    def work() -> None:
        try:
            ones(2).double()
        except RuntimeError as error:
            errors.append(str(error))

    x = ones(2, 2).requires_grad_()
    loss = torch.linalg.qr(x).R.sum()
    with device.strict("float64", "fallback"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        with pytest.raises(RuntimeError, match=r"strict mode \(fallback\)"):
            (torch.linalg.qr(x.detach()).R + loss).sum().backward()
    assert len(errors) == 1 and "test_strict.py" in errors[0]


# ---- names and environment ----------------------------------------------------------------------------------------


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="strict.*: unknown strict kind speed.*float64"), device.strict("speed"):
        pass
    assert device.strict_kinds() == frozenset()


@pytest.mark.parametrize("value", [*KINDS, "all", " float64 ,complex,", ""])
def test_environment(monkeypatch, value):
    monkeypatch.setenv("NEURON_EMULATOR_STRICT", value)
    names = {name.strip() for name in value.split(",")} - {""}
    expected = set(KINDS) if names == {"all"} else names
    try:
        strict_mode.apply_environment()
        assert device.strict_kinds() == expected
    finally:
        strict_mode._ask(expected, times=-1)
    assert device.strict_kinds() == frozenset()


def run(code: str, strict: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "NEURON_EMULATOR_STRICT": strict}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)


def test_environment_of_a_process():
    code = "import torch\nx = torch.ones(2).to('neuron')\nx + x\ntorch.linalg.qr(x[None])"
    result = run(code, "all")
    assert "strict mode (fallback): aten::linalg_qr with Float[1, 2]" in result.stderr and result.returncode == 1
    result = run("import torch\nprint('torch works')\ntorch.ones(2).to('neuron')", "fallback,speed")
    assert "torch works" in result.stdout
    assert "NEURON_EMULATOR_STRICT: unknown strict kind speed" in result.stderr and result.returncode == 1
