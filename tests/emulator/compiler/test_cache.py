"""Graphs survive the process; what is corrupted or not ours is not used."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from optimum_neuron_torch.emulator.compiler import cache
from optimum_neuron_torch.emulator.compiler.options import CompileOptions


PROGRAM = textwrap.dedent(
    """
    import copy, json, sys, warnings
    import torch
    import torch_neuronx
    caught = []
    warnings.showwarning = lambda message, *rest: caught.append(str(message))
    torch.manual_seed(int(sys.argv[2]))
    host = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    device = copy.deepcopy(host).to("neuron")
    compiled = torch.compile(device, backend="neuron", dynamic=False, options={"executor": sys.argv[1]})
    x = torch.randn(3, 8)
    with torch.no_grad():
        difference = (compiled(x.to("neuron")).cpu() - host(x)).abs().max().item()
    if sys.argv[1] != "inductor":  # whose kernels take seconds
        compiled(x.to("neuron")).sum().backward()
        host(x).sum().backward()
        difference += (device[0].weight.grad.cpu() - host[0].weight.grad).abs().max().item()
    records = torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()
    print(json.dumps({"difference": difference, "records": records, "warnings": caught}))
    """
)


def _start(directory, executor="aten", seed=0):
    environment = {**os.environ, "OPTIMUM_NEURON_CACHE": str(directory), "OMP_NUM_THREADS": "2"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, executor, str(seed)], env=environment, stdout=subprocess.PIPE, text=True
    )


def _finish(process):
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    result = json.loads(output.splitlines()[-1])
    assert result["difference"] < 1e-5
    return result


def _run(*args, **kwargs):
    return _finish(_start(*args, **kwargs))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that two processes filled at the same time."""
    directory = tmp_path_factory.mktemp("filled")
    for result in [_finish(process) for process in [_start(directory, seed=seed) for seed in (0, 1)]]:
        assert len(result["records"]) == 3
    return directory


def test_a_second_process_compiles_nothing(filled):
    records = _run(filled, seed=5)["records"]
    assert [record["cached"] for record in records] == [True] * 3
    assert [record["lowering"] for record in records] == ["checked"] * 3
    for record in records:
        assert record["torch_neuronx_load_us"] > 0
        assert record["torch_neuronx_lower_us"] == record["torch_neuronx_compile_us"] == 0


def test_nothing_half_written_remains(filled):
    assert not [path for path in filled.rglob("*") if path.name.endswith(".tmp")]


def test_a_corrupted_entry_is_compiled_anew_with_one_warning_each(filled):
    entries = [path for path in filled.rglob("aotautograd/*/*") if path.is_file()]
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-20] + b"x" * 20)
    result = _run(filled)
    assert not any(record["cached"] for record in result["records"])
    told = [text for text in result["warnings"] if "compiled anew" in text]
    assert told and len(told) == len(set(told))
    assert all(record["cached"] for record in _run(filled)["records"])


def test_a_directory_that_others_may_write_to_is_not_used(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="writable by others.*OPTIMUM_NEURON_CACHE"):
        assert cache._private_directory(str(tmp_path)) is None


def test_what_pytorchs_own_key_lacks_is_in_ours():
    gm = torch.fx.symbolic_trace(torch.nn.Identity())
    tags = {
        cache._key_tag(gm, [], CompileOptions(**options))
        for options in ({}, {"executor": "aten"}, {"lowering": "off"}, {"fallback_execution": True})
    }
    assert len(tags) == 4


def test_views_of_one_storage_are_told_apart():
    """Same sizes and strides, another overlap: AOTAutograd's key takes them for the same."""
    gm, base = torch.fx.symbolic_trace(torch.nn.Identity()), torch.zeros(6, 3)
    inputs = ([base[:4], base[2:]], [base[:4], base[1:5]], [base[:4].clone(), base[2:].clone()], [base[:4], base[:4]])
    assert len({cache._key_tag(gm, pair, CompileOptions()) for pair in inputs}) == 4


ARTIFACTS = textwrap.dedent(
    """
    import json, sys, torch, torch_neuronx
    if sys.argv[2] == "load":
        with open(sys.argv[1], "rb") as file:
            assert torch.compiler.load_cache_artifacts(file.read()) is not None
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU()).to("neuron")
    compiled = torch.compile(model, backend="neuron", dynamic=False, options={"executor": "aten"})
    compiled(torch.ones(2, 8, device="neuron")).sum().backward()
    if sys.argv[2] == "save":
        with open(sys.argv[1], "wb") as file:
            file.write(torch.compiler.save_cache_artifacts()[0])
    records = torch_neuronx.neuron_dynamo_backend.get_dynamo_metrics()
    print(json.dumps([record["cached"] for record in records]))
    """
)


def test_pytorchs_own_export_of_cached_results_serves_another_cache(tmp_path):
    """`torch.compiler.save_cache_artifacts`, and `load_cache_artifacts` in a process with other directories."""
    cached = []
    for action in ("save", "load"):
        environment = {
            **os.environ,
            "OPTIMUM_NEURON_CACHE": str(tmp_path / action),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"torch-{action}"),
        }
        command = [sys.executable, "-c", ARTIFACTS, str(tmp_path / "artifacts"), action]
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=200)
        cached.append(json.loads(output.stdout.splitlines()[-1]))
    assert cached == [[False, False], [True, True]]


def test_kernels_are_stored_and_the_users_inductor_is_left_alone(tmp_path):
    assert not any(record["cached"] for record in _run(tmp_path, executor="inductor")["records"])
    assert list(tmp_path.rglob("*.so"))
    records = _run(tmp_path, executor="inductor")["records"]
    assert all(record["cached"] for record in records)
