"""Outcomes kept as JSON beside the page of the documentation that is printed from them; never edited by hand."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self


REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
WIDTH = 119


class Records:
    """
    Outcomes by section and name, and the versions they were found with.

    A subclass says where they are kept, which sections there are (by name, with their titles), which libraries'
    versions count, what class an outcome is (a dataclass with `from_dict`), and how the page is printed.
    """

    PATH: ClassVar[Path]
    SECTIONS: ClassVar[Mapping[str, str]]
    LIBRARIES: ClassVar[tuple[str, ...]]
    OUTCOME: ClassVar[Any]

    def __init__(self, versions: dict[str, str], sections: dict[str, dict[str, dict[str, Any]]]) -> None:
        self.versions = versions
        self.sections = sections

    def page(self) -> str:
        """The documentation's page for these records."""
        raise NotImplementedError

    @classmethod
    def page_path(cls) -> Path:
        return cls.PATH.with_suffix(".md")

    @classmethod
    def read(cls) -> Self:
        return cls(**json.loads(cls.PATH.read_text())) if cls.PATH.exists() else cls({}, {})

    def write(self) -> None:
        """Keep the records as found with the libraries that are installed, and print the page."""
        self.versions = {name: importlib.metadata.version(name).split("+")[0] for name in self.LIBRARIES}
        self.write_page()

    def write_page(self) -> None:
        self.PATH.write_text(self.text())
        self.page_path().write_text(self.page())

    def text(self) -> str:
        """JSON with a line for each outcome, so that differences can be read."""
        sections = []
        for section in self.SECTIONS:
            entries = self.sections.get(section, {}).items()
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in entries)
            sections.append(f' "{section}": {{\n{lines}\n }}')
        return f'{{"versions": {json.dumps(self.versions)}, "sections": {{\n' + ",\n".join(sections) + "\n}}\n"

    def get(self, section: str, name: str) -> Any | None:
        values = self.sections.get(section, {}).get(name)
        return self.OUTCOME.from_dict(values) if values else None

    def put(self, section: str, name: str, outcome: Any) -> None:
        self.sections.setdefault(section, {})[name] = dataclasses.asdict(outcome)

    def keep_only(self, known: Mapping[str, str]) -> None:
        """Forget what is no longer compared; `known` is the section by name, in order."""
        kept: dict[str, dict[str, Any]] = {section: {} for section in self.SECTIONS}
        for name, section in known.items():
            if name in self.sections.get(section, {}):
                kept[section][name] = self.sections[section][name]
        self.sections = kept

    def outcomes(self, section: str) -> dict[str, Any]:
        return {name: self.OUTCOME.from_dict(values) for name, values in self.sections.get(section, {}).items()}

    def printed_versions(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


def item(text: str) -> str:
    """An entry of a list, wrapped."""
    return textwrap.fill(f"* {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
