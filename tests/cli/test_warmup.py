"""`warmup` on the command line: what it looks up, what it compiles, and that another process then finds it."""

import json

import pytest

import optimum_neuron_torch as ont


BUCKETS = ("--batch", "1", "--sequence", "32", "64", "--executor", "aten")


def lookup(run_cli, folder: str, *options: str) -> list[dict]:
    return json.loads(run_cli("neuron", "warmup", folder, *BUCKETS, "--json", *options).out)


def test_a_lookup_a_warm_up_and_a_lookup(run_cli, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    before = ont.report()
    steps = lookup(run_cli, tiny_bert, "--dry-run")
    assert [(step["function"], step["bucket"], step["state"], step["seconds"]) for step in steps] == [
        ("encode", {"batch": 1, "sequence": size}, "missing", None) for size in (32, 64)
    ]
    assert ont.report().graphs == before.graphs
    outcome = run_cli("neuron", "warmup", tiny_bert, "--dry-run", *BUCKETS)
    assert outcome.code == 0 and "2 of 2 buckets are missing" in outcome.out
    outcome = run_cli("neuron", "warmup", tiny_bert, *BUCKETS)
    assert outcome.code == 0 and outcome.out.count("compiled") == 2 and "missing" not in outcome.out
    steps = lookup(run_cli, tiny_bert, "--dry-run")
    assert [step["state"] for step in steps] == ["cached"] * 2 and all(step["seconds"] > 0 for step in steps)
    assert [step["state"] for step in lookup(run_cli, tiny_bert)] == ["loaded"] * 2
    assert [step["state"] for step in lookup(run_cli, tiny_bert, "--dry-run", "--dtype", "bfloat16")] == [
        "missing"
    ] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dtype", "bfloat17"), "bfloat17"),
        (("--sequence", "512"), "sequence 512"),
        (("--batch", "0"), "'batch'"),
    ],
)
def test_bad_input_is_a_message(run_cli, tiny_bert, tmp_path, options, message):
    ont.NeuronConfig(buckets=ont.Buckets(batch=[1], sequence=[32])).save_pretrained(tmp_path)
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(f"{tiny_bert}/{file}")
    outcome = run_cli("neuron", "warmup", str(tmp_path), "--dry-run", *options)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("optimum-cli neuron warmup: ") and message in outcome.err


def test_a_folder_without_a_model_is_a_message(run_cli, tmp_path):
    outcome = run_cli("neuron", "warmup", str(tmp_path))
    assert outcome.code == 1 and str(tmp_path) in outcome.err
