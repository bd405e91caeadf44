"""
Runs test files of Diffusers' and Transformers' own suites on the neuron device, from checkouts of theirs.

    python -m model_tests.upstream --diffusers PATH --transformers PATH [FILE ...] [-- PYTEST ARGUMENTS]

Prints a table and the failures; ends with 1 where a test fails on the device that passes on the CPU and is not in
expected_failures.toml. `make conformance` makes the environment this needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from model_tests.upstream.checkout import Checkout, CheckoutError
from model_tests.upstream.outcomes import FileResult, read_expectations
from model_tests.upstream.run import Settings, run_suite
from model_tests.upstream.suites import SUITES, select
from model_tests.upstream.tables import environment, print_failures, print_table


def main(arguments: list[str]) -> int:
    own, for_pytest = _split(arguments)
    options = _parser().parse_args(own)
    try:
        checkouts = [Checkout.read(name, path) for name in SUITES if (path := getattr(options, name))]
        if not checkouts:
            raise CheckoutError("Name a checkout: --diffusers PATH, --transformers PATH, or both.")
        chosen = [(checkout, select(checkout, options.files)) for checkout in checkouts]
        if not any(files for _, files in chosen):
            folders = ", ".join(str(checkout.path) for checkout in checkouts)
            raise CheckoutError(f"None of {', '.join(options.files) or 'the default files'} is in {folders}.")
        for checkout in checkouts:
            if message := checkout.mismatch():
                print(f"warning: {message}", file=sys.stderr)
        settings = Settings(options.device, options.logs.resolve(), options.own_sources, options.plugin, for_pytest)
        results: list[FileResult] = []
        for result in _run(chosen, settings):
            results.append(result)
            # After each file: a run takes hours, and may be stopped.
            if options.json:
                record = {**environment(options, checkouts), "results": [r.to_dict() for r in results]}
                options.json.write_text(json.dumps(record, indent=1) + "\n")
    except CheckoutError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_table(results)
    print_failures(results)
    return int(any(result.is_failure for result in results))


def _run(chosen: list[tuple[Checkout, list[str]]], settings: Settings) -> Iterator[FileResult]:
    expectations = read_expectations()
    for checkout, files in chosen:
        yield from run_suite(checkout, files, settings, expectations)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before `--` and behind it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model_tests.upstream",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--diffusers", type=Path, help="checkout of huggingface/diffusers")
    parser.add_argument("--transformers", type=Path, help="checkout of huggingface/transformers")
    parser.add_argument("files", nargs="*", help="test files or folders, relative to a checkout (default: suites.py)")
    parser.add_argument("--device", default="neuron", choices=["neuron", "cpu"], help="cpu: for comparison")
    parser.add_argument(
        "--own-sources", action="store_true", help="test the checkout's src/, not the installed library"
    )
    parser.add_argument("--plugin", action="store_true", help="import optimum_neuron_torch before the tests")
    parser.add_argument("--json", type=Path, help="write the results here, e.g. for model_tests.upstream.page")
    parser.add_argument("--note", default="", help="a sentence about this run, kept with --json")
    parser.add_argument("--logs", type=Path, default=Path("outputs/upstream"), help="pytest's output, one per file")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
