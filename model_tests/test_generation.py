"""generate() in buckets against the CPU: a sample in every test run, everything in the slow one; the page."""

import pytest
import torch
from transformers.modeling_outputs import ModelOutput

from model_tests.generation import classes, matrix, tiny
from model_tests.generation.additions import ADDITIONS
from model_tests.generation.compare import differences
from model_tests.generation.document import GenerationRecords
from model_tests.generation.outcome import EQUAL, Outcome
from model_tests.generation.worker import check, check_apart, sections_by_name


# A sliding window, a latent cache, a recurrent state, an encoder-decoder.
SAMPLE = ("MistralForCausalLM", "DeepseekV3ForCausalLM", "Mamba2ForCausalLM", "T5ForConditionalGeneration")


@pytest.mark.parametrize("name", SAMPLE)
def test_sample_is_equal_and_static(name, fresh_cache):
    outcome = check(name)
    assert outcome.is_static, outcome


def recorded() -> dict[str, Outcome]:
    records = GenerationRecords.read()
    outcomes = {name: records.get(section, name) for name, section in sections_by_name().items()}
    return {name: outcome for name, outcome in outcomes.items() if outcome is not None}


def test_nothing_is_wrong():
    assert [name for name, outcome in recorded().items() if outcome.is_wrong] == []


@pytest.mark.slow
def test_everything_is_recorded():
    assert sections_by_name().keys() - recorded().keys() == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in sections_by_name() if name not in SAMPLE])
def test_outcome_is_the_recorded_one(name):
    outcome = check_apart(name)
    found, expected = (
        {cell_name: (cell.state, cell.graphs, cell.grown) for cell_name, cell in which.cells.items()}
        for which in (outcome, recorded()[name])
    )
    assert found == expected, outcome


@pytest.mark.slow
def test_a_check_that_fails_is_an_outcome():
    outcome = check_apart("no such class")
    assert outcome.is_wrong
    assert "KeyError" in outcome.cells["single"].reason


def test_page_is_printed_from_the_records():
    assert GenerationRecords.page_path().read_text() == GenerationRecords.read().page()


def test_records_are_as_the_runner_writes_them():
    assert GenerationRecords.PATH.read_text() == GenerationRecords.read().text()


def output(tokens: list[int], scores: list[list[float]]) -> ModelOutput:
    """What generate() returns for a prompt of two tokens: one row of scores for each new token."""
    steps = tuple(torch.tensor([row]) for row in scores)
    return ModelOutput(sequences=torch.tensor([[1, 1, *tokens]]), scores=steps, logits=steps)


SCORES = [[0.0, 1.0, 2.0], [3.0, 1.0, 2.0]]


def test_rounding_is_no_difference():
    assert differences(output([2, 0], [[0.0, 1.0, 2.00001], SCORES[1]]), output([2, 0], SCORES))[1] == ""


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (output([2, 1], SCORES), "token 1 differs"),
        (output([2], SCORES[:1]), "sequences of shape"),
        (output([2, 0], [[0.0, 1.0, 2.001], SCORES[1]]), "step logits differ"),
        (output([2, 0], [SCORES[0], [float("nan"), 1.0, 2.0]]), "step logits differ"),
    ],
)
def test_differences_are_seen(found, problem):
    assert differences(found, output([2, 0], SCORES))[1].startswith(problem)


def test_near_ties_may_swap_and_what_follows_is_not_compared():
    tie = [[0.0, 2.0, 2.0], SCORES[1]]
    swapped = output([1, 0], [[0.0, 2.000001, 2.0], [-7.0, 9.0, 0.0]])
    assert differences(swapped, output([2, 0], tie))[1] == ""


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "qwen3_next", "bart"])
def test_tiny_configurations_have_a_layer_of_each_kind(model_type):
    entry = next(entry for entry in classes.every().values() if entry.model_type == model_type)
    config = tiny.tiny_config(entry.config_class, **ADDITIONS.get(model_type, {}))
    assert config.vocab_size <= tiny.VOCABULARY
    assert 2 <= config.num_hidden_layers <= tiny.MOST_LAYERS
    kinds = getattr(entry.config_class(), "layer_types", None) or []
    assert set(getattr(config, "layer_types", None) or []) == set(kinds)


def test_matrix_has_the_promised_size():
    assert len(matrix.SECTIONS["decoders"]) == 25
    assert len(matrix.SECTIONS["inductor"]) == 5
    assert len(matrix.STRATEGIES) == 5


def test_outcome_survives_json():
    outcome = Outcome(cells={}, unmade="too large")
    assert Outcome.from_dict({"cells": {}, "unmade": "too large", "window": None, "seconds": 0.0}) == outcome
    assert outcome.state != EQUAL
