"""
Runs nki-library's own tests of its kernels on the simulator, from a checkout, unmodified, in their simulation mode.

    python -m model_tests.nki_library PATH [--folder core/attention] [--lnc 1|2] [--large] [--write] [-- ARGUMENTS]

Goes on from where the last run stopped: outcomes are kept in --journal. Prints a table and the failures, and ends with
1 where a test failed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from model_tests.nki_library.checkout import Checkout, CheckoutError
from model_tests.nki_library.outcomes import Journal, Outcome
from model_tests.nki_library.run import Settings, run_files
from model_tests.nki_library.tables import print_failures, print_table, summary


def main(arguments: list[str]) -> int:
    own, for_pytest = _split(arguments)
    options = _parser().parse_args(own)
    journal = Journal(options.journal)
    if options.again:
        journal.forget(options.again)
    settings = Settings(
        platforms=tuple(options.platform),
        seconds=options.seconds,
        gigabytes=options.gigabytes,
        large=options.large,
        lnc=options.lnc,
        logs=options.journal.resolve().parent / "logs",
        arguments=for_pytest,
    )
    try:
        checkout = Checkout.read(options.checkout)
        files = [file for folder in options.folder or ["."] for file in checkout.files(folder)]
    except CheckoutError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for number, (file, new) in enumerate(zip(files, run_files(checkout, files, journal, settings), strict=True), 1):
        print(f"[{number}/{len(files)}] {file}: {summary(new) or 'nothing new'}", flush=True)
    outcomes: list[Outcome] = [o for o in journal.outcomes.values() if o.file in set(files)]
    print_table(outcomes)
    print_failures(outcomes)
    if options.write:
        from model_tests.nki_library.page import write

        write(checkout, list(journal.outcomes.values()))
    return int(any(outcome.status == "failed" for outcome in outcomes))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before `--` and behind it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model_tests.nki_library",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="checkout of aws-neuron/nki-library")
    parser.add_argument("--folder", action="append", help="of test/integration/nkilib, or a file there; repeatable")
    parser.add_argument("--lnc", type=int, choices=[1, 2], help="only kernels on so many cores")
    parser.add_argument("--large", action="store_true", help="run what their simulation mode leaves out as large, too")
    parser.add_argument("--platform", nargs="+", default=["trn2", "trn3"], help="a test runs on the first it supports")
    parser.add_argument("--seconds", type=int, default=300, help="time limit of one test")
    parser.add_argument("--gigabytes", type=float, default=12, help="address space of a process")
    parser.add_argument("--journal", type=Path, default=Path("outputs/nki-library/journal.jsonl"))
    parser.add_argument("--again", nargs="+", metavar="STATUS", help="run tests with these outcomes again")
    parser.add_argument("--write", action="store_true", help="write docs/reference/nki_library.json and .md")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
