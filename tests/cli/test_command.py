"""The verbs are found by `optimum-cli`, and those that are not there yet say so."""

import os
import sys

import pytest

from optimum_neuron_torch import runtime
from optimum_neuron_torch.cli.command import VERBS
from optimum_neuron_torch.cli.model import check_model


def test_help_lists_all_verbs(run_cli):
    outcome = run_cli("neuron", "--help")
    assert outcome.code == 0
    assert [verb.COMMAND.name for verb in VERBS if verb.COMMAND.name not in outcome.out] == []


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.COMMAND.name)
def test_each_verb_has_help(run_cli, verb):
    outcome = run_cli("neuron", verb.COMMAND.name, "--help")
    assert outcome.code == 0
    assert verb.COMMAND.name in outcome.out


def test_missing_device_is_a_message(run_cli, monkeypatch):
    monkeypatch.setattr(runtime, "is_available", lambda: False)
    outcome = run_cli("neuron", "selftest")
    assert outcome.code == 1
    assert outcome.err.startswith("optimum-cli neuron selftest: ")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("line", ["kernels", "kernels --json", "env", "plan --limits 1 512", "cache"])
def test_a_reader_that_goes_ends_a_verb_quietly(run_cli, monkeypatch, line):
    """As it ends Unix tools, whether rich or Python writes."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        outcome = run_cli("neuron", *line.split())
        monkeypatch.undo()
    assert (outcome.code, outcome.err) == (141, "")


def test_a_broken_pipe_that_is_not_the_outputs_is_a_message(run_cli, monkeypatch):
    def broken(self):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("optimum_neuron_torch.cli.kernels.KernelsCommand.execute", broken)
    outcome = run_cli("neuron", "kernels")
    assert outcome.code == 1 and "Broken pipe" in outcome.err


@pytest.mark.parametrize("verb", ["check", "warmup", "bench"])
@pytest.mark.parametrize("given", ["/missing", "./missing", "a/b/c"])
def test_a_folder_that_does_not_exist_is_named(run_cli, verb, given):
    outcome = run_cli("neuron", verb, given)
    assert outcome.code == 1
    assert f"{given} does not exist: expected the folder of a saved model" in outcome.err


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.2-1B"])
def test_names_on_the_hub_are_left_to_it(name):
    check_model(name)
