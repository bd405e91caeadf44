"""
Compiles the tables' architectures for the device, compares them with the CPU, and records what came out.

    python -m model_tests.architectures                      everything
    python -m model_tests.architectures BERT Llama           these; the others keep what was recorded
    python -m model_tests.architectures --family decoders    one family
    python -m model_tests.architectures --failed             again what did not pass when it was last recorded
    python -m model_tests.architectures Llama --json         print outcomes as JSON, record nothing
    python -m model_tests.architectures --page               nothing; write the page from what is recorded
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from model_tests.architectures.document import PAGE, Records
from model_tests.architectures.outcome import Outcome
from model_tests.architectures.tables import FAMILIES, every
from model_tests.architectures.worker import check_apart


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    known = every()
    records = Records.read()
    records.keep_only({name: family for name, (family, _) in known.items()})
    if unknown := sorted(set(options.names) - known.keys()):
        print(f"error: no architecture is called {', '.join(unknown)}; see --list", file=sys.stderr)
        return 2
    wanted = [name for name, (family, _) in known.items() if _is_wanted(name, family, options, records)]
    if options.page:
        records.write_page()
        return 0
    if options.list:
        print("\n".join(wanted))
        return 0
    outcomes = {}
    for name in wanted:
        outcomes[name] = check_apart(name)
        print(_line(name, outcomes[name]), flush=True, file=sys.stderr if options.json else sys.stdout)
        if not options.json:
            # After each: the whole run takes long, and may be stopped.
            records.put(known[name][0], name, outcomes[name])
            records.write()
    if options.json:
        print(json.dumps({name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()}, indent=1))
    else:
        print(f"Recorded in {PAGE}")
    return int(not all(outcome.passed for outcome in outcomes.values()))


def _is_wanted(name: str, family: str, options: argparse.Namespace, records: Records) -> bool:
    if options.names and name not in options.names:
        return False
    if options.family and family not in options.family:
        return False
    recorded = records.get(family, name)
    return not options.failed or recorded is None or not recorded.passed


def _line(name: str, outcome: Outcome) -> str:
    words = ["passed" if outcome.passed else "FAILED", name, f"{outcome.seconds:.0f} s"]
    for step in outcome.steps:
        words.append(f"{step.graphs} graphs, {step.nodes} nodes, difference {step.difference}")
        if step.reason:
            words.append(step.reason)
    return " | ".join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model_tests.architectures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this family (may be repeated)")
    parser.add_argument("--failed", action="store_true", help="only what did not pass, or was never recorded")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--page", action="store_true", help="write the page from the records, and stop")
    parser.add_argument("--json", action="store_true", help="print outcomes as JSON; record nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
