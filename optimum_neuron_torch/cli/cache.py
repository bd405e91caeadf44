"""`optimum-cli neuron cache`: what the compile cache holds, and how to empty it.

Graphs lie in one folder for each torch and kind of CPU, since kernels run on no other. Clearing deletes these folders
and nothing else: what else lies in the directory is not ours.
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
        entries = graph_folders(directory)
        if not entries:
            print(f"{directory} holds no compiled graphs.")
            return 0
        if self.args.action == "list":
            return _list(directory, entries)
        if self.args.action == "size":
            print(f"{directory}: {format_bytes(sum(measure(entry).size for entry in entries))}")
            return 0
        return _clear(directory, entries, ask=not self.args.yes)


def graph_folders(directory: Path) -> list[Path]:
    """The folders of compiled graphs in a cache, one for each torch and kind of CPU; links are not followed."""
    graphs = directory / "graphs"
    if not graphs.is_dir() or graphs.is_symlink():
        return []
    return sorted(entry for entry in graphs.glob("torch-*") if entry.is_dir() and not entry.is_symlink())


def measure(folder: Path) -> Measure:
    """Adds up the files below `folder`; files that vanish meanwhile are left out."""
    files, size, newest = 0, 0, 0.0
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if not path.is_dir() or path.is_symlink():
            files, size, newest = files + 1, size + status.st_size, max(newest, status.st_mtime)
    return Measure(files, size, newest)


def _list(directory: Path, entries: list[Path]) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table("graphs for", "files", "size", "newest", title=str(directory), title_justify="left", box=None)
    for entry in entries:
        total = measure(entry)
        newest = datetime.fromtimestamp(total.newest).strftime("%Y-%m-%d %H:%M") if total.files else ""
        table.add_row(entry.name, str(total.files), format_bytes(total.size), newest)
    Console(soft_wrap=True, highlight=False, markup=False).print(table)
    return 0


def _agrees(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # no one there to ask
        return False


def _clear(directory: Path, entries: list[Path], ask: bool) -> int:
    size = format_bytes(sum(measure(entry).size for entry in entries))
    if ask and not _agrees(f"Delete {size} of compiled graphs in {directory}? [y/N] "):
        print("Nothing was deleted (--yes deletes without asking).")
        return FAILED
    for entry in entries:
        # Out of the way first: a process that compiles meanwhile never sees half of it.
        doomed = entry.with_name(f".deleting-{os.getpid()}-{entry.name}")
        entry.rename(doomed)
        shutil.rmtree(doomed)
    print(f"Deleted {size} in {directory}")
    return 0
