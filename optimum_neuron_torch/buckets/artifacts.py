"""Stored functions on disk: one folder per key, in it one file per variant, whose name is the digest of its content.

A variant is a function traced from other sources, or for arguments that the key does not tell apart. Files appear
under their name only when they are whole. The directory is the backend's (`runtime.graph_directory()`): it belongs to
the user, nobody else may write to it, and it is for one kind of machine.
"""

import contextlib
import hashlib
import json
import logging
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock

from .. import runtime
from ..files import replacing
from .notes import Note
from .sources import are_unchanged


logger = logging.getLogger(__name__)

FOLDER = "artifacts"
LOCKS = "locks"
FORMAT = 2
# After this a process that waits for another's function compiles it itself: the other one may be stopped.
LONGEST_WAIT_S = 1800.0
# Variants kept per key; the oldest goes.
MOST_VARIANTS = 4


@dataclass(frozen=True)
class Header:
    """What is known of a stored function without running anything of it: its name, the digests of the sources it was
    traced from, the names of the compiled programs of its graphs, how many threads it was made for, and what its code
    noted while it was traced; which paths its attention takes, and how often.
    """

    function: str
    sources: dict[str, str]
    programs: tuple[str, ...] = ()
    threads: int = 1
    notes: tuple[Note, ...] = ()
    attention: dict[str, int] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True)
class Artifact:
    """A stored function: `payload` is code, and is run when it is loaded."""

    path: Path
    header: Header
    payload: bytes


class ArtifactStore:
    """The stored functions for this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def open(cls) -> "ArtifactStore | None":
        """The store; None where the backend names no directory that can be trusted."""
        directory = runtime.graph_directory()
        return None if directory is None else cls(directory)

    def variants(self, key: str, seen: set[Path]) -> Iterator[Artifact]:
        """The whole, current variants of `key` that were not `seen` before, newest first. Damaged ones are removed,
        with a warning.
        """
        with contextlib.suppress(FileNotFoundError):
            paths = [path for path in self._folder(key).iterdir() if not path.name.startswith(".")]
            for path in sorted(set(paths) - seen, key=_modified, reverse=True):
                artifact = self._read(path)
                if artifact is None:
                    continue
                seen.add(path)
                if artifact.header.format == FORMAT:
                    if are_unchanged(artifact.header.sources):
                        yield artifact
                    else:
                        logger.info("%s was traced from sources that have changed since", path)

    def headers(self, key: str) -> Iterator[tuple[Path, Header]]:
        """The files of `key` with their headers, in whatever state they are."""
        for path in sorted(self._folder(key).glob("[!.]*")):
            with contextlib.suppress(OSError, ValueError, TypeError), path.open("rb") as file:
                yield path, Header(**json.loads(file.readline()))

    def keys(self) -> list[str]:
        """The keys of all stored functions."""
        return sorted(path.name for path in (self.directory / FOLDER).glob("[!.]*"))

    def add(self, key: str, header: Header, payload: bytes) -> Path:
        """Store a variant. Raises OSError where that fails."""
        content = json.dumps(asdict(header), sort_keys=True).encode() + b"\n" + payload
        folder = self._folder(key)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / hashlib.sha256(content).hexdigest()
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._drop_old_variants(folder, keep=path)
        return path

    def touch(self, artifact: Artifact) -> None:
        """Note that a variant was used: what was not used for long is evicted first."""
        with contextlib.suppress(OSError):
            os.utime(artifact.path)

    def discard(self, artifact: Artifact, reason: Exception | str) -> None:
        """Remove a variant that does not load, with a warning."""
        self._remove(artifact.path, reason)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Held while `key` is compiled, so that processes which want the same function compile it once.

        The system releases it when its holder dies. Where there are no locks, or one is held for very long, each
        process compiles for itself.
        """
        folder = self.directory / LOCKS
        lock = FileLock(folder / f"{key}.lock", timeout=LONGEST_WAIT_S, mode=0o600)
        started = time.monotonic()
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            lock.acquire(poll_interval=0.02)
        except (OSError, NotImplementedError) as error:
            logger.info("other processes may compile the same function at once: %s", error)
        if (waited := time.monotonic() - started) > 1:
            logger.info("waited %.1f s for another process that compiled the same function", waited)
        try:
            yield
        finally:
            lock.release()

    def _folder(self, key: str) -> Path:
        return self.directory / FOLDER / key

    def _read(self, path: Path) -> Artifact | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # evicted, or replaced, meanwhile
            return None
        try:
            if hashlib.sha256(content).hexdigest() != path.name:
                raise ValueError("its content does not match its digest")
            head, payload = content.split(b"\n", 1)
            return Artifact(path, Header(**json.loads(head)), payload)
        except (ValueError, TypeError) as error:
            self._remove(path, error)
            return None

    def _remove(self, path: Path, reason: Exception | str) -> None:
        warnings.warn(f"The stored graph {path} is compiled anew: {reason}", RuntimeWarning, stacklevel=2)
        with contextlib.suppress(OSError):
            path.unlink()

    def _drop_old_variants(self, folder: Path, keep: Path) -> None:
        paths = sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=_modified)
        for path in paths[:-MOST_VARIANTS]:
            if path != keep:
                path.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
