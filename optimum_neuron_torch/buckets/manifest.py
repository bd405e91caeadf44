"""What was ever compiled for a model: one JSON file per model beside the compile cache, shared by all processes.

It lists graphs by function and bucket, with sizes, times and the stored function's name. warmup() reads which buckets
a model has met; `optimum-cli neuron cache` shows it. It survives a new version of torch, for which its graphs have to
be compiled again. What checks of the model found is kept beside them.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from .. import runtime
from ..files import write_atomically
from .artifacts import ArtifactStore
from .sources import are_unchanged
from .state import describe


logger = logging.getLogger(__name__)

FOLDER = "manifests"
FORMAT = 1
# Graphs kept per model; those not used for longest go.
MOST_GRAPHS = 1000
# Checks kept per model: those made last.
MOST_CHECKS = 16
# How long to wait for another process that writes: a missed entry is no harm.
LONGEST_WAIT_S = 5.0
_UNRELATED = ("dtype", "torch_dtype", "architectures", "transformers_version")


@dataclass
class GraphEntry:
    """
    One graph of a model.

    Attributes: function, bucket: what it serves. file: the stored function's name; None where it could not be stored.
    machine: folder of the machine it was compiled for. size: bytes. seconds: what the first call took when it was
    compiled. compiled, used: seconds since the epoch. loads: how often a process loaded it. circumstances: what it
    holds beside the bucket's sizes (see keys.py).
    """

    function: str
    bucket: dict[str, Any]
    file: str | None
    machine: str | None
    size: int
    seconds: float
    compiled: float = field(default_factory=time.time)
    used: float = field(default_factory=time.time)
    loads: int = 0
    circumstances: str = ""

    @classmethod
    def of(
        cls, function: str, bucket: dict[str, Any], file: Path | None, seconds: float, circumstances: str = ""
    ) -> "GraphEntry":
        """The entry of a function that was just made; `file` is <machine>/artifacts/<name>/<digest>."""
        size = 0
        with suppress(OSError, AttributeError):  # evicted meanwhile, or never stored
            size = file.stat().st_size
        name, machine = (None, None) if file is None else (file.parent.name, file.parents[2].name)
        return cls(function, bucket, name, machine, size, seconds, circumstances=circumstances)

    @property
    def place(self) -> tuple:
        """What tells graphs apart."""
        return self.function, tuple(sorted(self.bucket.items())), self.file, self.machine


class Manifest:
    """The manifest of one model: its class and configuration, not its weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = type(model).__name__
        digest = hashlib.sha256(repr(_identity(model)).encode()).hexdigest()[:12]
        self.path = runtime.cache_dir() / FOLDER / f"{self.model}-{digest}.json"

    @classmethod
    def at(cls, path: Path) -> "Manifest":
        """The manifest in a file."""
        manifest = object.__new__(cls)
        manifest.path, manifest.model = path, path.stem.rpartition("-")[0]
        return manifest

    def graphs(self) -> list[GraphEntry]:
        """The graphs listed; none where there is no file, or none that can be read."""
        try:
            return [GraphEntry(**entry) for entry in self._read().get("graphs", [])]
        except (TypeError, AttributeError) as error:
            logger.info("%s cannot be read and starts anew: %s", self.path, error)
            return []

    def check(self, key: str) -> dict[str, Any] | None:
        """What the check called `key` found, or None."""
        found = self._read().get("checks")
        found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    def checked(self, key: str, found: dict[str, Any]) -> None:
        """Keep what the check called `key` found."""

        def add(checks: dict[str, Any]) -> None:
            checks.pop(key, None)
            checks[key] = found

        self._edit(lambda graphs: None, add)

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text())
            return data if isinstance(data, dict) and data.get("format") == FORMAT else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.info("%s cannot be read and starts anew: %s", self.path, error)
            return {}

    def buckets(self, function: str) -> list[dict[str, int]]:
        """The buckets of `function` that were met, most recently used first."""
        met: list[dict[str, int]] = []
        for entry in sorted(self.graphs(), key=lambda entry: entry.used, reverse=True):
            if entry.function == function and entry.bucket not in met:
                met.append(entry.bucket)
        return met

    def known(self, function: str, bucket: dict[str, int]) -> list[GraphEntry]:
        """The graphs of one bucket, of whatever machine and circumstances."""
        return [entry for entry in self.graphs() if entry.function == function and entry.bucket == bucket]

    def compiled(self, entry: GraphEntry) -> None:
        """Add a graph, or take its place."""
        self._edit(lambda graphs: graphs.update({entry.place: entry}))

    def merge(self, entries: list[GraphEntry]) -> None:
        """Add the graphs of another machine's manifest that are not listed here."""
        self._edit(lambda graphs: graphs.update({e.place: e for e in entries if e.place not in graphs}))

    def loaded(self, entry: GraphEntry) -> None:
        """Note that a graph came from the cache."""

        def count(graphs: dict[tuple, GraphEntry]) -> None:
            known = graphs.setdefault(entry.place, entry)
            known.used, known.loads, known.circumstances = time.time(), known.loads + 1, entry.circumstances

        self._edit(count)

    def _edit(
        self,
        change: Callable[[dict[tuple, GraphEntry]], None],
        change_checks: Callable[[dict[str, Any]], None] = lambda checks: None,
    ) -> None:
        """Read, change and write the graphs, by place, and the checks. What cannot be written is let be."""
        lock = FileLock(self.path.with_suffix(".lock"), timeout=LONGEST_WAIT_S, mode=0o600)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with lock.acquire(poll_interval=0.01):
                graphs = {entry.place: entry for entry in self.graphs()}
                change(graphs)
                kept = sorted(graphs.values(), key=lambda entry: entry.used)[-MOST_GRAPHS:]
                checks = self._read().get("checks")
                checks = checks if isinstance(checks, dict) else {}
                change_checks(checks)
                data = {
                    "format": FORMAT,
                    "model": self.model,
                    "graphs": [asdict(entry) for entry in kept],
                    "checks": dict(list(checks.items())[-MOST_CHECKS:]),
                }
                write_atomically(self.path, json.dumps(data, indent=1) + "\n")
        except (OSError, NotImplementedError) as error:  # a full disk, or a process that holds the lock for long
            logger.info("%s was not written: %s", self.path, error)


def is_loadable(entry: GraphEntry) -> bool:
    """Whether this process would load the graph, were its circumstances the same: it is stored for this machine, and
    the sources it was traced from are as they were.
    """
    store = ArtifactStore.open()
    if store is None or entry.file is None or entry.machine != store.directory.name:
        return False
    return any(are_unchanged(header.sources) for _, header in store.headers(entry.file))


def bucket_of(key: tuple) -> dict[str, int]:
    """The named sizes with which the key of a compiled function begins."""
    return dict(part for part in key if type(part) is tuple and len(part) == 2 and type(part[0]) is str)


def _identity(model: torch.nn.Module) -> Any:
    config = getattr(model, "config", None)
    if config is None:
        return describe([(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()])
    values = dict(config) if isinstance(config, dict) else vars(config)
    return describe(
        {name: value for name, value in values.items() if not name.startswith("_") and name not in _UNRELATED}
    )
