"""Manifests: merged over processes, read only where they are whole."""

import multiprocessing

import pytest
import torch

from optimum_neuron_torch.buckets.manifest import GraphEntry, Manifest, bucket_of


@pytest.fixture
def manifest(tmp_path, monkeypatch) -> Manifest:
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    return Manifest(torch.nn.Linear(2, 3))


def _add(manifest: Manifest, start: int) -> None:
    for size in range(start, start + 10):
        manifest.compiled(GraphEntry("forward", {"batch": size}, f"file{size}", "machine", 1, 2.0))


def test_processes_add_to_one_file(manifest):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_add, args=(manifest, start)) for start in range(0, 40, 10)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(bucket["batch"] for bucket in manifest.buckets("forward")) == list(range(40))


def test_a_graph_is_listed_once(manifest):
    entry = GraphEntry("forward", {"batch": 1}, "file", "machine", 1, 2.0)
    manifest.compiled(entry)
    manifest.loaded(entry)
    manifest.loaded(entry)
    (listed,) = manifest.graphs()
    assert listed.loads == 2 and listed.seconds == 2.0
    assert manifest.buckets("encode") == []


def test_another_machines_graphs_are_merged(manifest):
    mine = GraphEntry("forward", {"batch": 1}, "file", "machine", 1, 2.0, loads=3)
    manifest.compiled(mine)
    theirs = [GraphEntry("forward", {"batch": size}, "file", "machine", 1, 9.0) for size in (1, 2)]
    manifest.merge(theirs)
    assert sorted((entry.bucket["batch"], entry.loads) for entry in manifest.graphs()) == [(1, 3), (2, 0)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "graphs": [{"function": 1}]}'])
def test_what_cannot_be_read_starts_anew(manifest, text):
    manifest.path.parent.mkdir()
    manifest.path.write_text(text)
    assert manifest.graphs() == []
    _add(manifest, 0)
    assert len(manifest.graphs()) == 10


def test_one_manifest_for_all_weights_of_a_model(manifest):
    assert Manifest(torch.nn.Linear(2, 3)).path == manifest.path != Manifest(torch.nn.Linear(3, 2)).path


def test_the_bucket_of_a_key():
    assert bucket_of((("batch", 2), ("sequence", 32), (("input_ids",), ()), True, None)) == {
        "batch": 2,
        "sequence": 32,
    }
