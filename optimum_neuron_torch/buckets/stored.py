"""Making one compiled function: loaded where this machine compiled it before, else compiled and stored."""

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import runtime
from . import aot
from .artifacts import Artifact, ArtifactStore, Header
from .keys import artifact_key, why_not_storable
from .notes import count_stored, counted, note, noted
from .sources import digests


logger = logging.getLogger(__name__)

# Recompilations that Dynamo may make of one function that is not stored; what the plugin knows of is in its key.
RECOMPILE_LIMIT = 8
# torch.compile makes one function at a time, in whichever thread; so does compiling ahead.
_making = threading.RLock()


@dataclass(frozen=True)
class Made:
    """A compiled function: what to call, the file it is stored in, whether it came from there, and where it did not,
    why it could not be stored.
    """

    call: Callable
    file: Path | None = None
    is_loaded: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class Maker:
    """Makes functions of one prepared object: `name` is what its graphs are recorded under, `options` are the user's
    for the compile backend, `bucket` is what the function serves, for messages.
    """

    name: str
    options: dict[str, Any] | None
    bucket: str = ""

    def make(self, step: Callable, key: tuple, states: Sequence[str], args: Sequence[Any]) -> Made:
        """`step` compiled for arguments like `args`, which `key` and `states` tell apart from others."""
        store, name, reason = ArtifactStore.open(), None, why_not_storable(step, args)
        if store is None or not aot.is_available():
            reason = "the compile backend keeps no graphs, or torch cannot store them"
        if reason is None:
            name = artifact_key(step, key, states, args, self.options)
        if store is None or name is None:
            return Made(self._compile_at_first_call(step), reason=reason or "the compile backend names no version")
        seen: set[Path] = set()
        with _making:
            made = self._load(store, name, args, seen)
            if made is None:
                with store.lock(name):
                    # Another process may have compiled it meanwhile.
                    made = self._load(store, name, args, seen) or self._compile_and_store(store, name, step, args)
        return made

    def _load(self, store: ArtifactStore, name: str, args: Sequence[Any], seen: set[Path]) -> Made | None:
        """A stored function that serves `args`, or None; those `seen` did not."""
        for artifact in store.variants(name, seen):
            call = self._load_variant(store, artifact, args)
            if call is not None:
                store.touch(artifact)
                for kind, text in artifact.header.notes:
                    note(text, kind)
                count_stored(artifact.header.attention)
                return Made(call, artifact.path, is_loaded=True)
        return None

    def _load_variant(self, store: ArtifactStore, artifact: Artifact, args: Sequence[Any]) -> Callable | None:
        try:
            with runtime.model_named(self.name):
                return aot.checked(aot.load(artifact.payload), args)
        except aot.RefusedError as error:
            logger.info("%s is not for this call of %s: %s", artifact.path, self.name, error)
        except Exception as error:  # unpickling fails in any way
            if runtime.is_compiler_error(error):
                raise
            store.discard(artifact, f"{type(error).__name__}: {error}")
        return None

    def _compile_and_store(self, store: ArtifactStore, name: str, step: Callable, args: Sequence[Any]) -> Made:
        options = runtime.compile_options(self.name, self.options, self.bucket)
        known = len(runtime.graph_records())
        try:
            compiled = aot.compile_ahead(step, args, options)
        except torch._dynamo.exc.Unsupported:
            raise
        except Exception as error:  # torch.compile either works, or raises what the user should see
            logger.debug("compiling ahead failed", exc_info=True)
            return Made(self._compile_at_first_call(step), reason=f"{type(error).__name__}: {error}")
        file = reason = None
        try:
            header = Header(
                function=f"{step.__module__}.{step.__qualname__}",
                sources=digests(aot.traced_modules(compiled)),
                programs=tuple(r["program"] for r in runtime.graph_records()[known:] if r.get("program")),
                threads=torch.get_num_threads(),
                notes=noted(),
                attention=counted(),
            )
            file = store.add(name, header, aot.dump(compiled))
        except OSError as error:
            reason = str(error)
            warnings.warn(f"A compiled graph was not stored: {error}", RuntimeWarning, stacklevel=2)
        except Exception as error:  # what a graph holds may not pickle
            reason = f"{type(error).__name__}: {error}"
        return Made(aot.checked(compiled, args), file, reason=reason)

    def _compile_at_first_call(self, step: Callable) -> Callable:
        return torch.compile(
            step,
            backend="neuron",
            fullgraph=True,
            dynamic=False,
            options=runtime.compile_options(self.name, self.options, self.bucket),
            recompile_limit=RECOMPILE_LIMIT,
            isolate_recompiles=True,
        )
