"""The emulator's names, one by one, against the list of what is known of the native package's (surface.py)."""

import csv
import importlib
import inspect
import logging
import os
import subprocess
import sys

import pytest
import torch

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.device import autoload, environment
from tests.emulator.surface import ENVIRONMENT, MODULES
from tests.sources import ROOT


NAMES = [(module, name) for module, names in MODULES.items() for name in names]


def resolve(module: str):
    return torch.neuron if module == "torch.neuron" else importlib.import_module(module)


@pytest.fixture(autouse=True)
def _as_before():
    """Calls of the table change the core, the seed and the counters."""
    device.clear_counters()
    state = torch.get_rng_state()
    yield
    torch.neuron.set_device(0)
    torch.set_rng_state(state)
    torch._dynamo.reset()


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{module}.{name.path}" for module, name in NAMES])
def test_name(module, name):
    found = getattr(resolve(module), name.path)
    assert set(name.provenance) <= set("DSHU") and name.provenance
    if name.takes:
        parameters = inspect.signature(found).parameters
        assert set(name.takes) <= set(parameters), parameters
    assert name.check(found), f"{module}.{name.path}"


def test_no_name_is_listed_twice():
    paths = [(module, name.path) for module, name in NAMES]
    assert len(paths) == len(set(paths)) >= 100


def test_methods_of_tensors_modules_and_storages():
    assert torch.ones(2).neuron().is_neuron and torch.nn.Linear(2, 2).neuron().weight.device.type == "neuron"
    assert torch.ones(2).neuron().untyped_storage().is_neuron
    assert torch.ones(2).untyped_storage().neuron().device.type == "neuron"


def test_hooks_that_pytorch_asks():
    """Pinned memory, generators, autocast and storage: what libraries reach through torch itself."""
    assert torch.ones(2).pin_memory().is_pinned()
    assert torch.rand(2, device="neuron", generator=torch.Generator("neuron").manual_seed(1)).device.type == "neuron"
    with torch.autocast("neuron"):
        assert (torch.ones(2, 2, device="neuron") @ torch.ones(2, 2, device="neuron")).dtype == torch.bfloat16
    assert torch.ones(2, device="neuron").data_ptr() != 0
    assert torch.accelerator.current_accelerator().type == "neuron"
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    assert "neuron" in torch._dynamo.list_backends(exclude_tags=None)


# ---- graphs as files ------------------------------------------------------------------------------------------------


@pytest.fixture
def graph():
    exported = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(4, 3),)).run_decompositions()
    return exported.graph_module


def test_graphs_are_written_and_read(graph, tmp_path):
    from torch_neuronx import neuron_dynamo_backend as backend

    pytest.importorskip("torch_mlir")
    assert "addmm" in backend.save_fx_graph_txt(graph, tmp_path / "new" / "graph.fx.txt").read_text()
    assert "torch.aten.addmm" in backend.fx_to_mlir_string(graph)
    lowered = backend.save_fx_as_mlir(graph, tmp_path / "graph.stablehlo.mlir", output_type="stablehlo")
    assert "stablehlo.dot" in lowered.read_text()
    assert "stablehlo.dot" in str(backend.load_mlir(lowered))
    files = backend.save_fx_graph_all_formats(graph, tmp_path / "all", save_stablehlo_mlir=True)
    assert sorted(path.name for path in files.values()) == ["all.fx.txt", "all.raw.mlir", "all.stablehlo.mlir"]
    with pytest.raises(FileNotFoundError):
        backend.load_mlir(tmp_path / "none.mlir")


def test_mlir_without_torch_mlir_names_the_way_out(graph, monkeypatch):
    from torch_neuronx import neuron_dynamo_backend as backend

    from optimum_neuron_torch.emulator.compiler import stablehlo

    monkeypatch.setattr(stablehlo, "is_available", lambda: False)
    with pytest.raises(NotImplementedError, match="torch-mlir.*save_fx_graph_txt"):
        backend.fx_to_mlir_string(graph)


# ---- compiled graphs: records, tables, kept files -------------------------------------------------------------------


def compile_one(**options) -> None:
    compiled = torch.compile(lambda x: x * 3, backend="neuron", options={"executor": "aten", **options})
    compiled(torch.ones(3, device="neuron"))


def test_records_have_keys_and_attributes():
    import torch_neuronx
    from torch_neuronx import metrics, neuron_dynamo_backend

    neuron_dynamo_backend.reset_dynamo_metrics()
    compile_one(model_name="surface")
    (record,) = torch_neuronx.get_dynamo_metrics()
    assert record.model_name == record["model_name"] == "surface" and record.graph_id
    assert record.graph_name.startswith("surface_") and "_inference_" in record.graph_name
    with pytest.raises(AttributeError, match="no field 'speed'"):
        record.speed  # noqa: B018
    data = metrics.get_metric_data("torch_neuronx_lower_us")
    assert data["total_samples"] == 1 and data["accumulator"] == record.torch_neuronx_lower_us
    assert metrics.get_compilation_metrics()["torch_neuronx_lower_us"]["total_samples"] == 1
    assert "torch_neuronx_lower_us: 1 graphs" in metrics.report()
    neuron_dynamo_backend.reset_dynamo_metrics()
    assert metrics.get_metric_names() == []


def test_graphs_are_kept_where_the_environment_says(monkeypatch, tmp_path):
    kept = tmp_path / "kept"
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(kept))
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path / "first"))
    compile_one(model_name="thrown_away")
    assert not kept.exists()
    monkeypatch.setenv("TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS", "1")
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path / "second"))  # what comes from the cache is not compiled
    torch._dynamo.reset()
    compile_one(model_name="kept")
    (graph,) = kept.glob("fx_graphs/proc_0/kept_*.fx.txt")
    assert "mul" in graph.read_text()
    (lowered,) = kept.glob("stablehlo/proc_0/kept_*.stablehlo.mlir")
    assert "stablehlo.multiply" in lowered.read_text()


def test_table_of_graphs_is_written_at_exit(tmp_path):
    code = """
import torch
f = torch.compile(lambda x: x * 3, backend="neuron", options={"executor": "aten", "model_name": "table"})
f(torch.ones(3, device="neuron"))
"""
    variables = {"TORCH_NEURONX_ENABLED_METRIC_TABLES": "graph_stats", "TORCH_NEURONX_METRICS_DIR": str(tmp_path)}
    environ = {**os.environ, **variables, "OPTIMUM_NEURON_CACHE": str(tmp_path / "cache")}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    with (tmp_path / "metric_table_graph_stats_rank0.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["model_name"] == "table" and row["graph_node_count"] == "1"


# ---- environment variables ------------------------------------------------------------------------------------------


def test_every_known_variable_is_honoured_or_documented_as_ignored():
    assert environment.HONOURED | set(environment.IGNORED) == set(ENVIRONMENT)
    assert not environment.HONOURED & set(environment.IGNORED)
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert [name for name in ENVIRONMENT if f"`{name}`" not in page] == []


def test_honoured_variables_are_read_somewhere():
    sources = [path.read_text() for path in (ROOT / "optimum_neuron_torch" / "emulator").rglob("*.py")]
    sources = [source for source in sources if "IGNORED = {" not in source]
    assert [name for name in environment.HONOURED if not any(name in source for source in sources)] == []


def test_ignored_variables_are_named_once(monkeypatch, caplog):
    for name in environment.IGNORED:
        monkeypatch.delenv(name, raising=False)
    caplog.set_level(logging.INFO, logger="optimum_neuron_torch.emulator")
    autoload._name_ignored_variables()
    assert caplog.messages == []
    monkeypatch.setenv("NEURON_CC_FLAGS", "--model-type=transformer")
    monkeypatch.setenv("NEURON_LAUNCH_BLOCKING", "1")
    autoload._name_ignored_variables()
    (message,) = caplog.messages
    assert "NEURON_CC_FLAGS (there is no neuronx-cc)" in message and "NEURON_LAUNCH_BLOCKING" in message
