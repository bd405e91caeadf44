"""The cache's size limit: what was not used for longest goes first, and never what this process uses.

`OPTIMUM_NEURON_CACHE_SIZE` sets it, as `20GB` or `512MiB`; `0` is no limit. Everything below `graphs/` counts: stored
functions, AOTAutograd's results, compiled programs, of every version of torch. What goes is a whole entry, moved out
of the way before it is deleted, so that a reader finds all of it or nothing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock


logger = logging.getLogger(__name__)

VARIABLE = "OPTIMUM_NEURON_CACHE_SIZE"
DEFAULT_LIMIT = "20GiB"
# What is freed beyond the limit, so that not every new entry evicts one.
_TARGET = 0.9
# Sizes are looked at so often at most; looking takes a while in a large cache.
_PERIOD_S = 60.0
# Unfinished files, and locks nobody has taken for so long, belong to no living process.
_STALE_S = 24 * 3600.0
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Entries, as patterns below the folder of one machine.
_ENTRIES = ("artifacts/*", "aotautograd/*", "programs/*/*")
_started = time.time()
_looked = float("-inf")


@dataclass(frozen=True)
class Entry:
    """One thing that is kept or goes as a whole."""

    path: Path
    size: int
    used: float


def limit() -> int | None:
    """Bytes the cache may hold; None for no limit. Raises ValueError for a size that is none."""
    return parse_size(os.environ.get(VARIABLE) or DEFAULT_LIMIT) or None


@functools.cache
def parse_size(text: str) -> int:
    """Bytes in `text`: a number with a unit or none. Decimal and binary names mean the binary unit."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{VARIABLE}={text!r} is no size: write a number of bytes, or one like 512MB or 20GiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def trim(directory: Path | None) -> int:
    """
    Evict what exceeds the limit, unless that was looked at a moment ago or another process is at it.

    Args:
        directory: the folder of this machine's graphs; None does nothing.

    Returns the bytes that were freed.
    """
    global _looked
    if directory is None or time.monotonic() - _looked < _PERIOD_S:
        return 0
    _looked = time.monotonic()
    allowed = limit()
    with contextlib.suppress(OSError), FileLock(directory.parent / ".eviction.lock", timeout=0, mode=0o600):
        _remove_stale(directory.parent)
        return 0 if allowed is None else _evict(directory.parent, allowed)
    return 0


def entries(graphs: Path) -> Iterator[Entry]:
    """The entries below `graphs/`, of all machines."""
    for machine in graphs.glob("torch-*"):
        for pattern in _ENTRIES:
            for path in machine.glob(pattern):
                if not path.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        yield _measure(path)


def _evict(graphs: Path, allowed: int) -> int:
    found = sorted(entries(graphs), key=lambda entry: entry.used)
    total = sum(entry.size for entry in found)
    if total <= allowed:
        return 0
    freed = 0
    for entry in found:
        if total - freed <= allowed * _TARGET or entry.used >= _started:  # the rest is this process's
            break
        _delete(entry.path)
        freed += entry.size
    logger.info("%s held %d MiB, more than %s allows: %d MiB were evicted", graphs, total >> 20, VARIABLE, freed >> 20)
    return freed


def _measure(path: Path) -> Entry:
    """Size and last use. Whoever uses an entry sets the time of a file of it, or of its folder."""
    parts = [path, *path.rglob("*")] if path.is_dir() else [path]
    stats = [part.lstat() for part in parts]
    return Entry(path, sum(each.st_size for each in stats), max(each.st_mtime for each in stats))


def _delete(path: Path) -> None:
    doomed = path.with_name(f".deleting-{os.getpid()}-{path.name}")
    with contextlib.suppress(OSError):
        path.rename(doomed)
        shutil.rmtree(doomed) if doomed.is_dir() else doomed.unlink()


def _remove_stale(graphs: Path) -> None:
    """What processes left that were killed: unfinished files, half deleted entries, locks."""
    before = time.time() - _STALE_S
    for pattern in ("torch-*/locks/*.lock", "torch-*/*/.*", "torch-*/*/*/.*", "torch-*/.*"):
        for path in graphs.glob(pattern):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < before:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
