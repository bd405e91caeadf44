"""The verbs are found by `optimum-cli`, and those that are not there yet say so."""

import pytest

from optimum_neuron_torch import runtime
from optimum_neuron_torch.cli.command import VERBS


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
