"""`env` tells the truth about this process, and answers where there is no device."""

import json
import platform

import pytest
import torch
import transformers

from optimum_neuron_torch import runtime


def test_json_agrees_with_this_process(run_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    (tmp_path / "file").write_bytes(b"x" * 1000)
    facts = json.loads(run_cli("neuron", "env", "--json").out)
    assert facts["python"] == platform.python_version()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["versions"]["transformers"] == transformers.__version__
    assert facts["cache"] == {"directory": str(tmp_path), "bytes": 1000}
    assert facts["variables"]["OPTIMUM_NEURON_CACHE"] == str(tmp_path)


@pytest.mark.skipif(not runtime.is_available(), reason="no neuron device in this process")
def test_device_agrees_with_torch(run_cli):
    device = json.loads(run_cli("neuron", "env", "--json").out)["device"]
    assert device["available"]
    assert device["kind"] == ("emulated" if runtime.is_emulated() else "native")
    assert device["logical_cores"] == torch.neuron.device_count()
    # The emulated limit is what the host can give, at most a real core's memory.
    assert (
        0 < device["hbm_free_bytes"] <= device["hbm_limit_bytes"] <= torch.neuron.get_device_properties(0).total_memory
    )


def test_without_device_says_why(run_cli, monkeypatch):
    monkeypatch.setattr(runtime, "is_available", lambda: False)
    device = json.loads(run_cli("neuron", "env", "--json").out)["device"]
    assert not device["available"]
    assert device["reason"]


def test_table_shows_what_json_has(run_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    table = run_cli("neuron", "env").out
    assert torch.__version__ in table
    assert "cache" in table
