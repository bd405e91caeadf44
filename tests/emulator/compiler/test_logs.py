"""What the compiler says, where, and that nothing comes twice."""

import logging
import os
import re
import subprocess
import sys

import pytest
import torch

from optimum_neuron_torch.emulator.logs import LOGGER


PROGRAM = """
import sys, logging
if "basic" in sys.argv:
    logging.basicConfig(level=logging.INFO, format="PYTHON %(message)s")
import torch
function = torch.compile(lambda x: x.sin() @ x, options={"executor": "aten"})
for size in (3, 4):
    function(torch.ones(size, size, device="neuron"))
"""


def _run(*arguments, program=PROGRAM, **environment):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_one_line_per_graph_compiled_and_loaded(caplog, monkeypatch):
    caplog.set_level(logging.INFO, LOGGER)
    monkeypatch.setenv("NEURON_EMULATOR_EXECUTOR", "aten")
    x = torch.randn(3, 5, device="neuron")
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(lambda x: (x.cosh() @ x.t()).sinh(), options={"model_name": "mine", "bucket": "batch 3"})(x)
    first, second = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    seconds = r"\d+\.\d\d s \(trace [\d.]+.*\)"
    assert re.fullmatch(rf"mine, batch 3: compiled mine_\d+_inference_\d, 4 nodes, {seconds}, executor aten", first)
    assert re.fullmatch(
        rf"mine, batch 3: loaded mine_\d+_inference_\d from the cache, 4 nodes, {seconds}, executor aten", second
    )


def test_without_a_bucket_the_line_has_the_inputs(caplog, monkeypatch):
    caplog.set_level(logging.INFO, LOGGER)
    monkeypatch.setenv("NEURON_EMULATOR_EXECUTOR", "aten")
    weight = torch.randn(4, 2, device="neuron", requires_grad=True)
    torch.compile(lambda hidden, weight: (hidden @ weight).erf())(
        torch.randn(3, 4, device="neuron"), weight
    ).sum().backward()
    forward, backward = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert (
        forward.startswith("model_default, hidden float32[3, 4], weight float32[4, 2]: compiled ")
        and "_forward_0, " in forward
    )
    assert (
        backward.startswith("model_default, hidden float32[3, 4], weight float32[4, 2]: compiled ")
        and "_backward_0, " in backward
    )


@pytest.mark.parametrize(
    ("setting", "arguments", "python", "torch_lines"),
    [
        pytest.param(None, [], 0, 0, marks=pytest.mark.slow),
        (None, ["basic"], 3, 0),
        pytest.param("neuron", [], 0, 3, marks=pytest.mark.slow),
        ("neuron", ["basic"], 0, 3),  # PyTorch's handlers have them: not twice
        pytest.param("-neuron", ["basic"], 0, 0, marks=pytest.mark.slow),
    ],
)
def test_lines_come_once(setting, arguments, python, torch_lines):
    """Two graphs and one recompilation."""
    result = _run(*arguments, **({} if setting is None else {"TORCH_LOGS": setting}))
    lines = [line for line in result.stderr.splitlines() if "model_default" in line or "Recompiling" in line]
    assert len([line for line in lines if line.startswith("PYTHON")]) == python, result.stderr
    assert len([line for line in lines if not line.startswith("PYTHON")]) == torch_lines, result.stderr


def test_artifacts_print_graphs_and_reasons():
    result = _run(TORCH_LOGS="neuron_graphs,neuron_stablehlo,neuron_host_graphs,neuron_recompiles")
    assert result.returncode == 0, result.stderr
    for words in (
        r"\[__neuron_graphs\].*torch\.ops\.aten\.mm\.default",
        r"\[__neuron_stablehlo\].*stablehlo\.dot",
        r"\[__neuron_host_graphs\].*torch\.ops\.aten\.mm\.default",
        r"\[__neuron_recompiles\].*`x` axis 0: 3 -> 4",
        r"\[__neuron_recompiles\].*size mismatch at index 0",
    ):
        assert re.search(words, result.stderr), f"{words} is not in\n{result.stderr}"


def test_help_lists_the_names():
    result = _run(TORCH_LOGS="help")
    for name in ("neuron", "neuron_graphs", "neuron_stablehlo", "neuron_host_graphs", "neuron_recompiles"):
        assert re.search(rf"^  {name}\s", result.stderr, re.MULTILINE), result.stderr


def test_the_names_are_known_without_the_device_and_load_no_compiler():
    program = "import sys, torch; print(any(name.startswith('torch._dynamo.guards') for name in sys.modules))"
    result = _run(program=program, TORCH_LOGS="neuron,neuron_graphs", NEURON_EMULATOR="0")
    assert result.stdout.strip() == "False", result.stderr
    result = _run(program=program, TORCH_LOGS="neuron,neuron_graphs")
    assert result.stdout.strip() == "False", result.stderr
