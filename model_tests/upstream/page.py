"""
Writes docs/reference/upstream-suites.md from the JSON files of runs.

    python -m model_tests.upstream.page RESULTS.json ... > docs/reference/upstream-suites.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from model_tests.upstream.tables import COLUMNS


HEADING = """# Upstream test suites on the device

Test files of Diffusers and Transformers, run on device `neuron` by `make conformance` (see
[CONTRIBUTING](../../CONTRIBUTING.md)). This page is made from its results by `python -m model_tests.upstream.page`.

A test that needs a download is counted apart: the run had no access to a model hub. A test
that fails in the same way on the CPU, in the same environment, is counted apart too: it says nothing about the device.
Skipped tests are those that the suite itself skips: slow tests, other accelerators, optional packages, features that a
model does not have.
"""


def page(records: list[dict[str, Any]]) -> str:
    return "\n".join([HEADING, *(_section(record) for record in records)])


def _section(record: dict[str, Any]) -> str:
    files = record["results"]
    rows = [[f"`{file['file']}`", *(str(file[status]) for status in COLUMNS)] for file in files]
    rows.append(["all", *(str(sum(file[status] for file in files)) for status in COLUMNS)])
    return "\n".join(
        [_title(record), _circumstances(record), "", _table(["file", *COLUMNS.values()], rows), _failures(files)]
    )


def _title(record: dict[str, Any]) -> str:
    libraries = " and ".join(name.capitalize() for name in record["checkouts"])
    how = "with the plugin imported" if record["plugin"] else "with the device alone"
    return f"## {libraries}, {how}\n"


def _circumstances(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    tests = "; ".join(
        f"tests of {name} {about['version'] or '(see below)'}{_commit(about)}, run against the {_sources(about)}"
        for name, about in record["checkouts"].items()
    )
    device = "the emulated device" if record["emulated"] else "the native device"
    note = f" {record['note']}" if record.get("note") else ""
    return f"On {device}; {versions}; {tests}.{note}"


def _commit(about: dict[str, Any]) -> str:
    return f" at {about['commit']}" if about["commit"] else ""


def _sources(about: dict[str, Any]) -> str:
    return "installed library" if about["sources"] == "installed" else "checkout's own sources"


def _table(header: list[str], rows: list[list[str]], numbers: bool = True) -> str:
    rule = ["---"] + ["---:" if numbers else "---"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def _failures(files: list[dict[str, Any]]) -> str:
    """A row for each reason, with the tests that share it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for failure in (failure for file in files for failure in file["failures"] if failure["status"] != "hub"):
        why = failure["reason"] if failure["status"] == "expected" else failure["message"][:160]
        groups.setdefault((failure["status"], why), []).append(failure["test"])
    if not groups:
        return ""
    rows = [[COLUMNS[status], why.replace("|", "\\|"), _names(tests)] for (status, why), tests in groups.items()]
    return "\n" + _table(["counted as", "why", "tests"], rows, numbers=False) + "\n"


def _names(tests: list[str]) -> str:
    """Names without classes and parameters, each once, behind the number of tests."""
    names = dict.fromkeys(test.split("::")[-1].split("[")[0] for test in tests)
    return f"{len(tests)}: " + ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page([json.loads(Path(name).read_text()) for name in sys.argv[1:]]), end="")
