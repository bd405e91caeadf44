"""What was recorded of generation, and the page of the documentation printed from it."""

from __future__ import annotations

from model_tests.generation import matrix
from model_tests.generation.classes import KINDS
from model_tests.generation.outcome import Outcome
from model_tests.records import REFERENCE, Records


class GenerationRecords(Records):
    """Outcomes of the sweep by kind and class."""

    PATH = REFERENCE / "generation.json"
    SECTIONS = {**matrix.TITLES, **KINDS}
    LIBRARIES = ("torch", "transformers")
    OUTCOME = Outcome

    def page(self) -> str:
        return "# Generation in buckets\n"
