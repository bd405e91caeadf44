"""Writes docs/reference/nki_library.json and the page made of it: outcomes by folder and number of cores."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from model_tests.nki_library.checkout import Checkout
from model_tests.nki_library.outcomes import Outcome
from model_tests.nki_library.tables import STATUSES, cause


REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"

HEADING = """# nki-library on the simulator

The public nki-library's own integration tests, unmodified, in their simulation mode, at {commit}. This page is made by
`python -m model_tests.nki_library PATH --write` from the tests that have been run, perhaps by several versions of the
simulator, of which the last one counts: a test that is not counted here has
not been. Tests whose kernel never started have no number of cores. `large` are those that the suite leaves out in
simulation; `compiler` those that only ask the compiler's front end; `stopped` and `memory` went over the run's limits.
"""


def write(checkout: Checkout, outcomes: list[Outcome], folder: Path = REFERENCE) -> None:
    """Both files; a file of the library that Python cannot parse is listed with what Python says."""
    files: dict[str, dict[str, Counter[str]]] = {}
    for outcome in outcomes:
        files.setdefault(outcome.file, {}).setdefault(_cores(outcome), Counter())[outcome.status] += 1
    record = {"commit": checkout.commit, "unparseable": checkout.unparseable(), "files": dict(sorted(files.items()))}
    (folder / "nki_library.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "nki_library.md").write_text("\n".join(_lines(checkout, outcomes)) + "\n")


def _lines(checkout: Checkout, outcomes: list[Outcome]) -> list[str]:
    counts = Counter((o.folder, _cores(o), o.status) for o in outcomes)
    lines = [HEADING.format(commit=checkout.commit or "an unknown commit")]
    lines += [f"| folder | LNC | {' | '.join(STATUSES)} |", f"| --- | --- |{' ---: |' * len(STATUSES)}"]
    for name, cores in sorted({(o.folder, _cores(o)) for o in outcomes}):
        lines.append(f"| `{name}` | {cores} | {' | '.join(str(counts[name, cores, s]) for s in STATUSES)} |")
    lines.append(f"| all | | {' | '.join(str(sum(o.status == s for o in outcomes)) for s in STATUSES)} |")
    lines += ["", *(f"`{file}` cannot be parsed: {why}." for file, why in checkout.unparseable().items()), ""]
    causes = Counter((o.folder, cause(o)) for o in outcomes if o.status in ("failed", "not collected"))
    lines += [f"* {count} in `{name}`: `{text}`" for (name, text), count in causes.most_common()]
    return lines


def _cores(outcome: Outcome) -> str:
    return ", ".join(map(str, sorted(set(outcome.lnc)))) or "-"
