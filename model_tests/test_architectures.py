"""The tables of architectures: a sample in every test run, all of them in the slow one; the page made from them."""

import pytest
import torch

from model_tests.architectures.check import TOLERANCE, check, largest_difference
from model_tests.architectures.document import ArchitectureRecords
from model_tests.architectures.tables import every, find
from model_tests.architectures.worker import check_apart


SAMPLE = ("Llama", "FNet", "Mamba, decoding step")


@pytest.mark.parametrize("name", SAMPLE)
def test_sample_is_lowered_and_equal(name, fresh_cache):
    outcome = check(find(name))
    assert outcome.passed, outcome


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in every() if name not in SAMPLE])
def test_outcome_is_the_recorded_one(name):
    family, _ = every()[name]
    recorded, outcome = ArchitectureRecords.read().get(family, name), check_apart(name)
    assert recorded is not None, "not recorded: make coverage"
    found, expected = (
        [(step.lowered, step.equal, step.graphs) for step in which.steps] for which in (outcome, recorded)
    )
    assert found == expected, outcome


def test_everything_is_recorded():
    records = ArchitectureRecords.read()
    assert [name for name, (family, _) in every().items() if records.get(family, name) is None] == []


def test_what_is_known_to_fail_does():
    records = ArchitectureRecords.read()
    known = {name: records.get(family, name) for name, (family, architecture) in every().items() if architecture.known}
    assert [name for name, outcome in known.items() if outcome is not None and outcome.passed] == []


@pytest.mark.slow
def test_a_check_that_fails_is_an_outcome():
    outcome = check_apart("no such architecture")
    assert not outcome.passed
    assert "KeyError" in outcome.inference.reason


def test_page_is_printed_from_the_records():
    assert ArchitectureRecords.page_path().read_text() == ArchitectureRecords.read().page()


def test_records_are_as_the_runner_writes_them():
    assert ArchitectureRecords.PATH.read_text() == ArchitectureRecords.read().text()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (torch.tensor([1.0, 100.1]), torch.tensor([1.0, 100.0])),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, float("-inf")])),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.ones(2), torch.ones(2, 1)),
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.full((2,), 1e-9), torch.zeros(2)),
    ],
)
def test_differences_are_seen(found, expected):
    assert largest_difference([found], [expected]) > TOLERANCE


def test_rounding_and_equal_nan_are_no_difference():
    expected = torch.tensor([float("nan"), float("-inf"), 1.0, 1000.0])
    assert largest_difference([expected + 1e-3], [expected]) <= TOLERANCE
    assert largest_difference([expected.clone()], [expected]) == 0.0
