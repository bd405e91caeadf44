"""`optimum-cli neuron kernels`."""

import json


def test_the_operators_are_listed_with_where_they_run(run_cli):
    outcome = run_cli("neuron", "kernels", "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert "in the simulator" in found["where"] and found["cores"] == 2
    assert "flash attention" in found["operators"]["optimum_neuron_torch::attention_kernel"]
    table = run_cli("neuron", "kernels").out
    assert all(name in table for name in found["operators"])


def test_without_nki_the_reason_is_said(run_cli, monkeypatch):
    monkeypatch.setattr("optimum_neuron_torch.runtime.why_no_kernels", lambda: "there is no `nki` to import")
    assert "nowhere: there is no `nki` to import" in run_cli("neuron", "kernels", "--json").out
