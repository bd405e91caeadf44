"""What was recorded of generation, and the page of the documentation printed from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from model_tests.generation import matrix
from model_tests.generation.classes import KINDS
from model_tests.generation.outcome import DIFFERS, EQUAL, FAILED, STOCK, UNSUPPORTED, Cell, Outcome
from model_tests.records import REFERENCE, Records, item


INTRODUCTION = """\
# Generation in buckets, against the CPU

Models with tiny random configurations, at float32, on the `neuron` device with executor `aten`: what is compared is
what padding, caches and the generation loop do, beside `generate()` of plain Transformers on the CPU with the same
weights.
Found with {versions}. This page is printed by

    make parity

from `generation.json` beside it, which the same command records. `ARGS="Llama MistralForCausalLM"` repeats only these,
`ARGS=--missing` goes on with a run that was stopped.

* **equal**: the same tokens, and the logits and scores of every step within 1e-5 of the largest magnitude of their
  tensor (rounding may swap two tokens whose scores are nearer than that). A larger difference is listed with what
  rounding alone does: no further from the result at float64 than twice plain float32. Every step ran in buckets.
* *stock*: the same, but a call left the buckets for Transformers' own path, at exact shapes, as the report said
  with the reason. Not counted as equal.
* –: Transformers itself raises for this call on the CPU.
"""
MATRIX = """\
## Families by strategy

One prompt of 11 tokens, and a batch of three padded on the left (encoders: on the right); 16 new tokens; sliding
windows of 8 tokens. *sample*: temperature 0.9, top-k 40, top-p 0.95, seeded. *beam*: three beams. *prompt lookup*:
three tokens at a time, from a prompt that repeats itself. *penalties*: repetition penalty 1.3, no 2-gram twice, two
words forbidden.
"""
SWEEP = """\
## All classes

Every class of the Auto mappings that a tiny configuration can be made for (by a rule over the settings' names):
greedy, one prompt and a padded batch, each twice with other lengths in the same buckets. *static*: both are equal, and
the second calls made no graph. *graphs*: made by all four calls; a decoder's prefill and decode step are two, also
where 12 new tokens run past a sliding window of 8. *difference*: the largest, of logits.
"""


class GenerationRecords(Records):
    """Outcomes of the matrix by family, and of the sweep by class."""

    PATH = REFERENCE / "generation.json"
    SECTIONS = {**matrix.TITLES, **KINDS}
    LIBRARIES = ("torch", "transformers")
    OUTCOME = Outcome

    def page(self) -> str:
        parts = [INTRODUCTION.format(versions=self.printed_versions())]
        families = {section: self.outcomes(section) for section in matrix.TITLES}
        classes = {kind: self.outcomes(kind) for kind in KINDS}
        if any(families.values()):
            parts += [MATRIX, *_matrix_totals(families)]
        for section, outcomes in families.items():
            if outcomes:
                parts += [f"### {matrix.TITLES[section]}\n", *_matrix(section, outcomes), *_reasons(outcomes)]
        parts += [SWEEP, *_sweep_totals(classes)]
        for kind, outcomes in classes.items():
            if outcomes:
                parts += [f"### {KINDS[kind]}\n", *_sweep(outcomes), *_reasons(outcomes)]
        return "\n".join(parts)


# ---- the matrix -----------------------------------------------------------------------------------------------------


def _columns(section: str) -> list[str]:
    columns = matrix.OUTPUTS if section == "encoders" else matrix.STRATEGIES
    return [matrix.cell_name(column, form) for column in columns for form in matrix.FORMS]


def _matrix_totals(families: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    yield "| | families | calls | equal | stock | different | raise |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for section, outcomes in families.items():
        cells = [cell for outcome in outcomes.values() for cell in outcome.cells.values()]
        states = [cell.state for cell in cells if cell.state != UNSUPPORTED]
        counts = [len(outcomes), len(states), *(states.count(state) for state in (EQUAL, STOCK, DIFFERS, FAILED))]
        if outcomes:
            yield f"| {matrix.TITLES[section]} | " + " | ".join(map(str, counts)) + " |"
    yield ""


def _matrix(section: str, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    columns = _columns(section)
    yield "| | " + " | ".join(columns) + " | difference |"
    yield "| --- |" + " --- |" * len(columns) + " ---: |"
    for name, outcome in outcomes.items():
        cells = [_printed(outcome.cells.get(column)) for column in columns]
        yield f"| {name} | " + " | ".join(cells) + f" | {_largest(outcome)} |"
    yield ""


_PRINTED = {EQUAL: "equal", STOCK: "*stock*", DIFFERS: "**differs**", FAILED: "**raises**", UNSUPPORTED: "–"}


def _printed(cell: Cell | None) -> str:
    return "" if cell is None else _PRINTED[cell.state]


def _largest(outcome: Outcome) -> str:
    found = [cell.difference for cell in outcome.cells.values() if cell.difference is not None]
    return f"{max(found):.0e}" if found else ""


# ---- the sweep ------------------------------------------------------------------------------------------------------


def _sweep_totals(classes: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    yield "| | classes | compared | equal and static | equal, more graphs | stock | different | raise |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for kind, outcomes in classes.items():
        states = [outcome.state for outcome in outcomes.values()]
        static = sum(outcome.is_static for outcome in outcomes.values())
        compared = len(states) - states.count(UNSUPPORTED)
        counts = [len(states), compared, static, states.count(EQUAL) - static]
        counts += [states.count(state) for state in (STOCK, DIFFERS, FAILED)]
        if outcomes:
            yield f"| {KINDS[kind]} | " + " | ".join(map(str, counts)) + " |"
    yield ""


def _sweep(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    yield "| | single | batch | static | graphs | window | difference |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: |"
    for name, outcome in outcomes.items():
        cells = outcome.cells
        compared = outcome.state in (EQUAL, STOCK, DIFFERS)
        words = [
            name,
            *(_printed(cells.get(form)) for form in ("single", "batch")),
            ("yes" if outcome.is_static else "no") if outcome.state == EQUAL else "",
            str(sum(cell.graphs + cell.grown for cell in cells.values())) if compared else "",
            str(outcome.window or "") if compared else "",
            _largest(outcome) if compared else "",
        ]
        yield "| " + " | ".join(words) + " |"
    yield ""


# ---- reasons --------------------------------------------------------------------------------------------------------


def _reasons(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Why calls are not equal, or not nearer, those with one reason in one entry."""
    by_reason: dict[str, dict[str, None]] = defaultdict(dict)
    for name, outcome in outcomes.items():
        if outcome.unmade:
            by_reason[f"not made: {outcome.unmade}"][name] = None
        for cell in outcome.cells.values():
            if cell.reason:
                by_reason[cell.reason][name] = None
    lines = [item(f"{', '.join(names)}: {reason}") for reason, names in by_reason.items()]
    return [*lines, ""] if lines else []
