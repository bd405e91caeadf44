"""Runs PyTorch's own tables on the device, and records what came out beside the documentation.

python -m tests.conformance                          everything
python -m tests.conformance --table modules          one table; the others keep what was recorded
python -m tests.conformance --only 'conv' --column float32
python -m tests.conformance --status failed          again what failed when it was last recorded
"""

import argparse
import re
import time

import torch

from tests.conformance.document import PAGE, Records
from tests.conformance.outcome import Status
from tests.conformance.tables import TABLES
from tests.conformance.worker import Worker


def main() -> None:
    arguments = _arguments()
    records = Records.read()
    records.torch = torch.__version__.split("+")[0]
    worker = Worker()
    try:
        for table in arguments.table or TABLES:
            _run(arguments, records, worker, table)
    finally:
        worker.stop()
        records.write()
    print(f"Recorded in {PAGE}")


def _run(arguments: argparse.Namespace, records: Records, worker: Worker, table: str) -> None:
    entries = list(TABLES[table].entries())
    records.keep_only(table, entries)
    for entry, column in _wanted(arguments, records, table, entries):
        start = time.perf_counter()
        outcome = worker.check(table, entry, column)
        records.put(table, entry, column, outcome)
        if outcome.status in (Status.FAILED, Status.REFUSED) or arguments.verbose:
            seconds = time.perf_counter() - start
            print(f"{outcome.status}: {table} {entry} {column} ({seconds:.1f} s) {outcome.reason}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="append", choices=TABLES, help="only this table (may be repeated)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only entries with this in their name")
    parser.add_argument("--column", action="append", help="only this dtype or kind (may be repeated)")
    parser.add_argument("--status", action="append", choices=list(Status), help="only what was recorded so")
    parser.add_argument("--verbose", action="store_true", help="print every check, not only those with a reason")
    return parser.parse_args()


def _wanted(arguments: argparse.Namespace, records: Records, table: str, entries: list[str]) -> list[tuple[str, str]]:
    return [
        (entry, column)
        for entry in entries
        if re.search(arguments.only, entry)
        for column in TABLES[table].columns
        if not arguments.column or column in arguments.column
        if not arguments.status or _status(records, table, entry, column) in arguments.status
    ]


def _status(records: Records, table: str, entry: str, column: str) -> Status | None:
    outcome = records.get(table, entry, column)
    return outcome and outcome.status


if __name__ == "__main__":
    main()
