"""Compiled functions are stored and loaded: by another object, another process, and after what a user may change."""

import json
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, BertModel

import optimum_neuron_torch as ont
from tests.tiny_models import TINY


CONFIG = ont.NeuronConfig(verify=False, options={"executor": "aten", "lowering": "off"})
IDS = torch.arange(5, 16)[None]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(path: str, change=None) -> ont.Report:
    """Encode with a fresh object, compared with the CPU; `change` is made to both before."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return _run(path, change)


def _run(path: str, change=None) -> ont.Report:
    host = AutoModel.from_pretrained(path)
    model = AutoModel.from_pretrained(path, device_map="neuron", neuron_config=CONFIG)
    for each in (host, model):
        if change is not None:
            change(each)
    with torch.no_grad():
        expected = host(IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state
        found = model(IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5)
    return ont.report(model)


def artifacts(cache: Path) -> list[Path]:
    return [path for path in cache.glob("graphs/*/artifacts/*/*") if not path.name.startswith(".")]


def test_another_object_loads_what_one_compiled(cache, tiny_bert):
    first, second = run(tiny_bert), run(tiny_bert)
    assert (first.graphs, first.cached) == (1, 0)
    assert (second.graphs, second.cached) == (0, 1)
    assert second.times["trace"] == second.times["lower"] == second.times["compile"] == 0 < second.times["load"]
    assert len(artifacts(cache)) == 1


PROGRAM = textwrap.dedent(
    """
    import json, sys, torch
    from transformers import AutoModelForCausalLM
    import optimum_neuron_torch as ont
    config = ont.NeuronConfig(verify=False, options={"executor": "aten", "lowering": "off"})
    host = AutoModelForCausalLM.from_pretrained(sys.argv[1])
    torch.manual_seed(int(sys.argv[2]))
    with torch.no_grad():
        for parameter in host.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], device_map="neuron", neuron_config=config)
    model.load_state_dict(host.state_dict())
    ids = torch.arange(5, 14)[None]
    same = torch.equal(model.generate(ids, max_new_tokens=5).cpu(), host.generate(ids, max_new_tokens=5))
    for each in (host, model):
        each(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.square().mean().backward()
    grads = [each.model.layers[0].mlp.up_proj.weight.grad.cpu() for each in (host, model)]
    report = ont.report(model)
    print(json.dumps({"same": same, "grads": torch.allclose(*grads, atol=1e-6), "graphs": report.graphs,
                      "cached": report.cached, "names": report.graph_names}))
    """
)


def test_another_process_compiles_nothing(cache, tiny_llama, tmp_path):
    """In another directory, with another hash seed and other weights: generation and a backward pass."""
    results = []
    for seed in (1, 2):
        directory = tmp_path / f"process{seed}"
        directory.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", PROGRAM, tiny_llama, str(seed)]
        output = subprocess.run(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=250
        )
        results.append(json.loads(output.stdout.splitlines()[-1]))
    assert all(result["same"] and result["grads"] for result in results)
    assert (results[0]["graphs"], results[0]["cached"]) == (4, 0)
    assert (results[1]["graphs"], results[1]["cached"]) == (0, 4)


def test_what_a_user_changed_before_is_in_the_key(cache, tiny_bert):
    """tests/buckets/test_state.py has a list of such changes."""
    run(tiny_bert)
    for expected in ((1, 0), (0, 1)):
        changed = run(tiny_bert, lambda m: m.resize_token_embeddings(400))
        assert (changed.graphs, changed.cached) == expected


def test_what_a_user_changes_between_calls_is_noticed(cache, tiny_llama):
    """The guards are gone: the state of the module has to tell."""
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=CONFIG)
    host = AutoModelForCausalLM.from_pretrained(tiny_llama)

    def compare():
        with torch.no_grad():
            found, expected = (each(IDS, use_cache=False).logits.cpu() for each in (model, host))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    compare()
    for change in (
        lambda m: setattr(m.model.norm, "variance_epsilon", 10.0),
        lambda m: setattr(m.model.norm, "weight", torch.nn.Parameter(2 * m.model.norm.weight)),
    ):
        for each in (model, host):
            change(each)
        compare()
    # Weights are inputs: the second change is no new graph.
    assert ont.report(model).graphs == 2


def test_a_damaged_file_is_compiled_anew_with_a_warning(cache, tiny_bert):
    run(tiny_bert)
    (path,) = artifacts(cache)
    path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    with pytest.warns(RuntimeWarning, match="compiled anew.*does not match its digest"):
        _run(tiny_bert)
    assert run(tiny_bert).cached == 1


def test_a_function_traced_from_other_sources_is_not_used(cache, tiny_bert, monkeypatch):
    """Silently: it is no damage."""
    from optimum_neuron_torch.buckets import sources

    run(tiny_bert)
    stock = sources._digest_of_module
    monkeypatch.setattr(
        sources, "_digest_of_module", lambda name: "edited" if name.endswith("modeling_bert") else stock(name)
    )
    changed = run(tiny_bert)
    # Dynamo traces again; what it traced is the same, so that AOTAutograd's result is there.
    assert changed.times["trace"] > 0 and len(artifacts(cache)) == 2


def test_a_function_for_other_arguments_is_refused_and_compiled_anew(cache, tiny_bert, monkeypatch):
    """Two calls that the key takes for one: the guards of the first do not let the second in."""
    from optimum_neuron_torch.buckets import aot, stored

    loads, load = [], aot.load
    monkeypatch.setattr(stored, "artifact_key", lambda *args: "the same for all")
    monkeypatch.setattr(aot, "load", lambda data: loads.append(len(data)) or load(data))
    run(tiny_bert)
    changed = run(tiny_bert, lambda m: setattr(m.encoder.layer[0].attention.self, "scaling", 0.5))
    assert changed.graphs == 1 and len(loads) == 1
    assert len(artifacts(cache)) == 2


def test_a_class_that_another_process_cannot_import_is_compiled_as_ever(cache, caplog):
    class LocalBert(BertModel):
        pass

    torch.manual_seed(0)
    host = LocalBert(BertConfig(**{**TINY, "num_hidden_layers": 1})).eval()
    with torch.no_grad():
        expected = host(IDS).last_hidden_state
        model = ont.prepare(host.to("neuron"), CONFIG)
        with caplog.at_level("INFO", logger="optimum_neuron_torch"):
            found = [model(ids).last_hidden_state.cpu() for ids in (IDS, IDS.expand(2, -1))]
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-5)
    assert not artifacts(cache)
    told = [record.message for record in caplog.records if "are not stored" in record.message]
    assert len(told) == 1 and "LocalBert" in told[0]


def test_without_a_directory_to_trust_nothing_is_stored(cache, tiny_bert):
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="writable by others"):
        assert _run(tiny_bert).graphs == 1
    assert not list(cache.rglob("*"))[2:]  # two empty folders, made before the look at their owner
