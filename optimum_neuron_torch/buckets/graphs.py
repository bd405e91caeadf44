"""The compiled functions of one prepared object: one per (function, bucket), made when first called.

A function is loaded where this machine has compiled it before, in any process; else it is compiled ahead of its first
call and stored. What cannot be stored is compiled by torch.compile, at its first call.
"""

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import runtime
from ..config import NeuronConfig
from ..report import Ledger
from . import aot
from .artifacts import Artifact, ArtifactStore, Header
from .keys import artifact_key, process_state, signature, why_not_storable
from .progress import compiling
from .sources import digests
from .state import ModuleState


logger = logging.getLogger(__name__)

# Recompilations that Dynamo may make of one function that is not stored; what the plugin knows of is in its key.
RECOMPILE_LIMIT = 8
# torch.compile makes one function at a time, in whichever thread; so does compiling ahead.
_making = threading.RLock()


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

        `step` is importable, so that what was compiled can be stored. The key tells tensors of different sizes apart.
        """
        if self.config.compile is False:
            return step(*args)
        with self._lock:
            states = [self._state(arg) for arg in args if isinstance(arg, torch.nn.Module)]
            known = (function, key, *states, signature(args), process_state())
            compiled = self._compiled.get(known)
            if compiled is None:
                with compiling(f"{self.ledger.name}, {_described(function, key)}"):
                    compiled, result = self._first_call(function, key, states, step, args)
                self._compiled[known] = compiled
                self._buckets.add((function, key))
                return result
            return compiled(*args)

    def _state(self, module: torch.nn.Module) -> str:
        entry = self._states.get(id(module))
        if entry is None:
            entry = self._states[id(module)] = (module, ModuleState(module))
        return entry[1].digest()

    # ---- making ---------------------------------------------------------------------------------------------------

    def _first_call(
        self, function: str, key: tuple, states: Sequence[str], step: Callable, args: Sequence[Any]
    ) -> tuple[Callable, Any]:
        """The compiled function, and what it returned for `args`."""
        store, reason = ArtifactStore.open(), why_not_storable(step, args)
        options = runtime.compile_options(self.ledger.name, self.config.options, _described(function, key))
        name = artifact_key(step, key, states, args, self.config.options)
        if not aot.is_available():
            reason = "this torch cannot compile ahead of a call"
        if store is None or name is None or reason is not None:
            self._say_why(reason or "the compile backend keeps no directory of graphs")
            compiled = self._compile_at_first_call(step, options)
            return compiled, compiled(*args)
        with _making:
            compiled = self._load(store, name, args)
            if compiled is None:
                with store.lock(name):
                    compiled = self._load(store, name, args)  # another process may have compiled it meanwhile
                    if compiled is None:
                        compiled = self._compile_and_store(store, name, step, args, options)
        return compiled, compiled(*args)

    def _load(self, store: ArtifactStore, name: str, args: Sequence[Any]) -> Callable | None:
        """A stored function that serves `args`, or None."""
        for artifact in store.variants(name):
            compiled = self._load_variant(store, artifact, args)
            if compiled is not None:
                store.touch(artifact)
                return compiled
        return None

    def _load_variant(self, store: ArtifactStore, artifact: Artifact, args: Sequence[Any]) -> Callable | None:
        try:
            with runtime.model_named(self.ledger.name):
                return aot.checked(aot.load(artifact.payload), args)
        except aot.RefusedError as error:
            logger.info("%s is not for this call of %s: %s", artifact.path, self.ledger.name, error)
        except Exception as error:  # unpickling fails in any way
            if runtime.is_compiler_error(error):
                raise
            store.discard(artifact, f"{type(error).__name__}: {error}")
        return None

    def _compile_and_store(
        self, store: ArtifactStore, name: str, step: Callable, args: Sequence[Any], options: dict[str, Any]
    ) -> Callable:
        try:
            compiled = aot.compile_ahead(step, args, options)
        except torch._dynamo.exc.Unsupported:
            raise
        except Exception as error:  # torch.compile either works, or raises what the user should see
            logger.debug("compiling ahead failed", exc_info=True)
            self._say_why(f"{type(error).__name__}: {error}")
            return self._compile_at_first_call(step, options)
        try:
            header = Header(f"{step.__module__}.{step.__qualname__}", digests(aot.traced_modules(compiled)))
            store.add(name, header, aot.dump(compiled))
        except OSError as error:
            warnings.warn(f"A compiled graph was not stored: {error}", RuntimeWarning, stacklevel=2)
        except Exception as error:  # what a graph holds may not pickle
            self._say_why(f"{type(error).__name__}: {error}")
        return aot.checked(compiled, args)

    def _compile_at_first_call(self, step: Callable, options: dict[str, Any]) -> Callable:
        return torch.compile(
            step,
            backend="neuron",
            fullgraph=True,
            dynamic=False,
            options=options,
            recompile_limit=RECOMPILE_LIMIT,
            isolate_recompiles=True,
        )

    def _say_why(self, reason: str) -> None:
        if not self._has_said_why:
            self._has_said_why = True
            logger.info(
                "%s: compiled functions are not stored, so that each process traces them again (%s)",
                self.ledger.name,
                reason.splitlines()[0],
            )


def _described(function: str, key: tuple) -> str:
    """`decode, batch 4, cache 128`: the function and the sizes of its key."""
    sizes = [part for part in key if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str)]
    return ", ".join([function, *(f"{axis} {size}" for axis, size in sizes if isinstance(size, (int, tuple)))])
