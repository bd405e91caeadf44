"""Graphs kept as text: forward and backward, from a warm cache too, of a graph that does not lower, from processes."""

import os
import subprocess
import sys
import warnings

import pytest
import torch


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(tmp_path))
    return tmp_path


def _train(name="mine"):
    torch._dynamo.reset()
    weight = torch.ones(4, 3, device="neuron", requires_grad=True)
    compiled = torch.compile(lambda w: w.sin().sum(), options={"executor": "aten", "model_name": name})
    compiled(weight).backward()


def _kept(directory):
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_forward_and_backward_are_kept_from_a_warm_cache_too(directory, monkeypatch):
    monkeypatch.delenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS")
    _train()
    assert _kept(directory) == []
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    _train()
    kept = _kept(directory)
    assert [path.split("/")[0] for path in kept] == ["fx_graphs"] * 2 + ["stablehlo"] * 2
    assert all("/proc_0/mine_" in path for path in kept)
    texts = {path: (directory / path).read_text() for path in kept}
    assert all("torch.ops.aten" in text for path, text in texts.items() if path.endswith(".fx.txt"))
    forward = next(text for path, text in texts.items() if "_forward_" in path and path.endswith(".mlir"))
    backward = next(text for path, text in texts.items() if "_backward_" in path and path.endswith(".mlir"))
    assert "stablehlo.sine" in forward and "stablehlo.cosine" in backward


def test_a_graph_that_does_not_lower_is_kept_as_fx(directory):
    options = {"executor": "aten", "fallback_execution": True}
    with pytest.warns(RuntimeWarning, match="runs eagerly"):
        torch.compile(torch.linalg.eigvalsh, options=options)(torch.eye(3, device="neuron"))
    (kept,) = _kept(directory)
    assert "linalg_eigh" in (directory / kept).read_text()


def test_a_model_name_is_no_path(directory):
    _train("../up/and away")
    assert all("/proc_0/.._up_and away_" in path for path in _kept(directory))


def test_a_directory_that_cannot_be_written_warns_once(directory, monkeypatch):
    (directory / "file").write_text("")
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(directory / "file"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _train()
        _train()
    assert len([warning for warning in caught if "graphs are not kept" in str(warning.message)]) == 1


@pytest.mark.slow
def test_processes_may_share_the_directory(directory):
    program = """
import torch
for size in range(2, 8):
    compiled = torch.compile(lambda x: x.sin() + 1, dynamic=False, options={"executor": "aten"})
    compiled(torch.ones(size, device="neuron"))
"""
    processes = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], env=os.environ) for _ in range(3)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    kept = _kept(directory)
    assert len(kept) == 12 and not any("/." in path for path in kept)
    assert all((directory / path).read_text().rstrip().endswith(("}", ")")) for path in kept)
