"""What a run prints, and what it keeps: the table, the failures, and the circumstances they were seen in."""

from __future__ import annotations

import argparse
from importlib import metadata
from typing import Any

from rich.console import Console
from rich.table import Table

from model_tests.upstream.checkout import Checkout
from model_tests.upstream.outcomes import FileResult, Status


COLUMNS = {
    Status.PASSED: "passed",
    Status.FAILED: "failed",
    Status.ON_CPU_TOO: "fail on the CPU too",
    Status.EXPECTED: "expected to fail",
    Status.HUB: "need a download",
    Status.SKIPPED: "skipped",
}


def print_table(results: list[FileResult]) -> None:
    table = Table("file", title="Upstream tests", title_justify="left")
    for column in (*COLUMNS.values(), "seconds"):
        table.add_column(column, justify="right")
    for result in results:
        counts = [str(result.count(status)) for status in COLUMNS]
        table.add_row(result.file.removeprefix("tests/"), *counts, f"{result.seconds:.0f}")
    table.add_section()
    totals = [sum(result.count(status) for result in results) for status in COLUMNS]
    table.add_row("all", *map(str, totals), f"{sum(result.seconds for result in results):.0f}")
    Console().print(table)


def print_failures(results: list[FileResult]) -> None:
    """Every failure, the ones to mend first; hub downloads only by their number, in the table."""
    for status in (Status.FAILED, Status.EXPECTED, Status.ON_CPU_TOO):
        outcomes = [outcome for result in results for outcome in result.with_status(status)]
        if outcomes:
            print(f"\n{COLUMNS[status]}:")
        for outcome in outcomes:
            print(f"  {outcome.test}\n      {(outcome.reason or outcome.message)[:200]}")


def environment(options: argparse.Namespace, checkouts: list[Checkout]) -> dict[str, Any]:
    from optimum_neuron_torch import is_emulated

    return {
        "device": options.device,
        "emulated": is_emulated(),
        "plugin": options.plugin,
        "note": options.note,
        "versions": {name: metadata.version(name) for name in ("torch", "transformers", "diffusers")},
        "checkouts": {
            checkout.library: {
                "version": checkout.version,
                "commit": checkout.commit,
                "sources": "checkout" if options.own_sources else "installed",
            }
            for checkout in checkouts
        },
    }
