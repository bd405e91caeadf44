"""What was recorded of models with kernels, and the page of the documentation printed from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from model_tests.kernels.outcome import DIFFERS, EQUAL, FAILED, PLAIN, Cell, Outcome
from model_tests.kernels.rows import SECTIONS
from model_tests.records import REFERENCE, Records, item


INTRODUCTION = """\
# Models with NKI kernels, against PyTorch's attention

Architectures with tiny random configurations, prepared with `NeuronConfig(nki="simulate")`: their kernels run in the
NKI simulator, for {chip}, and what comes out is compared with the same model with attention "sdpa" on the CPU.
Found with {versions}. This page is printed by

    make parity-kernels

from `kernels.json` beside it, which the same command records. `ARGS="Llama BERT"` repeats only these.

* *float32*: the outputs of a padded call in evaluation, as graphs (executor `aten`); *gradients*: of a training step,
  eagerly. Equal is within 1e-5 of the largest magnitude of each tensor; the gradient of one that is small beside the
  model's largest counts as at least 1 % of it.
* *bfloat16*: the mean distance from the result at float32, over that of the CPU's bfloat16: 1.5 at most.
* **equal**: and a kernel of attention ran, as the simulator's own list of runs says. *plain*: the results are right
  and none ran, for the reason listed.
"""
COLUMNS = ("float32", "float32 gradients", "bfloat16", "bfloat16 gradients")
_PRINTED = {EQUAL: "equal", PLAIN: "*plain*", DIFFERS: "**differs**", FAILED: "**raises**"}


class KernelRecords(Records):
    """Outcomes by section and name."""

    PATH = REFERENCE / "kernels.json"
    SECTIONS = SECTIONS
    LIBRARIES = ("torch", "transformers", "diffusers")
    OUTCOME = Outcome

    def page(self) -> str:
        by_section = {section: self.outcomes(section) for section in SECTIONS}
        parts = [INTRODUCTION.format(versions=self.printed_versions(), chip="Trainium2"), *_totals(by_section)]
        for section, outcomes in by_section.items():
            if outcomes:
                parts += [f"## {SECTIONS[section]}\n", *_table(outcomes), *_reasons(outcomes)]
        return "\n".join(parts)


def _totals(by_section: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    yield "| | models | all calls equal | some plain | differ or raise | graph breaks |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for section, outcomes in by_section.items():
        wrong = sum(outcome.is_wrong for outcome in outcomes.values())
        equal = sum(outcome.runs_kernels for outcome in outcomes.values())
        breaks = sum(cell.breaks for outcome in outcomes.values() for cell in outcome.cells.values())
        counts = (len(outcomes), equal, len(outcomes) - equal - wrong, wrong, breaks)
        yield f"| {SECTIONS[section]} | " + " | ".join(map(str, counts)) + " |"
    yield ""


def _table(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    yield "| | " + " | ".join(COLUMNS) + " | graphs | kernels, and how often they ran |"
    yield "| --- |" + " --- |" * len(COLUMNS) + " ---: | --- |"
    for name, outcome in outcomes.items():
        cells = [_printed(column, outcome.cells.get(column)) for column in COLUMNS]
        graphs = sum(cell.graphs for cell in outcome.cells.values())
        yield f"| {name} | " + " | ".join(cells) + f" | {graphs} | {_kernels(outcome)} |"
    yield ""


def _printed(column: str, cell: Cell | None) -> str:
    if cell is None:
        return ""
    figure = "" if cell.difference is None else f"{cell.difference:.2g}"
    return f"{_PRINTED[cell.state]} {figure}".strip()


def _kernels(outcome: Outcome) -> str:
    counts: Counter[str] = Counter()
    for cell in outcome.cells.values():
        counts.update(cell.kernels)
    return ", ".join(f"`{kernel.removesuffix('_kernel')}` {count}" for kernel, count in sorted(counts.items()))


def _reasons(outcomes: Mapping[str, Outcome]) -> list[str]:
    by_reason: dict[str, dict[str, None]] = defaultdict(dict)
    for name, outcome in outcomes.items():
        for cell in outcome.cells.values():
            if cell.reason:
                by_reason[cell.reason][name] = None
    lines = [item(f"{', '.join(names)}: {reason}") for reason, names in by_reason.items()]
    return [*lines, ""] if lines else []
