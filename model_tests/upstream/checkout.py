"""A checkout of Diffusers or Transformers: is it one, which version, and a working folder to run its tests from."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


DEVICE_SPEC = Path(__file__).with_name("device_spec.py")


class CheckoutError(ValueError):
    """The given path cannot be used; the message says why and what would do."""


@dataclass(frozen=True)
class Checkout:
    """
    The tests of one library.

    Args:
        library: the import name, `diffusers` or `transformers`.
        path: the folder that holds `tests/`.
        version: what its sources say; None where it has none.
        commit: short hash; None outside git.
    """

    library: str
    path: Path
    version: str | None
    commit: str | None

    @classmethod
    def read(cls, library: str, path: Path) -> Checkout:
        """Raises CheckoutError for a path that is missing or holds no tests of that library."""
        path = path.expanduser().resolve()
        if not path.is_dir():
            raise CheckoutError(f"{path} is not a folder: give the path of a checkout of {library}.")
        if not (path / "tests").is_dir():
            raise CheckoutError(
                f"{path} holds no folder tests/, so it is no checkout of {library} (its wheels hold no tests): "
                "clone the repository at the installed version's tag."
            )
        text = [file.read_text() for file in (path / "tests").glob("*.py")]
        if not any(re.search(rf"^\s*(from|import) {library}\b", content, re.MULTILINE) for content in text):
            raise CheckoutError(f"The tests in {path / 'tests'} do not import {library}: is this another project?")
        return cls(library, path, _source_version(path / "src" / library / "__init__.py"), _commit(path))

    @property
    def installed(self) -> str:
        return metadata.version(self.library)

    def mismatch(self) -> str | None:
        """What to tell a user whose checkout is not of the installed version; None where it is."""
        if self.version == self.installed:
            return None
        found = self.version or "unknown (it has no sources)"
        return (
            f"{self.library}: the checkout's version is {found}, the installed one {self.installed}. Tests may "
            "fail for that reason alone: failures are repeated on the CPU to tell."
        )

    @contextmanager
    def workspace(self, own_sources: bool = False) -> Iterator[Path]:
        """
        A temporary folder like the checkout, made of links, to run pytest in.

        Both suites import the device spec by a name relative to the working folder, and put `src/` in front of the
        installed packages. Here it leads to the installed library, or with `own_sources` to the checkout's. What tests
        write stays out of the checkout.
        """
        sources = self.path / "src" / self.library if own_sources else _installed_folder(self.library)
        if not sources.is_dir():
            raise CheckoutError(f"{self.path} has no sources of {self.library} to test: {sources} is missing.")
        with tempfile.TemporaryDirectory(prefix=f"{self.library}-tests-") as name:
            folder = Path(name).resolve()
            for entry in self.path.iterdir():
                if entry.name not in {"src", ".git", DEVICE_SPEC.name}:
                    (folder / entry.name).symlink_to(entry)
            (folder / "src").mkdir()
            (folder / "src" / self.library).symlink_to(sources)
            (folder / DEVICE_SPEC.name).symlink_to(DEVICE_SPEC)
            yield folder


def _installed_folder(library: str) -> Path:
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        raise CheckoutError(f"{library} is not installed beside this program.")
    return Path(spec.origin).parent


def _source_version(init: Path) -> str | None:
    found = re.search(r'^__version__ = "(.+)"', init.read_text(), re.MULTILINE) if init.is_file() else None
    return found and found[1]


def _commit(path: Path) -> str | None:
    command = ["git", "-C", str(path), "rev-parse", "--short=12", "HEAD"]
    # The checkout itself, not a repository that it lies in.
    if not (path / ".git").exists():
        return None
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or None
