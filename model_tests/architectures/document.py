"""What was recorded, and the page of the documentation printed from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from model_tests.architectures.outcome import Outcome, Step
from model_tests.architectures.tables import FAMILIES
from model_tests.records import REFERENCE, Records, item


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


class ArchitectureRecords(Records):
    """Outcomes by family and architecture."""

    PATH = REFERENCE / "architectures.json"
    SECTIONS = FAMILIES
    LIBRARIES = ("torch", "transformers", "diffusers", "torch-mlir", "jaxlib")
    OUTCOME = Outcome

    def page(self) -> str:
        by_family = {family: self.outcomes(family) for family in FAMILIES}
        parts = [INTRODUCTION.format(versions=self.printed_versions()), *_totals(by_family)]
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
    lines = [item(f"{', '.join(names)}: {reason}") for reason, names in by_reason.items()]
    return [*lines, ""] if lines else []
