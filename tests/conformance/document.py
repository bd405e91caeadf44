"""What was recorded, and the page of the documentation that is printed from it. The page is never edited by hand."""

import json
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.conformance.outcome import Outcome, Status
from tests.conformance.rules import LEFT_OUT, RULES
from tests.conformance.tables import TABLES, Table
from tests.sources import ROOT


RECORDS = ROOT / "docs" / "reference" / "conformance.json"
PAGE = RECORDS.with_suffix(".md")
WIDTH = 119

INTRODUCTION = """\
# Conformance with PyTorch's own tables

PyTorch tests its devices with tables of operators, modules and optimizers, each entry with sample inputs. The emulated
device is compared with the CPU on all of them. This page counts what came out, with PyTorch {torch}; it is printed by

    make conformance-torch

from `conformance.json` beside it, which the same command records. `ARGS="--status failed"` repeats only a part.

* *passed*: every sample has the CPU's answer, bit for bit unless listed below: values, dtype, strides, the device, and
  where the CPU raises an error, an error of the same type.
* *not on the CPU*: the CPU has no kernel for this dtype, so there is nothing to compare with.
* *refused*: a `NotImplementedError` that says what to do instead. Each is listed with its reason.
* *failed*: anything else. Each is listed with what was found.
"""


class Records:
    """Outcomes by table, entry and column. In the file a passed check is a word, others a word and a reason."""

    def __init__(self, torch: str, tables: dict[str, dict[str, dict[str, Any]]]) -> None:
        self.torch = torch
        self.tables = tables

    @classmethod
    def read(cls) -> "Records":
        return cls(**json.loads(RECORDS.read_text())) if RECORDS.exists() else cls("", {})

    def write(self) -> None:
        RECORDS.write_text(self.text())
        PAGE.write_text(page(self))

    def text(self) -> str:
        """JSON with a line for each entry, so that differences can be read."""
        tables = []
        for table in TABLES:
            entries = sorted(self.tables.get(table, {}).items())
            lines = ",\n".join(f"  {json.dumps(entry)}: {json.dumps(columns)}" for entry, columns in entries)
            tables.append(f' "{table}": {{\n{lines}\n }}')
        return f'{{"torch": {json.dumps(self.torch)}, "tables": {{\n' + ",\n".join(tables) + "\n}}\n"

    def get(self, table: str, entry: str, column: str) -> Outcome | None:
        recorded = self.tables.get(table, {}).get(entry, {}).get(column)
        if recorded is None:
            return None
        status, reason = (recorded, "") if isinstance(recorded, str) else recorded
        return Outcome(Status(status), reason)

    def put(self, table: str, entry: str, column: str, outcome: Outcome) -> None:
        columns = self.tables.setdefault(table, {}).setdefault(entry, {})
        columns[column] = [str(outcome.status), outcome.reason] if outcome.reason else str(outcome.status)

    def keep_only(self, table: str, entries: Iterable[str]) -> None:
        """Forgets entries that PyTorch's table no longer has."""
        known = self.tables.setdefault(table, {})
        self.tables[table] = {entry: known[entry] for entry in entries if entry in known}


def page(records: Records) -> str:
    """The documentation's page for these records."""
    parts = [INTRODUCTION.format(torch=records.torch)]
    for name, table in TABLES.items():
        outcomes = {
            (entry, column): outcome
            for entry in records.tables.get(name, {})
            for column in table.columns
            if (outcome := records.get(name, entry, column)) is not None
        }
        explanation = textwrap.fill(f"`{table.source}`. {table.explanation}", WIDTH, break_on_hyphens=False)
        parts += [f"## {table.title}\n", f"{explanation}\n", *_counts(table, outcomes)]
        for status in (Status.FAILED, Status.REFUSED):
            parts += _listed(status, outcomes)
        parts += _exceptions(name)
    return "\n".join(parts)


def _counts(table: Table, outcomes: dict[tuple[str, str], Outcome]) -> Iterator[str]:
    shown = [status for status in Status if status is not Status.NONE]
    yield "| | entries | " + " | ".join(shown) + " |"
    yield "| --- |" + " ---: |" * (len(shown) + 1)
    for column in table.columns:
        counts = Counter(outcome.status for (_, other), outcome in outcomes.items() if other == column)
        entries = sum(counts[status] for status in shown)
        yield f"| {column} | {entries} | " + " | ".join(str(counts[status]) for status in shown) + " |"
    yield ""


def _exceptions(table: str) -> list[str]:
    """What rules.py says about the table."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for entry, rule in RULES[table].items():
        by_reason[rule.reason].append(f"`{entry}`")
    if table == "operators":
        for (entry, variant), reason in LEFT_OUT.items():
            by_reason[f"left out, {reason}"].append(f"`{entry}` ({variant})")
    if not by_reason:
        return []
    lines = (_item(f"{reason}: {', '.join(entries)}") for reason, entries in by_reason.items())
    return ["Compared otherwise:\n", *lines, ""]


def _item(text: str) -> str:
    return textwrap.fill(f"* {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _listed(status: Status, outcomes: dict[tuple[str, str], Outcome]) -> list[str]:
    """The entries with this status, those with one reason in one line."""
    by_reason: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (entry, column), outcome in outcomes.items():
        if outcome.status is status:
            by_reason[outcome.reason][entry].append(column)
    if not by_reason:
        return []
    lines = [f"{status.capitalize()}:\n"]
    for reason, entries in sorted(by_reason.items()):
        names = ", ".join(f"`{entry}` ({', '.join(columns)})" for entry, columns in sorted(entries.items()))
        lines.append(_item(f"{reason}: {names}"))
    return [*lines, ""]
