"""`cache` counts what is there, and deletes compiled graphs only."""

import builtins
import io
import json
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compile cache with graphs for two torch versions, beside files that are not its own."""
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path / "cache"))
    for name, size in (("torch-2.13.0-aaaa", 1000), ("torch-2.14.0-bbbb", 2096)):
        file = tmp_path / "cache" / "graphs" / name / "aotautograd" / "entry"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * size)
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    return tmp_path / "cache"


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_list_names_each_folder(run_cli, cache):
    out = run_cli("neuron", "cache").out
    assert "torch-2.13.0-aaaa" in out and "torch-2.14.0-bbbb" in out
    assert "2.0 KiB" in out


def test_list_names_each_graph_of_a_model(run_cli, cache):
    graph = {
        "function": "decode", "bucket": {"batch": 1, "cache": 256}, "file": "key", "machine": "torch-2.14.0-bbbb",
        "size": 3072, "seconds": 12.34, "compiled": 1.0, "used": 2.0, "loads": 7,
    }  # fmt: skip
    (cache / "manifests").mkdir()
    listed = [graph, {**graph, "function": "prefill", "file": None, "machine": None}]
    (cache / "manifests" / "LlamaForCausalLM-abc.json").write_text(json.dumps({"format": 1, "graphs": listed}))
    (cache / "manifests" / "Broken-abc.json").write_text("{")
    (cache / "graphs" / "torch-2.14.0-bbbb" / "artifacts" / "key").mkdir(parents=True)
    lines = run_cli("neuron", "cache").out.splitlines()
    (decode,) = [line for line in lines if "decode" in line]
    assert all(part in decode for part in ("LlamaForCausalLM-abc", "batch 1, cache 256", "3.0 KiB", "12.3 s"))
    assert any("prefill" in line and " no " in line for line in lines)
    assert any("Broken-abc" in line and "cannot be read" in line for line in lines)
    run_cli("neuron", "cache", "clear", "--yes")
    assert not list((cache / "manifests").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export"], "needs a file"),
        (["export", "graphs.zip"], "no compiled graphs"),
        (["import", "graphs.zip"], "--trust"),
        (["import", "graphs.zip", "--trust"], "graphs.zip"),
    ],
)
def test_what_cannot_be_exchanged(run_cli, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path / "cache"))
    outcome = run_cli("neuron", "cache", *arguments)
    assert outcome.code == 1 and message in outcome.err


def test_size_adds_up(run_cli, cache):
    assert "3.0 KiB" in run_cli("neuron", "cache", "size").out


def test_clear_leaves_what_is_not_a_graph(run_cli, cache):
    assert run_cli("neuron", "cache", "clear", "--yes").code == 0
    assert _files(cache) == ["notes.txt"]
    assert "no compiled graphs" in run_cli("neuron", "cache").out


def test_clear_asks_first(run_cli, cache, monkeypatch):
    monkeypatch.setattr(builtins, "input", lambda prompt: "n")
    assert run_cli("neuron", "cache", "clear").code == 1
    assert len(_files(cache)) == 3


def test_clear_deletes_nothing_where_no_one_can_be_asked(run_cli, cache, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    outcome = run_cli("neuron", "cache", "clear")
    assert outcome.code == 1 and "--yes" in outcome.out
    assert len(_files(cache)) == 3


@pytest.mark.parametrize("link", ["graphs", "graphs/torch-2.13.0-aaaa"])
def test_clear_follows_no_link(run_cli, cache, tmp_path, link):
    elsewhere = tmp_path / "elsewhere"
    (cache / link).rename(elsewhere)
    (cache / link).symlink_to(elsewhere)
    kept = _files(elsewhere)
    run_cli("neuron", "cache", "clear", "--yes")
    assert _files(elsewhere) == kept


def test_missing_directory_is_no_error(run_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path / "nowhere"))
    for action in ("list", "size", "clear"):
        outcome = run_cli("neuron", "cache", action)
        assert outcome.code == 0
        assert "no compiled graphs" in outcome.out
