"""Graphs with NKI kernels survive the process, and are another graph when the kernel's source is another one."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import torch_neuronx
from torch.fx.experimental.proxy_tensor import make_fx

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.compiler import cache
from optimum_neuron_torch.emulator.compiler.passes.custom_ops import CHIP, body_digests
from optimum_neuron_torch.emulator.nki.chips import targeting
from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.operation import OPERATOR
from optimum_neuron_torch.emulator.nki.sources import source_digest
from optimum_neuron_torch.emulator.nki.torch_calls import prepare_call


KERNELS = """
    import nki, nki.isa as nisa, nki.language as nl
    from factors import FACTOR

    @nki.jit
    def scaled(x):
        tile, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=FACTOR)
        nisa.dma_copy(dst=out, src=tile)
        return out
    """

# Its kernel is imported when it is called.
OPERATORS = """
    import torch, torch_neuronx

    @torch_neuronx.nki_op("nki_cache_tests::scaled")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        from kernels import scaled
        return scaled(x)
    """
PROGRAM = """
    import json, sys
    import torch, torch_neuronx
    import nki
    import kernels, operators

    def made():
        def scaled(x):
            return kernels.scaled(x)
        return nki.jit(scaled)

    @nki.jit
    def of_the_program(x):
        return kernels.scaled(x)

    functions = {
        "direct": kernels.scaled, "operator": operators.scaled, "made": made(), "of the program": of_the_program
    }
    results = {}
    for name in sys.argv[2:]:
        torch_neuronx.metrics.clear_all()
        scaled = functions[name]
        with torch.no_grad():
            result = torch.compile(
                lambda x: scaled(x) + len(name), backend="neuron", fullgraph=True,
                options={"executor": sys.argv[1], "lowering": "off"},
            )(torch.ones(4, 8, device="neuron"))
        (record,) = torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()
        results[name] = result.cpu()[0, 0].item() - len(name), record["cached"]
    print(json.dumps(results))
    """
CALLS = ("direct", "operator", "made", "of the program")


class Project:
    """A folder with a program, its kernels, and a cache."""

    def __init__(self, folder):
        self.folder = folder
        for name, text in {"kernels": KERNELS, "operators": OPERATORS, "program": PROGRAM}.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        self.set_factor(2.0)

    def set_factor(self, value):
        (self.folder / "factors.py").write_text(f"FACTOR = {value}\n")

    def run(self, executor, *calls, **variables):
        """Per call, what the kernel made of 1, and whether the graph came from the cache."""
        environment = {**os.environ, "OPTIMUM_NEURON_CACHE": str(self.folder / "cache"), **variables}
        command = [sys.executable, "program.py", executor, *calls]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=200, check=True
        )
        return {name: tuple(result) for name, result in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_a_second_process_compiles_nothing_until_the_source_changes(project):
    assert project.run("aten", *CALLS) == dict.fromkeys(CALLS, (2.0, False))
    known = dict.fromkeys(CALLS, (2.0, True))
    # Nobody else finds a kernel that was made inside of a function.
    assert project.run("aten", *CALLS) == {**known, "made": (2.0, False)}
    project.set_factor(4.0)  # in a module that the kernel's imports
    assert project.run("aten", *CALLS) == dict.fromkeys(CALLS, (4.0, False))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inductor", "tiered"])
def test_the_same_of_compiled_programs(executor, project):
    assert project.run(executor, "direct", "operator") == dict.fromkeys(("direct", "operator"), (2.0, False))
    assert project.run(executor, "direct", "operator") == dict.fromkeys(("direct", "operator"), (2.0, True))
    other_chip = project.run(executor, "direct", "operator", NEURON_PLATFORM_TARGET_OVERRIDE="trn3")
    assert other_chip == dict.fromkeys(("direct", "operator"), (2.0, False))


@nki.jit
def copied(x):
    tile, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


@torch_neuronx.nki_op("nki_cache_tests::copied")
def copied_operator(x: torch.Tensor) -> torch.Tensor:
    return copied(x)


def test_a_stored_function_is_refused_when_a_kernel_is_another():
    """It is loaded without the backend's key, and has the digests with it."""
    graph = make_fx(lambda x: copied_operator(copied(x)), tracing_mode="fake")(torch.ones(2, 3))
    bodies = body_digests(graph)
    name = f"{__name__}:copied"
    assert set(bodies) == {name, "nki_cache_tests::copied", CHIP} and all(bodies.values())
    cache._refuse_other_bodies(bodies)
    for changed in (
        {name: "of another source"},
        {"nki_cache_tests::copied": "of another source"},
        {f"{__name__}:gone": bodies[name]},
        {"a_module_that_is_not_there:kernel": bodies[name]},
        {f"{name}#0123-0": bodies[name]},
    ):
        with pytest.raises(RuntimeError, match="has changed"):
            cache._refuse_other_bodies({**bodies, **changed})
    with targeting("trn3"), pytest.raises(RuntimeError, match="has changed"):
        cache._refuse_other_bodies(bodies)


def test_a_kernel_that_is_not_here_is_never_another_one():
    text = prepare_call(copied.func, 1, (torch.empty(2, 3, device="meta"),), {}).call.text()
    x, digest = [torch.ones(2, 3)], source_digest(copied)
    assert torch.equal(OPERATOR(x, text)[0], x[0])
    for broken, error in (
        (text.replace(":copied", ":gone"), "no kernel .*:gone.*compile the graph again"),
        (text.replace(digest, "0" * 16), "source of the kernel .*copied has changed"),
        (text.replace(":copied", ":copied#0123456789ab-0"), "inside of a function of another process"),
        (text.replace("[2, 3]", "[2, 4]"), "makes .*, and the graph that calls it was compiled for"),
    ):
        with pytest.raises(NkiError, match=error):
            OPERATOR(x, broken)
