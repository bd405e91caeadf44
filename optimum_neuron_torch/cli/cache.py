"""`optimum-cli neuron cache`: what the compile cache holds, how to empty it, and how to take it elsewhere.

Graphs lie in one folder for each torch and kind of machine; manifests say which models they are of. Clearing deletes
these folders and nothing else: what else lies in the directory is not ours.
"""

import json
import os
import shutil
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from optimum.commands.base import CommandInfo

from .sizes import format_bytes
from .verb import FAILED, NeuronVerb


# Below the cache's directory, beside `graphs/`.
MANIFESTS = "manifests"


@dataclass(frozen=True)
class Measure:
    """Files below a folder: how many, their bytes, and when the newest was written (seconds since the epoch)."""

    files: int
    size: int
    newest: float


class CacheCommand(NeuronVerb):
    COMMAND = CommandInfo(name="cache", help="List, measure, clear, export or import the compile cache.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("action", nargs="?", choices=("list", "size", "clear", "export", "import"), default="list")
        parser.add_argument("path", nargs="?", help="The file to export to, or to import.")
        parser.add_argument("--yes", action="store_true", help="Clear without asking.")
        parser.add_argument("--isa", help="Export kernels for this named level of vector instructions alone.")
        parser.add_argument("--threads", type=int, help="Export the graphs for this number of threads.")
        parser.add_argument(
            "--trust", action="store_true", help="Import code: you trust who made the file as you trust a program."
        )

    def execute(self) -> int:
        if self.args.action in ("export", "import"):
            return self._exchange()
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

    def _exchange(self) -> int:
        import optimum_neuron_torch as ont

        if self.args.path is None:
            raise ValueError(
                f"{self.args.action} needs a file: optimum-cli neuron cache {self.args.action} graphs.zip"
            )
        if self.args.action == "export":
            path = ont.export_cache(self.args.path, isa=self.args.isa, threads=self.args.threads)
            print(f"{path}: {format_bytes(path.stat().st_size)}")
        elif not self.args.trust:
            raise ValueError(
                f"{self.args.path} holds code that will run here: --trust says that you trust who made it"
            )
        else:
            print(f"{ont.import_cache(self.args.path, trust=True)} compiled functions taken from {self.args.path}")
        return 0


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
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    columns = ("model", "function", "bucket", "stored", "compiled in", "loads", "last used")
    models = Table(title="graphs of models", title_justify="left", box=None)
    for column in columns:
        models.add_column(column, no_wrap=True)
    for row in graph_rows(directory):
        models.add_row(*row)
    if models.row_count:
        console.print()
        # One line for each graph, whatever the terminal's width.
        Console(soft_wrap=True, highlight=False, markup=False, width=200).print(models)
    return 0


def graph_rows(directory: Path) -> Iterator[tuple[str, ...]]:
    """A row for each graph that a manifest lists, models by name, the most recently used first."""
    for path in sorted((directory / MANIFESTS).glob("*.json")):
        try:
            manifest = json.loads(path.read_text())
            graphs = sorted(manifest["graphs"], key=lambda graph: graph["used"], reverse=True)
            for graph in graphs:
                stored = graph["file"] and directory / "graphs" / graph["machine"] / "artifacts" / graph["file"]
                yield (
                    path.stem,
                    graph["function"],
                    ", ".join(f"{axis} {size}" for axis, size in graph["bucket"].items()),
                    format_bytes(graph["size"]) if stored and stored.is_dir() else "no",
                    f"{graph['seconds']:.1f} s",
                    str(graph["loads"]),
                    datetime.fromtimestamp(graph["used"]).strftime("%Y-%m-%d %H:%M"),
                )
        except (OSError, ValueError, KeyError, TypeError):  # another version's, or half of one
            yield (path.stem, "cannot be read", "", "", "", "", "")


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
    for file in (directory / MANIFESTS).glob("*.*"):  # no folder of ours holds them, nor a link
        if not (directory / MANIFESTS).is_symlink() and file.suffix in (".json", ".lock"):
            file.unlink(missing_ok=True)
    print(f"Deleted {size} in {directory}")
    return 0
