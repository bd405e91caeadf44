"""The compiled functions of one prepared object: one per (function, bucket), made when first called.

The guards by which Dynamo recognises a call cost more than the rest of its host time, so they are dropped once a
function was made; keys hold what they held (`keys.py`, `state.py`).
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .. import runtime
from ..config import NeuronConfig
from ..report import Ledger
from .keys import process_state, signature
from .manifest import GraphEntry, Manifest, bucket_of
from .progress import compiling
from .state import ModuleState
from .stored import Made, Maker


logger = logging.getLogger(__name__)


class Graphs:
    """Compiles module-level functions at static shapes and runs them, one at a time.

    A logical core runs one graph at a time, and Dynamo's caches are no place for races, so calls are serialised by a
    lock.
    """

    def __init__(self, ledger: Ledger, config: NeuronConfig) -> None:
        if config.compile == "blocks":
            raise NotImplementedError("compile='blocks' is not implemented yet: use compile='model' or compile=False")
        if config.nki == "simulate":
            raise NotImplementedError(
                "nki='simulate' is not implemented yet: NKI ops compute with torch (nki='torch')"
            )
        self.ledger, self.config = ledger, config
        self._compiled: dict[tuple, Callable] = {}
        self._buckets: set[tuple] = set()
        self._states: dict[int, tuple[torch.nn.Module, ModuleState]] = {}
        self._manifest: Manifest | None = None
        self._lock = threading.RLock()
        self._has_said_why = False

    def __len__(self) -> int:
        return len(self._compiled)

    def __deepcopy__(self, memo: dict) -> "Graphs":
        return Graphs(self.ledger, self.config)

    def has(self, function: str, key: tuple) -> bool:
        """Whether this bucket was compiled already."""
        return (function, key) in self._buckets

    def call(self, function: str, key: tuple, step: Callable, *args: Any) -> Any:
        """Run `step(*args)` compiled for (function, key), the state of the modules among `args`, and the process's.

        `step` is importable, so that what was compiled can be stored. A key begins with the bucket's items.
        """
        if self.config.compile is False:
            return step(*args)
        with self._lock:
            states = [self._state(arg) for arg in args if isinstance(arg, torch.nn.Module)]
            known = (function, key, *states, signature(args), process_state())
            compiled = self._compiled.get(known)
            if compiled is not None:
                return compiled(*args)
            started = time.perf_counter()
            bucket = _described(function, key)
            with compiling(f"{self.ledger.name}, {bucket}"):
                made = Maker(self.ledger.name, self.config.options, bucket).make(step, key, states, args)
                result = made.call(*args)
            self._compiled[known] = made.call
            self._buckets.add((function, key))
            self._note(made, function, key, args, time.perf_counter() - started)
            return result

    def _state(self, module: torch.nn.Module) -> str:
        entry = self._states.get(id(module))
        if entry is None:
            entry = self._states[id(module)] = (module, ModuleState(module))
        return entry[1].digest()

    def _note(self, made: Made, function: str, key: tuple, args: tuple, seconds: float) -> None:
        """Enter a function into the model's manifest; say once why functions are not stored."""
        if made.reason is not None and not self._has_said_why:
            self._has_said_why = True
            logger.info(
                "%s: compiled functions are not stored, so that each process traces them again (%s)",
                self.ledger.name,
                made.reason.splitlines()[0],
            )
        module = next((arg for arg in args if isinstance(arg, torch.nn.Module)), None)
        if module is not None and runtime.graph_directory() is not None:
            self._manifest = Manifest(module)
        if self._manifest is not None:  # the functions without a module among their arguments come after one that has
            entry = GraphEntry.of(function, bucket_of(key) or _sizes(args), made.file, seconds)
            (self._manifest.loaded if made.is_loaded else self._manifest.compiled)(entry)


def _sizes(args: tuple) -> dict[str, int]:
    """The sizes of the first tensor, for a function that runs at exact shapes."""
    first = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    return {} if first is None else {f"axis{axis}": size for axis, size in enumerate(first.shape)}


def _described(function: str, key: tuple) -> str:
    """`decode, batch 4, cache 128`: the function and the sizes of its key."""
    sizes = bucket_of(key)
    return ", ".join([function, *(f"{axis} {size}" for axis, size in sizes.items())])
