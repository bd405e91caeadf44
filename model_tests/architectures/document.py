"""What was recorded, and the page of the documentation printed from it. The page is never edited by hand."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model_tests.architectures.outcome import Outcome, Step
from model_tests.architectures.tables import FAMILIES


RECORDS = Path(__file__).parents[2] / "docs" / "reference" / "architectures.json"
PAGE = RECORDS.with_suffix(".md")
LIBRARIES = ("torch", "transformers", "diffusers", "torch-mlir", "jaxlib")
WIDTH = 119

INTRODUCTION = """\
# Architectures through the compiler

Each architecture with a tiny random configuration, compiled for `neuron` as one graph (`fullgraph=True`), lowered to
StableHLO, and run by XLA on the CPU (`executor="xla"`): what is compared is what the lowered graph means,
independently of PyTorch's kernels.
Found with {versions}. This page is printed by

    make coverage

from `architectures.json` beside it, which the same command records. `ARGS="Llama BERT"` repeats only these.

* *lowered*: every graph became StableHLO, without a fallback.
* *equal*: every result is that of eager PyTorch on the CPU at float32: the largest difference is at most 1e-5 of the
  largest magnitude of its tensor; integers are equal; buffers afterwards too.
* *training*: the same for the gradients of one training step, forward and backward graph. A gradient that is small
  beside the model's largest counts as at least 1 % of it.
* *nodes*: operators of the graph for inference.
"""


class Records:
    """Outcomes by family and architecture, and the versions they were found with."""

    def __init__(self, versions: dict[str, str], families: dict[str, dict[str, dict[str, Any]]]) -> None:
        self.versions = versions
        self.families = families

    @classmethod
    def read(cls) -> Records:
        return cls(**json.loads(RECORDS.read_text())) if RECORDS.exists() else cls({}, {})

    def write(self) -> None:
        self.versions = {name: importlib.metadata.version(name).split("+")[0] for name in LIBRARIES}
        self.write_page()

    def write_page(self) -> None:
        RECORDS.write_text(self.text())
        PAGE.write_text(page(self))

    def text(self) -> str:
        """JSON with a line for each architecture, so that differences can be read."""
        families = []
        for family in FAMILIES:
            entries = self.families.get(family, {}).items()
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in entries)
            families.append(f' "{family}": {{\n{lines}\n }}')
        return f'{{"versions": {json.dumps(self.versions)}, "families": {{\n' + ",\n".join(families) + "\n}}\n"

    def get(self, family: str, name: str) -> Outcome | None:
        values = self.families.get(family, {}).get(name)
        return Outcome.from_dict(values) if values else None

    def put(self, family: str, name: str, outcome: Outcome) -> None:
        self.families.setdefault(family, {})[name] = dataclasses.asdict(outcome)

    def keep_only(self, known: Mapping[str, str]) -> None:
        """Forget architectures that the tables no longer have; `known` is the family by name, in order."""
        kept: dict[str, dict[str, Any]] = {family: {} for family in FAMILIES}
        for name, family in known.items():
            if name in self.families.get(family, {}):
                kept[family][name] = self.families[family][name]
        self.families = kept

    def outcomes(self, family: str) -> dict[str, Outcome]:
        return {name: Outcome.from_dict(values) for name, values in self.families.get(family, {}).items()}


def page(records: Records) -> str:
    """The documentation's page for these records."""
    versions = ", ".join(f"{name} {version}" for name, version in records.versions.items())
    by_family = {family: records.outcomes(family) for family in FAMILIES}
    parts = [INTRODUCTION.format(versions=versions), *_totals(by_family)]
    for family, outcomes in by_family.items():
        if outcomes:
            parts += [f"## {FAMILIES[family]}\n", *_table(outcomes), *_reasons(outcomes)]
    return "\n".join(parts)


def _totals(by_family: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    yield "| | architectures | lowered | equal | training compared | training equal |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    everything = [outcome for outcomes in by_family.values() for outcome in outcomes.values()]
    rows = [(FAMILIES[family], list(outcomes.values())) for family, outcomes in by_family.items() if outcomes]
    for title, outcomes in [*rows, ("all", everything)]:
        trained = [outcome.training for outcome in outcomes if outcome.training]
        counts = (
            len(outcomes),
            sum(outcome.inference.lowered for outcome in outcomes),
            sum(outcome.inference.lowered and outcome.inference.equal for outcome in outcomes),
            len(trained),
            sum(step.lowered and step.equal for step in trained),
        )
        yield f"| {title} | " + " | ".join(map(str, counts)) + " |"
    yield ""


def _table(outcomes: dict[str, Outcome]) -> Iterator[str]:
    yield "| | nodes | lowered | equal | largest difference | training | largest difference |"
    yield "| --- | ---: | --- | --- | ---: | --- | ---: |"
    for name, outcome in outcomes.items():
        step, training = outcome.inference, outcome.training
        cells = [name, str(step.nodes or ""), _yes(step.lowered), _yes(step.equal), _figure(step)]
        cells += [_yes(training.lowered and training.equal), _figure(training)] if training else ["", ""]
        yield "| " + " | ".join(cells) + " |"
    yield ""


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def _figure(step: Step) -> str:
    return "" if step.difference is None else f"{step.difference:.1e}"


def _reasons(outcomes: dict[str, Outcome]) -> list[str]:
    """What was not lowered or not equal, those with one reason in one line."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, outcome in outcomes.items():
        for kind, step in (("", outcome.inference), (" (training)", outcome.training)):
            if step is not None and step.reason:
                by_reason[step.reason].append(f"{name}{kind}")
    lines = [_item(f"{', '.join(names)}: {reason}") for reason, names in by_reason.items()]
    return [*lines, ""] if lines else []


def _item(text: str) -> str:
    return textwrap.fill(f"* {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
