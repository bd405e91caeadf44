"""The command of a suite that keeps records: checks what is named, each in a process of its own, and records it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model_tests.records import Records


def run(
    arguments: Sequence[str],
    *,
    prog: str,
    description: str,
    records: Records,
    known: Mapping[str, str],
    check: Callable[[str], Any],
    line: Callable[[str, Any], str],
    passed: Callable[[Any], bool],
) -> int:
    """
    Serve the command's `arguments`; returns the exit code.

    Args:
        known: the section of every name that can be checked, in the order of the page.
        check: the outcome of a name. line: what is printed of it. passed: whether it is as it should be.
    """
    options = _parser(prog, description, records.SECTIONS).parse_args(arguments)
    records.keep_only(known)
    if unknown := sorted(set(options.names) - known.keys()):
        print(f"error: nothing is called {', '.join(unknown)}; see --list", file=sys.stderr)
        return 2
    wanted = [name for name, section in known.items() if _is_wanted(name, section, options, records, passed)]
    if options.page:
        records.write_page()
        return 0
    if options.list:
        print("\n".join(wanted))
        return 0
    outcomes = {}
    for name in wanted:
        outcomes[name] = check(name)
        print(line(name, outcomes[name]), flush=True, file=sys.stderr if options.json else sys.stdout)
        if not options.json:
            # After each: the whole run takes long, and may be stopped.
            records.put(known[name], name, outcomes[name])
            records.keep_only(known)
            records.write()
    if options.json:
        print(json.dumps({name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()}, indent=1))
    else:
        print(f"Recorded in {records.page_path()}")
    return int(not all(passed(outcome) for outcome in outcomes.values()))


def _is_wanted(
    name: str, section: str, options: argparse.Namespace, records: Records, passed: Callable[[Any], bool]
) -> bool:
    if options.names and name not in options.names:
        return False
    if options.section and section not in options.section:
        return False
    recorded = records.get(section, name)
    if options.missing:
        return recorded is None
    return not options.failed or recorded is None or not passed(recorded)


def _parser(prog: str, description: str, sections: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="what to check (default: all)")
    parser.add_argument(
        "--section", "--family", action="append", choices=sections, help="only this section (may be repeated)"
    )
    parser.add_argument("--failed", action="store_true", help="only what did not pass, or was never recorded")
    parser.add_argument(
        "--missing", action="store_true", help="only what was never recorded: go on with a stopped run"
    )
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--page", action="store_true", help="write the page from the records, and stop")
    parser.add_argument("--json", action="store_true", help="print outcomes as JSON; record nothing")
    return parser
