"""PyTorch's own tables on the device: each check has the outcome that docs/reference/conformance.json records.

The names come from the records, since PyTorch's tables take seconds to load. By default a sample of the checks runs.
"""

import pytest
import torch

from tests.conformance.document import Records
from tests.conformance.outcome import Outcome, Status
from tests.conformance.tables import TABLES


RECORDS = Records.read()
# One check in so many runs by default.
EVERY = {"operators": 41, "modules": 7, "optimizers": 4}

CHECKS = [
    (table, entry, column)
    for table in TABLES
    for entry in RECORDS.tables[table]
    for column in TABLES[table].columns
    if RECORDS.get(table, entry, column).status is not Status.NONE
]


def _parameters() -> list:
    seen = dict.fromkeys(TABLES, 0)
    parameters = []
    for table, entry, column in CHECKS:
        is_sampled = seen[table] % EVERY[table] == 0
        seen[table] += 1
        marks = [] if is_sampled else [pytest.mark.slow]
        parameters.append(pytest.param(table, entry, column, marks=marks, id=f"{table}-{entry}-{column}"))
    return parameters


def _is_recorded_torch() -> bool:
    return torch.__version__.split("+")[0] == RECORDS.torch


@pytest.mark.parametrize(("table", "entry", "column"), _parameters())
def test_outcome_is_the_recorded_one(table, entry, column):
    if not _is_recorded_torch() and entry not in TABLES[table].entries():
        pytest.skip(f"this PyTorch has no entry {entry}")
    recorded = RECORDS.get(table, entry, column)
    found = TABLES[table].check(entry, column)
    # The reasons of failures have numbers in them that another machine may have otherwise.
    assert found.status is recorded.status, found.reason


@pytest.mark.parametrize("table", TABLES)
def test_all_entries_are_recorded(table):
    """In every column, and nothing that PyTorch no longer has."""
    if not _is_recorded_torch():
        pytest.skip(f"the records are of PyTorch {RECORDS.torch}")
    assert sorted(RECORDS.tables[table]) == sorted(TABLES[table].entries())
    assert {tuple(sorted(columns)) for columns in RECORDS.tables[table].values()} == {
        tuple(sorted(TABLES[table].columns))
    }


def test_nothing_failed_when_recorded():
    assert {check: RECORDS.get(*check).reason for check in CHECKS if RECORDS.get(*check).status is Status.FAILED} == {}


def test_outcomes_are_read_as_written():
    records = Records("0", {})
    for outcome in (Outcome(Status.PASSED), Outcome(Status.REFUSED, "sparse")):
        records.put("operators", "op", "float32", outcome)
        assert records.get("operators", "op", "float32") == outcome
