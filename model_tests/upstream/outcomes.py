"""What became of each test: read from pytest's JUnit file, and sorted by who has to look at a failure."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any


EXPECTED_FAILURES = Path(__file__).with_name("expected_failures.toml")

# What huggingface_hub and the libraries above it say where a file must come from the hub and cannot.
_HUB = re.compile(
    r"LocalEntryNotFoundError|OfflineModeIsEnabled|HF_HUB_OFFLINE|offline mode is enabled|couldn't connect to 'https://|"
    r"We have no connection or you passed local_files_only|Max retries exceeded with url|NameResolutionError|"
    r"Temporary failure in name resolution|ConnectError|Cannot reach https://|outgoing traffic has been disabled"
)


class Status(StrEnum):
    PASSED = "passed"
    SKIPPED = "skipped"
    HUB = "hub"  # needs a download
    EXPECTED = "expected"  # listed in expected_failures.toml
    ON_CPU_TOO = "on_cpu_too"  # the same error on the CPU
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """One test: its id as pytest takes it, relative to the checkout, and the beginning of an error's text."""

    test: str
    status: Status
    message: str = ""
    reason: str = ""

    @property
    def error(self) -> str:
        """The error's type, by which a failure on the CPU is known as the same one."""
        return re.split(r"[:\s(]", self.message, maxsplit=1)[0]


@dataclass
class FileResult:
    """All tests of one file of a suite."""

    library: str
    file: str
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, status: Status) -> int:
        return sum(outcome.status is status for outcome in self.outcomes)

    def with_status(self, *statuses: Status) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status in statuses]

    @property
    def is_failure(self) -> bool:
        return self.count(Status.FAILED) > 0

    def summary(self) -> str:
        return ", ".join(f"{count} {status}" for status in Status if (count := self.count(status))) or "no tests"

    def to_dict(self) -> dict[str, Any]:
        counts = {str(status): self.count(status) for status in Status}
        failures = self.with_status(Status.FAILED, Status.ON_CPU_TOO, Status.EXPECTED, Status.HUB)
        return {
            "library": self.library,
            "file": self.file,
            "seconds": round(self.seconds, 1),
            **counts,
            "failures": [asdict(outcome) for outcome in failures],
        }


@dataclass(frozen=True)
class Expectation:
    """
    A failure that is known.

    Args:
        library: whose suite it is in.
        test: a pattern (fnmatch) for test ids.
        error: a regular expression found in the error's text: another error of the same test is not known.
        reason: why it is right that they fail.
    """

    library: str
    test: str
    error: str
    reason: str

    def covers(self, library: str, outcome: Outcome) -> bool:
        # fnmatch reads [ ] as a set of characters, but in a test id they hold parameters.
        pattern = self.test.replace("[", "[[]")
        return (
            library == self.library
            and fnmatchcase(outcome.test, pattern)
            and re.search(self.error, outcome.message) is not None
        )


def read_expectations(path: Path = EXPECTED_FAILURES) -> list[Expectation]:
    return [Expectation(**entry) for entry in tomllib.loads(path.read_text()).get("failure", [])]


def read_junit(path: Path, file: str) -> list[Outcome]:
    """The outcomes of one test file `file` from the JUnit report `path`, of which hub downloads are known already."""
    module = file.removesuffix(".py").replace("/", ".")
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        outcome = _outcome(case, file, module)
        # A test that failed and whose teardown failed too is there twice.
        if outcome.test not in found or found[outcome.test].status is Status.PASSED:
            found[outcome.test] = outcome
    return list(found.values())


def _outcome(case: ElementTree.Element, file: str, module: str) -> Outcome:
    classes = case.get("classname", "").removeprefix(module).strip(".").split(".")
    test = "::".join(filter(None, [file, *classes, case.get("name", "")]))
    problem = case.find("failure") if case.find("failure") is not None else case.find("error")
    if problem is not None:
        message = (problem.get("message") or "").strip()
        hub = _HUB.search(f"{message}\n{problem.text or ''}")
        return Outcome(test, Status.HUB if hub else Status.FAILED, " ".join(message.split())[:600])
    skipped = case.find("skipped")
    if skipped is not None:
        return Outcome(test, Status.SKIPPED, (skipped.get("message") or "")[:300])
    return Outcome(test, Status.PASSED)


def apply_expectations(result: FileResult, expectations: list[Expectation]) -> None:
    """Marks the failures that are listed."""
    for index, outcome in enumerate(result.outcomes):
        reasons = [known.reason for known in expectations if known.covers(result.library, outcome)]
        if outcome.status is Status.FAILED and reasons:
            result.outcomes[index] = replace(outcome, status=Status.EXPECTED, reason=reasons[0])


def apply_cpu(result: FileResult, on_cpu: list[Outcome]) -> None:
    """Marks the failures that the same tests had on the CPU, with the same type of error."""
    errors = {outcome.test: outcome for outcome in on_cpu if outcome.status is Status.FAILED}
    for index, outcome in enumerate(result.outcomes):
        twin = errors.get(outcome.test)
        if outcome.status is Status.FAILED and twin and twin.error == outcome.error:
            result.outcomes[index] = replace(outcome, status=Status.ON_CPU_TOO, reason="the same error on the CPU")
