"""Models with their kernels in the simulator against the CPU: a sample in every test run, all in the slow one."""

import pytest

from model_tests.kernels.document import KernelRecords
from model_tests.kernels.outcome import EQUAL, PLAIN, Outcome
from model_tests.kernels.worker import check, check_apart, sections_by_name


# Grouped queries; scores with a cap, and windows; sinks; an encoder; a diffusion transformer.
SAMPLE = ("Llama", "Gemma 2", "ViT")


@pytest.mark.parametrize("name", SAMPLE)
def test_sample_is_equal_and_runs_kernels(name, fresh_cache):
    outcome = check(name)
    assert outcome.runs_kernels, outcome
    assert not outcome.is_wrong
    assert all("flash_attention_kernel" in cell.kernels for cell in outcome.cells.values())


def recorded() -> dict[str, Outcome]:
    records = KernelRecords.read()
    outcomes = {name: records.get(section, name) for name, section in sections_by_name().items()}
    return {name: outcome for name, outcome in outcomes.items() if outcome is not None}


def test_nothing_is_wrong():
    assert [name for name, outcome in recorded().items() if outcome.is_wrong] == []


def test_what_runs_no_kernel_says_why():
    cells = [cell for outcome in recorded().values() for cell in outcome.cells.values()]
    assert all(cell.kernels for cell in cells if cell.state == EQUAL)
    assert all(cell.reason for cell in cells if cell.state == PLAIN)


@pytest.mark.slow
def test_everything_is_recorded():
    assert sections_by_name().keys() - recorded().keys() == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in sections_by_name() if name not in SAMPLE])
def test_outcome_is_the_recorded_one(name):
    found, expected = (
        {cell_name: (cell.state, cell.kernels, cell.graphs, cell.breaks) for cell_name, cell in which.cells.items()}
        for which in (check_apart(name), recorded()[name])
    )
    assert found == expected


def test_page_is_printed_from_the_records():
    assert KernelRecords.page_path().read_text() == KernelRecords.read().page()
