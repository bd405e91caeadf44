"""`optimum-cli neuron cache`: what the compile cache holds, and how to empty it.

Clearing deletes a folder's content, so it is done only in a folder that holds nothing but what a compile cache holds.
"""

import os
import shutil
from argparse import ArgumentParser
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from optimum.commands.base import CommandInfo

from .sizes import format_bytes
from .verb import FAILED, NeuronVerb


@dataclass(frozen=True)
class Measure:
    """Files below a folder: how many, their bytes, and when the newest was written (seconds since the epoch)."""

    files: int
    size: int
    newest: float


class CacheCommand(NeuronVerb):
    COMMAND = CommandInfo(name="cache", help="List, measure or clear the compile cache.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("action", nargs="?", choices=("list", "size", "clear"), default="list")
        parser.add_argument("--yes", action="store_true", help="Clear without asking.")

    def execute(self) -> int:
        from ..runtime import cache_dir

        directory = cache_dir()
        if not directory.is_dir():
            print(f"{directory} does not exist: nothing has been compiled into it yet.")
            return 0
        if self.args.action == "list":
            return _list(directory)
        if self.args.action == "size":
            total = measure(directory)
            print(f"{directory}: {format_bytes(total.size)} in {total.files} files")
            return 0
        return _clear(directory, ask=not self.args.yes)


def measure(path: Path) -> Measure:
    """Adds up the files below `path` (or `path` itself); files that vanish meanwhile are left out."""
    paths = [path] if not path.is_dir() or path.is_symlink() else path.rglob("*")
    files, size, newest = 0, 0, 0.0
    for entry in paths:
        try:
            status = entry.lstat()
        except FileNotFoundError:
            continue
        if not entry.is_dir() or entry.is_symlink():
            files, size, newest = files + 1, size + status.st_size, max(newest, status.st_mtime)
    return Measure(files, size, newest)


def _list(directory: Path) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table("entry", "files", "size", "newest", title=str(directory), title_justify="left", box=None)
    for entry in sorted(directory.iterdir()):
        total = measure(entry)
        newest = datetime.fromtimestamp(total.newest).strftime("%Y-%m-%d %H:%M") if total.files else ""
        table.add_row(entry.name, str(total.files), format_bytes(total.size), newest)
    Console(soft_wrap=True, highlight=False, markup=False).print(table)
    return 0


def _clear(directory: Path, ask: bool) -> int:
    reason = reason_not_to_clear(directory)
    if reason is not None:
        raise ValueError(f"{directory} is not cleared: {reason}. Delete by hand what you do not need there.")
    total = measure(directory)
    if ask and input(f"Delete {format_bytes(total.size)} in {directory}? [y/N] ").strip().lower() not in ("y", "yes"):
        print("Nothing was deleted.")
        return FAILED
    for entry in list(directory.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    print(f"Deleted {format_bytes(total.size)} in {directory}")
    return 0


def reason_not_to_clear(directory: Path) -> str | None:
    """Why the content of `directory` may be more than a compile cache; None where it may be deleted."""
    directory = directory.resolve()
    for name, place in (("home folder", Path.home().resolve()), ("current folder", Path.cwd().resolve())):
        if place == directory or directory in place.parents:
            return f"your {name} is in it"
    if directory.stat().st_uid != os.getuid():
        return "it belongs to another user"
    foreign = sorted(entry.name for entry in directory.iterdir() if not _is_cache_entry(entry))
    return f"it holds files that are none of a compile cache's ({', '.join(foreign[:5])})" if foreign else None


def _is_cache_entry(entry: Path) -> bool:
    raise NotImplementedError
