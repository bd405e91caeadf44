"""The compiled functions of one prepared object: one per (function, bucket), made when first called."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from .. import runtime
from ..config import NeuronConfig
from ..report import Ledger
from .progress import compiling


# Recompilations allowed inside one bucket (a resized embedding, another adapter); each shows up in report() as a graph
# of its own.
RECOMPILE_LIMIT = 8


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
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._compiled)

    def __deepcopy__(self, memo: dict) -> "Graphs":
        return Graphs(self.ledger, self.config)

    def has(self, function: str, key: tuple) -> bool:
        """Whether this bucket was compiled already."""
        return (function, key) in self._compiled

    def call(self, function: str, key: tuple, step: Callable, *args: Any) -> Any:
        """Run `step(*args)` compiled for (function, key). `step` is importable, so that artifacts can be stored."""
        if self.config.compile is False:
            return step(*args)
        with self._lock:
            compiled = self._compiled.get((function, key))
            if compiled is None:
                compiled = self._compile(step)
                with compiling(f"{self.ledger.name}, {function}"):
                    result = compiled(*args)
                self._compiled[function, key] = compiled
                return result
            return compiled(*args)

    def _compile(self, step: Callable) -> Callable:
        return torch.compile(
            step,
            backend="neuron",
            fullgraph=True,
            dynamic=False,
            options=runtime.compile_options(self.ledger.name, self.config.options),
            recompile_limit=RECOMPILE_LIMIT,
            isolate_recompiles=True,
        )
