"""Graphs that are interpreted at once and compiled later, and the store of their fast programs."""

import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from optimum_neuron_torch.emulator.compiler import background, isa, programs
from optimum_neuron_torch.emulator.compiler.executors import host


def _function(x):
    return torch.softmax(x * 2 + 1, -1)


@pytest.fixture
def x():
    return torch.arange(12.0).view(3, 4)


@pytest.fixture
def no_programs():
    """Whatever other tests compiled is gone."""
    shutil.rmtree(programs.root(), ignore_errors=True)
    yield
    background._queue.stop()


def _compile(**options):
    return torch.compile(_function, backend="neuron", dynamic=False, options=options)


def test_the_first_result_is_interpreted_and_the_swap_changes_nothing_else(x, records, no_programs):
    compiled = _compile()
    expected = _function(x)
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), expected)
    assert [record["executor"] for record in records()] == ["aten"]
    assert background.pending_compilations() == 1
    left = []
    assert background.finish_compilations(left.append) == 1
    assert left == [0]
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), expected)
    (record,) = records()
    assert record["executor"] == "inductor" and record["torch_neuronx_compile_us"] > 0
    assert background.pending_compilations() == 0
    # A new function with the same graph finds the program in the store.
    torch._dynamo.reset()
    torch.testing.assert_close(_compile()(x.to("neuron")).cpu(), expected)
    assert [record["executor"] for record in records()] == ["inductor"] * 2


def test_a_program_that_fails_to_compile_leaves_the_graph_interpreted(x, records, no_programs, monkeypatch):
    monkeypatch.setattr("optimum_neuron_torch.emulator.compiler.worker._MODULE", "no.such.module")
    compiled = _compile()
    compiled(x.to("neuron"))
    with pytest.warns(RuntimeWarning, match="stays interpreted.*ended without an answer"):
        background.finish_compilations()
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), _function(x))
    assert records()[0]["executor"] == "aten"


def test_a_graph_that_is_gone_is_not_compiled(x, no_programs):
    _compile()(x.to("neuron"))
    torch._dynamo.reset()
    gc.collect()
    assert background.finish_compilations() == background.pending_compilations() == 0


def test_a_child_takes_idle_time_only_and_ends_with_a_parent_that_is_killed(tmp_path):
    program = textwrap.dedent(
        """
        import os, time, torch
        from optimum_neuron_torch.emulator.compiler import background
        background.DELAY = 0
        torch.compile(lambda x: torch.softmax(x, -1), backend="neuron")(torch.ones(3, 4, device="neuron"))
        while not (running := list(background._queue._running)):
            time.sleep(0.01)
        child = running[0]._process.pid
        while os.sched_getscheduler(child) != os.SCHED_IDLE:
            time.sleep(0.01)
        print(child, flush=True)
        time.sleep(60)
        """
    )
    environment = {
        **os.environ,
        "OPTIMUM_NEURON_CACHE": str(tmp_path),
        "NEURON_EMULATOR_EXECUTOR": "tiered",
        "NEURON_EMULATOR_BACKGROUND": "1",
    }
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not _runs(child):
            return
        time.sleep(0.1)
    raise AssertionError("the child goes on")


def _runs(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_interpreted_for_long_is_compiled_at_ordinary_priority(x, records, no_programs, monkeypatch):
    monkeypatch.setattr(background, "FIXED_COST", -1.0)
    monkeypatch.setenv(background.VARIABLE, "1")
    idle_only = []
    original = background.Worker.__init__

    def remember(self, **kwargs):
        idle_only.append(kwargs["idle_only"])
        original(self, **kwargs)

    monkeypatch.setattr(background.Worker, "__init__", remember)
    compiled = _compile()
    compiled(x.to("neuron"))
    while background.pending_compilations():
        time.sleep(0.05)
    assert idle_only == [False]
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), _function(x))
    assert records()[0]["executor"] == "inductor"


def test_a_program_without_a_compiler_stays_interpreted(x, records, no_programs, monkeypatch):
    monkeypatch.setattr("optimum_neuron_torch.emulator.compiler.executors.host.has_compiler", lambda: False)
    with pytest.warns(RuntimeWarning, match="No working C\\+\\+ compiler"):
        torch.testing.assert_close(_compile()(x.to("neuron")).cpu(), _function(x))
    assert records()[0]["executor"] == "aten"
    assert background.pending_compilations() == 0


def test_a_stored_program_needs_no_compiler(x, tmp_path):
    program = textwrap.dedent(
        """
        import torch
        torch.compile(lambda x: torch.softmax(x * 2 + 1, -1), backend="neuron")(torch.ones(3, 4, device="neuron"))
        import torch_neuronx
        print([record["executor"] for record in torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()])
        """
    )
    directory = tmp_path / "a name with spaces"
    environment = {**os.environ, "OPTIMUM_NEURON_CACHE": str(directory), "NEURON_EMULATOR_EXECUTOR": "inductor"}
    # The second process asks for no level, and has more than the kernels use.
    level = next((name for name in reversed(isa.LEVELS) if isa._runs_here(name)), isa.NATIVE)
    environment[isa.VARIABLE] = level
    command = [sys.executable, "-c", program]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert first.stdout == "['inductor']\n"
    environment |= {"CXX": "/does/not/exist", "PATH": "/nowhere", isa.VARIABLE: isa.NATIVE}
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert second.stdout == "['inductor']\n", second.stderr


def test_programs_of_one_process_keep_their_kernels_apart(no_programs):
    """Each loaded from the store, where the first kernel of every program has the same file name."""
    functions = {size: lambda x, size=size: torch.softmax(x * size, -1) for size in (3, 40, 500)}
    for _ in range(2):
        torch._dynamo.reset()
        for size, function in functions.items():
            x = torch.randn(4, size)
            compiled = torch.compile(function, backend="neuron", dynamic=False)
            compiled(x.to("neuron"))
            background.finish_compilations()
            torch.testing.assert_close(compiled(x.to("neuron")).cpu(), function(x))


def test_the_stand_ins_for_expensive_imports_are_what_they_stand_for():
    from torch._inductor.codegen.memory_planning import _align
    from torch._inductor.select_algorithm import extern_kernels

    from optimum_neuron_torch.emulator.compiler.executors import inductor

    for name in ("mm", "addmm", "bmm", "baddbmm", "convolution"):
        assert getattr(inductor.extern_kernels, name) is getattr(extern_kernels, name)
    assert inductor.align(65) == _align(65)


def test_in_place_writes_survive_storage():
    """The interpreted form of a stored graph writes where the first one did."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from optimum_neuron_torch.emulator.compiler.graph import HostGraph
    from optimum_neuron_torch.emulator.compiler.metrics import GraphRecord

    def write(cache, index, new):
        written = torch.ops.aten.index_copy(cache, 0, index, new)
        torch.ops.aten.copy_(cache, written)
        return [written.sum()]

    inputs = [torch.zeros(4, 2), torch.tensor([1]), torch.ones(1, 2)]
    module = make_fx(write, tracing_mode="fake")(*inputs)
    program = host.HostProgram(HostGraph(module=module, inputs=inputs), GraphRecord(), host.ATEN)
    revived = program.prepare_for_storage()
    revived.revive(GraphRecord())
    assert "index_copy_" in revived._interpreted.code and "aten.copy_." not in revived._interpreted.code
    (total,) = revived(list(inputs))
    assert total == 2 and inputs[0][1].tolist() == [1, 1]


@pytest.mark.parametrize("name", [name for name in isa.LEVELS if isa._runs_here(name)])
def test_kernels_for_a_named_level(x, name, records, no_programs, monkeypatch):
    monkeypatch.setenv(isa.VARIABLE, name)
    compiled = _compile(executor="inductor")
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), _function(x))
    assert [folder.name for folder in programs.root().iterdir()] == [name]
    (code,) = programs.root().rglob("code.pickle")
    assert "Vectorized<float>" in pickle.loads(code.read_bytes()).source_code
    # This CPU has that level, so a process that asks for its own uses it.
    monkeypatch.delenv(isa.VARIABLE)
    torch._dynamo.reset()
    _compile()(x.to("neuron"))
    assert records()[-1]["executor"] == "inductor"


def test_a_program_of_another_cpu_is_compiled_again_with_a_warning(x, no_programs):
    """As after import_cache() of a file made elsewhere, or where machines of several kinds share a cache."""
    _compile(executor="inductor")(x.to("neuron"))
    (folder,) = programs.root().iterdir()
    folder.rename(folder.with_name("native-another"))
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="compiled for native-another, which this CPU or process cannot run"):
        result = _compile(executor="inductor")(x.to("neuron"))
    torch.testing.assert_close(result.cpu(), _function(x))
    assert sorted(each.name for each in programs.root().iterdir()) == sorted([folder.name, "native-another"])


@pytest.mark.parametrize(("name", "words"), [("sse9", "no vector ISA 'sse9'"), ("avx2", "cannot run avx2")])
def test_a_level_that_this_cpu_lacks_is_refused(name, words, monkeypatch):
    monkeypatch.setattr(isa, "cpu_flags", lambda: frozenset({"sse"}))
    with pytest.raises(isa.UnknownIsaError, match=words):
        isa.checked(name)
