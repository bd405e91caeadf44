"""`selftest` passes on a device that computes what the CPU does, and fails on one that does not."""

import pytest
import torch

from optimum_neuron_torch import runtime
from optimum_neuron_torch.cli import selftest


pytestmark = pytest.mark.skipif(not runtime.is_available(), reason="no neuron device in this process")
CHECKS = ("eager op", "training step", "encoder, bucketed", "generate(), bucketed")


@pytest.mark.slow
def test_passes(run_cli):
    outcome = run_cli("neuron", "selftest")
    assert outcome.code == 0, outcome.out
    assert [name for name in CHECKS if f"passed  {name}" not in outcome.out] == []


def test_one_failure_fails_and_the_others_still_run(run_cli, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(selftest, "_check_eager", broken)
    for name in ("_check_training", "_check_encoder", "_check_generation"):
        monkeypatch.setattr(selftest, name, lambda *arguments: "fine")
    outcome = run_cli("neuron", "selftest")
    assert outcome.code == 1
    assert "FAILED  eager op" in outcome.out
    assert "RuntimeError: the device is on fire" in outcome.out
    assert outcome.out.count("passed") == 3


@pytest.mark.parametrize("error", [1e-3, float("nan")])
def test_wrong_numbers_are_found(error):
    with pytest.raises(ValueError, match="differs from the CPU"):
        selftest._compare(torch.ones(3) + error, torch.ones(3))
