"""What the command prints of outcomes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from model_tests.nki_library.outcomes import Outcome


STATUSES = (
    "passed",
    "failed",
    "not collected",
    "collectives",
    "compiler",
    "xfailed",
    "skipped",
    "large",
    "memory",
    "stopped",
)


def summary(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def print_table(outcomes: list[Outcome]) -> None:
    for folder in sorted({outcome.folder for outcome in outcomes}):
        print(f"{folder:40} {summary(o for o in outcomes if o.folder == folder)}")
    print(f"{'all':40} {summary(outcomes)}")


def print_failures(outcomes: list[Outcome]) -> None:
    failures = [o for o in outcomes if o.status in ("failed", "not collected")]
    groups: dict[str, list[Outcome]] = {}
    for outcome in failures:
        groups.setdefault(cause(outcome), []).append(outcome)
    for text, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(members)} x {text}\n    e.g. {members[0].test} on {members[0].platform}")
        for place in members[0].where[:3]:
            print(f"    {place}")


def cause(outcome: Outcome) -> str:
    # Without the places of the kernels' lines, which are paths of this machine.
    lines = [line.strip() for line in outcome.message.splitlines() if line.strip() and not line.startswith("  at /")]
    return re.sub(r"/\S*/", "", " ".join(lines[:3]))[:300] if lines else outcome.status
