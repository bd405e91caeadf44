"""The compiled functions of one prepared object: one per (function, bucket), made when first called.

The guards by which Dynamo recognises a call cost more than the rest of its host time, so they are dropped once a
function was made; keys hold what they held (`keys.py`, `state.py`).
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .. import runtime
from ..config import NeuronConfig
from ..report import CountedCalls, Ledger
from .blocks import repeated_blocks
from .keys import circumstances, process_state, signature
from .manifest import GraphEntry, Manifest, bucket_of
from .notes import TracedPaths, counting, enter, noting
from .progress import compiling
from .regions import Regions
from .state import ModuleState
from .stored import Made, Maker
from .undisturbed import current_stretch


logger = logging.getLogger(__name__)

# What Dynamo raises for code that is no single graph, or that does not run on tensors without values.
UNTRACEABLE = (
    torch._dynamo.exc.Unsupported,
    torch._dynamo.exc.UserError,
    torch._dynamo.exc.TorchRuntimeError,
    torch._dynamo.exc.InternalTorchDynamoError,
)


class Graphs:
    """Compiles module-level functions at static shapes and runs them, one at a time.

    A logical core runs one graph at a time, and Dynamo's caches are no place for races, so calls are serialised by a
    lock.
    """

    def __init__(self, ledger: Ledger, config: NeuronConfig) -> None:
        self.ledger, self.config = ledger, config
        self._compiled: dict[tuple, Callable] = {}
        self._buckets: set[tuple] = set()
        self._states: dict[int, ModuleState] = {}
        self._digests: dict[int, str] = {}
        # How often the state of a module was found to be another: what was learned about its outputs holds no more.
        self.changes = 0
        self._asked: dict[int, tuple[object, str]] = {}
        self._manifest: Manifest | None = None
        self._made: set[tuple[str, frozenset, str]] = set()
        self._circumstances = ""
        self._regions = Regions(ledger)
        self._lock = threading.RLock()
        self._has_said_why = self._has_said_whole = False

    def __len__(self) -> int:
        return len(self._compiled)

    def __deepcopy__(self, memo: dict) -> "Graphs":
        return Graphs(self.ledger, self.config)

    def has(self, function: str, key: tuple) -> bool:
        """Whether this bucket was compiled already."""
        return (function, key) in self._buckets

    def is_made(self, function: str, bucket: dict[str, int], circumstances: str) -> bool:
        """Whether this process has the compiled function of a bucket, under these circumstances (see keys.py)."""
        return (function, frozenset(bucket.items()), circumstances) in self._made

    def state_of(self, module: torch.nn.Module) -> str:
        """What graphs of `module` depend on, as a digest; cheap while nothing changed."""
        with self._lock:
            return self._state(module)

    def call(self, function: str, key: tuple, step: Callable, *args: Any) -> Any:
        """Run `step(*args)` compiled for (function, key), the state of the modules among `args`, and the process's.

        `step` is importable, so that what was compiled can be stored. A key begins with the bucket's items.
        """
        with runtime.kernels_as(self.config.nki):
            return self._run(function, key, step, args)

    def _run(self, function: str, key: tuple, step: Callable, args: tuple[Any, ...]) -> Any:
        modules = [arg for arg in args if isinstance(arg, torch.nn.Module)]
        if self.config.compile is False:
            for module in modules:
                self._state(module)
            with noting() as notes, counting(self.ledger.attention):
                result = step(*args)
            enter(notes, self.ledger, function)
            return result
        with self._lock:
            states = [self._state(module) for module in modules]
            blocks = self._blocks(modules)
            self._buckets.add((function, key))
            place = Place(function, bucket_of(key) or _sizes(args), next(iter(modules), None))
            try:
                if blocks:
                    with counting(self.ledger.attention):  # of what runs between the blocks
                        return self._regions.run(blocks, function, step, args, partial(self._call_compiled, place))
                return self._call_compiled(place, function, step, key, states, args)[1]
            except torch.OutOfMemoryError as error:
                raise torch.OutOfMemoryError(f"{self.ledger.name}, {place.described()}: {error}") from error

    def known(self, function: str, key: tuple, *args: Any) -> Callable | None:
        """What `call` runs for these arguments, if that is one function that was made already; call it by `again`."""
        if self.config.compile is False or self.config.compile == "blocks":
            return None
        with self._lock, runtime.kernels_as(self.config.nki):
            states = [self._state(arg) for arg in args if isinstance(arg, torch.nn.Module)]
            return self._compiled.get((function, key, *states, signature(args), process_state()))

    def again(self, compiled: Callable, *args: Any) -> Any:
        """Run what `known` found, while nothing that it depends on can have changed (see `undisturbed`)."""
        with self._lock:
            return compiled(*args)

    def _call_compiled(
        self, place: "Place", name: str, step: Callable, key: tuple, states: list[str], args: Sequence[Any]
    ) -> tuple[Callable, Any]:
        """The compiled `step`, which `name`, `key` and `states` tell from others, and what it gives for `args`."""
        known = (name, key, *states, signature(args), process_state())
        compiled = self._compiled.get(known)
        if compiled is not None:
            return compiled, compiled(*args)
        started = time.perf_counter()
        bucket = place.described("" if name == place.function else name)
        paths = TracedPaths()
        with compiling(f"{self.ledger.name}, {bucket}"), noting() as notes, counting(paths):
            made = Maker(self.ledger.name, self.config.options, bucket).make(step, key, states, args)
            compiled = CountedCalls(made.call, paths)
            result = compiled(*args)
        enter(notes, self.ledger, place.function)
        # What has no attention in it is called as it is.
        self._compiled[known] = compiled = self.ledger.counting(compiled) if paths else made.call
        self._note(made, place, time.perf_counter() - started)
        return compiled, result

    def _blocks(self, modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
        """The modules that are compiled each for itself; none where the step is compiled whole."""
        if self.config.compile != "blocks" or not modules:
            return []
        blocks = repeated_blocks(modules[0])
        if not blocks and not self._has_said_whole:
            self._has_said_whole = True
            logger.info("%s has no repeated blocks: its steps are compiled whole", self.ledger.name)
        return blocks

    def _state(self, module: torch.nn.Module) -> str:
        place, stretch = id(module), current_stretch()
        asked_in, digest = self._asked.get(place, (None, ""))
        if stretch is not None and asked_in is stretch:
            return digest
        state = self._states.get(place)
        if state is None:  # it keeps the module, so that its id stays its own
            state = self._states[place] = ModuleState(module)
        digest = state.digest()
        if self._digests.setdefault(place, digest) != digest:
            self._digests[place] = digest
            self.changes += 1
        self._asked[place] = (stretch, digest)
        return digest

    def _note(self, made: Made, place: "Place", seconds: float) -> None:
        """Enter a function into the model's manifest; say once why functions are not stored."""
        if made.reason is not None and not self._has_said_why:
            self._has_said_why = True
            logger.info(
                "%s: compiled functions are not stored, so that each process traces them again (%s)",
                self.ledger.name,
                made.reason.splitlines()[0],
            )
        if place.module is not None:
            self._circumstances = circumstances(ModuleState(place.module).digest(), self.config.options)
            if runtime.graph_directory() is not None:
                self._manifest = Manifest(place.module)
        # The functions without a module among their arguments come after one that has.
        self._made.add((place.function, frozenset(place.bucket.items()), self._circumstances))
        if self._manifest is not None:
            entry = GraphEntry.of(place.function, place.bucket, made.file, seconds, self._circumstances)
            (self._manifest.loaded if made.is_loaded else self._manifest.compiled)(entry)


@dataclass(frozen=True)
class Place:
    """What a graph is for: a function and a bucket of `module`, None for a function on tensors alone."""

    function: str
    bucket: dict[str, int]
    module: torch.nn.Module | None

    def described(self, part: str = "") -> str:
        """`decode, batch 4, cache 128`, and the part of the module that is compiled."""
        sizes = (f"{axis} {size}" for axis, size in self.bucket.items())
        return ", ".join([self.function, *sizes, *filter(None, [part])])


def _sizes(args: tuple) -> dict[str, int]:
    """The sizes of the first tensor, for a function that runs at exact shapes."""
    first = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    return {} if first is None else {f"axis{axis}": size for axis, size in enumerate(first.shape)}
