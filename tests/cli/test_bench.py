"""`bench` counts what it says: graphs, none of them in the second round, tokens, padding."""

import json

import pytest


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_bert"])
def test_figures(run_cli, request, kind):
    folder = request.getfixturevalue(kind)
    sizes = ("--sequence", "40", "--new-tokens", "3", "--calls", "3", "--batch", "2")
    figures = json.loads(run_cli("neuron", "bench", folder, *sizes, "--executor", "aten", "--json").out)
    assert figures["lengths"][0] == 40 and len(figures["lengths"]) == 3
    assert figures["graphs_compiled"] + figures["graphs_cached"] > 0
    assert figures["graphs_after_the_first_round"] == 0 and figures["departures"] == []
    assert 0 < figures["padded_share"] < 1
    assert min(figures[name] for name in ("tokens_per_second", "cpu_tokens_per_second", "seconds_first_round")) > 0
    assert figures["over_cpu"] == pytest.approx(figures["tokens_per_second"] / figures["cpu_tokens_per_second"])


def test_a_table(run_cli, tiny_bert):
    out = run_cli("neuron", "bench", tiny_bert, "--sequence", "8", "--calls", "1", "--executor", "aten").out
    assert [word for word in ("first round", "tokens/s", "padding") if word not in out] == []


def test_bad_input_is_a_message(run_cli, tiny_bert):
    outcome = run_cli("neuron", "bench", tiny_bert, "--calls", "0", "--sequence", "-1")
    assert outcome.code == 1 and "--sequence -1, --calls 0" in outcome.err
