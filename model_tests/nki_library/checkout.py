"""A checkout of aws-neuron/nki-library: is it one, which commit, and which of its test files are there."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path


TESTS = Path("test/integration/nkilib")
SOURCES = Path("src/nkilib_src/nkilib")


class CheckoutError(ValueError):
    """The given path cannot be used; the message says why and what would do."""


@dataclass(frozen=True)
class Checkout:
    """
    The library and its tests.

    Args:
        path: the folder that holds `src/` and `test/`.
        commit: short hash and date; None outside git.
    """

    path: Path
    commit: str | None

    @classmethod
    def read(cls, path: Path) -> Checkout:
        """Raises CheckoutError for a path that is missing or holds no nki-library with a simulation mode."""
        path = path.expanduser().resolve()
        for part in (TESTS, SOURCES, Path("test/utils/simulation_setup.py")):
            if not (path / part).exists():
                raise CheckoutError(
                    f"{path} holds no {part}: give the path of a checkout of aws-neuron/nki-library, of April 2026 "
                    "or later, whose tests have a simulation mode."
                )
        return cls(path, _commit(path))

    def files(self, folder: str) -> list[str]:
        """The test files at or under `folder`, relative to the folder of integration tests."""
        start = self.path / TESTS / folder
        found = [start] if start.is_file() else sorted(start.rglob("test_*.py"))
        if not found:
            raise CheckoutError(f"{self.path / TESTS} has no test files at {folder}.")
        # Files with that name that hold no tests hold what the others share.
        return [str(file.relative_to(self.path / TESTS)) for file in found if "def test_" in file.read_text()]

    def unparseable(self) -> dict[str, str]:
        """Sources that Python cannot parse, and what it says of them."""
        errors = {}
        for file in sorted((self.path / SOURCES).rglob("*.py")):
            try:
                ast.parse(file.read_text())
            except SyntaxError as error:
                errors[str(file.relative_to(self.path / SOURCES))] = f"line {error.lineno}: {error.msg}"
        return errors


def _commit(path: Path) -> str | None:
    if not (path / ".git").exists():
        return None
    command = ["git", "-C", str(path), "log", "-1", "--format=%h of %cs"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
