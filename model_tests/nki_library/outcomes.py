"""What became of each test, and the journal of a run, which the next one goes on from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


_TOO_LARGE = "Skipping slow simulation test"
_COLLECTIVES = re.compile(r"nki\.collectives\.\w+ needs several devices|PerRankLazyInputGenerator|collective_ranks")


# Marked `trace_only` by the suite: they ask the compiler's front end, in simulation mode too.
_COMPILER = re.compile(r"No module named 'nki\.compiler\.frontend'|nki\.compiler\.frontend")


@dataclass(frozen=True)
class Outcome:
    """
    One test on one platform.

    Args:
        status: `passed`, `failed`, `skipped` (by the suite itself), `large` (left out by it in simulation),
            `xfailed`, `collectives` (needs several devices), `compiler` (traced by the compiler alone), `memory` and
            `stopped` (over this run's limits), or
            `not collected` (the file could not be imported).
        lnc: on how many cores its kernels ran, one entry per call.
        instructions: of all its kernels on all cores, where they ran to their end.
    """

    test: str
    file: str
    platform: str
    status: str
    message: str = ""
    lnc: list[int] = field(default_factory=list)
    instructions: int = 0
    simulated: float = 0.0
    seconds: float = 0.0
    unwritten: int = 0
    where: list[str] = field(default_factory=list)

    @classmethod
    def of_record(cls, file: str, platform: str, record: dict[str, Any]) -> Outcome:
        values = {name: value for name, value in record.items() if name in cls.__dataclass_fields__}
        return cls(**{**values, "file": file, "platform": platform, "status": _status(record)})

    @property
    def is_unasked(self) -> bool:
        return self.status == "skipped" and self.message.startswith("Skipped: not asked for")

    @property
    def folder(self) -> str:
        return self.file.rpartition("/")[0]


def _status(record: dict[str, Any]) -> str:
    status, message = record["status"], record.get("message", "")
    if status == "skipped" and _TOO_LARGE in message:
        return "large"
    if status == "failed" and _COLLECTIVES.search(message):
        return "collectives"
    if status == "failed" and _COMPILER.search(message):
        return "compiler"
    if status == "failed" and re.search(r"MemoryError|Unable to allocate|not enough memory", message):
        return "memory"
    return status


class Journal:
    """The outcomes so far: one line of JSON each, the last of a test counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, Outcome] = {}
        if path.is_file():
            for line in path.read_text().splitlines():
                outcome = Outcome(**json.loads(line))
                self.outcomes[outcome.test] = outcome

    def add(self, outcomes: Iterable[Outcome]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            for outcome in outcomes:
                self.outcomes[outcome.test] = outcome
                file.write(json.dumps(asdict(outcome)) + "\n")

    def done(self, file: str, with_large: bool) -> set[str]:
        """The tests of a file that have been run; those left out for their size have not, where they are wanted."""
        undone = {"not collected", *(["large"] if with_large else [])}
        return {o.test for o in self.outcomes.values() if o.file == file and o.status not in undone}

    def forget(self, statuses: Iterable[str]) -> None:
        """Makes the tests with these outcomes run again."""
        self.outcomes = {test: o for test, o in self.outcomes.items() if o.status not in set(statuses)}
        self.path.write_text("".join(json.dumps(asdict(o)) + "\n" for o in self.outcomes.values()))
