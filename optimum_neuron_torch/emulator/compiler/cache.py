"""The persistent cache: AOTAutograd's results, in a directory of ours; `programs.py` keeps the kernels beside them.

Everything here leans on private parts of PyTorch (2.13, 2.14). Where one of them is missing or the directory cannot
be trusted, the compiler works without a cache. Entries are code, so they are read only from a directory that belongs
to the user and that no one else may write to; each file's name is a digest of its content.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import pickle
import platform
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from filelock import FileLock
from torch import fx
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.codecache import sha256_hash
from torch._inductor.output_code import OutputCode
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.multiprocessing.reductions import StorageWeakRef

from optimum_neuron_torch.emulator.compiler import artifacts, eviction, metrics, recompiles
from optimum_neuron_torch.emulator.compiler.announcing import announce
from optimum_neuron_torch.emulator.compiler.compiled import CompiledGraph
from optimum_neuron_torch.emulator.compiler.errors import RecompileError
from optimum_neuron_torch.emulator.compiler.options import CompileOptions
from optimum_neuron_torch.emulator.compiler.passes.custom_ops import body_digest, body_digests
from optimum_neuron_torch.emulator.compiler.session import Session


VARIABLE = "OPTIMUM_NEURON_CACHE"
DEFAULT_DIRECTORY = "~/.cache/optimum_neuron_torch"
_INDUCTOR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
LOCKS = "locks"
# After this a process that waits for another's graph compiles it itself: the other one may be stopped.
LONGEST_WAIT_S = 1800.0


@dataclass
class _Search:
    """
    Where one call of the backend looks for results.

    Args:
        locks: held for what this call makes, to be released at its end.
        loaded: folder into which `torch.compiler.load_cache_artifacts` puts results, if it can be trusted.
    """

    locks: contextlib.ExitStack
    loaded: Path | None


_search: ContextVar[_Search | None] = ContextVar("neuron_cache_search", default=None)


@dataclass
class StoredGraph(OutputCode):
    """
    What AOTAutograd calls and stores: a compiled graph that pickles.

    Args:
        graph: what it calls.
        bodies: the custom operators of the graph, each with the digest of its source.
    """

    graph: CompiledGraph
    bodies: dict[str, str]

    def __post_init__(self) -> None:
        self._boxed_call = True
        self._is_live = True

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self.graph(args)

    def prepare_for_serialization(self) -> None:
        """Called by AOTAutograd on a shallow copy that is about to be pickled."""
        graph = copy.copy(self.graph)
        graph.program = graph.program.prepare_for_storage()
        self.graph, self._is_live = graph, False

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Called by AOTAutograd on a graph that came from the cache, and then only."""
        if self._is_live:
            return
        session = Session.current()
        if session is None:  # a stored function: nothing asked the backend, which checks this itself
            _refuse_after_warm_up(self.graph.record)
            _refuse_other_bodies(self.bodies)
        record = replace(self.graph.record, cached=True, timestamp=time.time(), recompile_reason="")
        for phase in metrics.PHASES:
            setattr(record, f"torch_neuronx_{phase}_us", 0)
        if session is not None:
            record.torch_neuronx_trace_us = session.trace_us()
            session.name_graph(record, self.graph.kind)
        else:
            Session.name_loaded(record, self.graph.kind)
        with record.timed("load"):
            self.graph.program.revive(record)
        self.graph.record, self._is_live = record, True
        metrics.add(record)
        announce(record)
        if record.lowering == "fallback":
            metrics.warn_fallback(record)
        if session is not None:
            session.resume_tracing()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is no Triton here."""


def _refuse_after_warm_up(record: metrics.GraphRecord) -> None:
    """A stored function is loaded without a call of the backend, which refuses new graphs itself."""
    if recompiles.are_refused():
        raise RecompileError(
            f"A new graph after warm-up, under strict 'recompile': {record.graph_name or record.graph_id[:12]}, "
            "loaded from the cache. Warm up this shape too, or pad its inputs to one that is warm."
        )


def _refuse_other_bodies(bodies: dict[str, str]) -> None:
    for name, digest in bodies.items():
        if body_digest(name) != digest:
            raise RuntimeError(f"the source of the custom operator {name} has changed")


def cacheable(compile_graph: Callable[..., CompiledGraph]) -> Callable[..., Any]:
    """Wrap a graph compiler in what AOTAutograd recognises as one whose results may be stored."""

    def compile_and_wrap(gm: fx.GraphModule, inputs: Sequence[Any]) -> StoredGraph:
        return StoredGraph(compile_graph(gm, inputs), body_digests(gm))

    return SerializableAOTDispatchCompiler(OutputCode, compile_and_wrap)


@contextlib.contextmanager
def enabled(gm: fx.GraphModule, inputs: Sequence[Any], options: CompileOptions) -> Iterator[None]:
    """In this scope AOTAutograd looks results up in our directory, and stores them there.

    A result that is not there yet is this process's to make: others that want it wait until the scope ends.
    """
    directory = graph_directory()
    settings = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
    if directory is None or artifacts.is_text_wanted():  # a stored graph has none
        settings["enable_autograd_cache"] = False
    loaded = _torchs_own_directory()
    with (
        torch._functorch.config.patch(settings),
        torch.compiler.config.patch(cache_key_tag=_key_tag(gm, inputs, options)),
        contextlib.ExitStack() as locks,
        inductor_directory(directory),
    ):
        eviction.limit()  # a size that cannot be read is an error before anything is compiled
        token = _search.set(_Search(locks, loaded))
        try:
            yield
        except BaseException:
            _remove_temporary_files(directory)
            raise
        finally:
            _search.reset(token)
    eviction.trim(directory)


# Where Inductor keeps its files is a variable of the process: one thread at a time may have changed it.
_inductor_lock = threading.RLock()


@contextlib.contextmanager
def inductor_directory(directory: Path | None) -> Iterator[None]:
    """In this scope Inductor and AOTAutograd keep their files in `directory`; a user's Inductor keeps its own."""
    with _inductor_lock:
        replaced = {} if directory is None else {_INDUCTOR_VARIABLE: str(directory)}
        with mock.patch.dict(os.environ, replaced):
            yield


def graph_directory() -> Path | None:
    """Where this PyTorch on this kind of CPU keeps its graphs; None (warned once) where it may not."""
    return _private_directory(os.environ.get(VARIABLE) or DEFAULT_DIRECTORY)


@functools.cache
def _private_directory(root: str) -> Path | None:
    directory = Path(root).expanduser().absolute() / "graphs" / f"torch-{torch.__version__}-{_machine_key()}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (directory, directory.parent, directory.parent.parent):
            if not _is_private(path):
                raise PermissionError(f"{path} belongs to another user or is writable by others")
        if not os.access(directory, os.W_OK):
            raise PermissionError(f"{directory} is not writable")
    except OSError as error:
        warnings.warn(
            f"Compiled graphs are not kept: {error}. Set {VARIABLE} to a directory that only you can write to.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return directory


def _torchs_own_directory() -> Path | None:
    """Where PyTorch keeps AOTAutograd's results for itself; None where others may write to it."""
    with contextlib.suppress(OSError):
        folder = Path(cache_dir()) / "aotautograd"
        if folder.is_dir() and _is_private(folder) and _is_private(folder.parent):
            return folder
    return None


def _is_private(path: Path) -> bool:
    """Whether `path` belongs to the user and no one else may write to it."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def _machine_key() -> str:
    """Kernels are built for a C++ runtime: another one must not load them. `isa.tag` tells CPUs apart."""
    facts = (platform.machine(), *platform.libc_ver())
    return hashlib.sha256("|".join(facts).encode()).hexdigest()[:12]


def _key_tag(gm: fx.GraphModule, inputs: Sequence[Any], options: CompileOptions) -> str:
    """What AOTAutograd's own key does not know: backend, executor, our passes, threads, custom operators' bodies, and
    which inputs are views of one storage, at which offsets.
    """
    facts = repr((body_digests(gm), _shared_storages(inputs)))
    return f"{compiler_version(options)}-{torch.get_num_threads()}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def _shared_storages(inputs: Sequence[Any]) -> list[list[tuple[int, int, int]]]:
    """Per storage that several inputs view: their positions, offsets, and the storage's size."""
    groups: dict[Any, list[tuple[int, int, int]]] = {}
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            storage = value.untyped_storage()
            place = position, int(value.storage_offset()), int(storage.nbytes())
            groups.setdefault(StorageWeakRef(storage), []).append(place)
    return [views for views in groups.values() if len(views) > 1]


def compiler_version(options: CompileOptions) -> str:
    """The compiler as far as its results depend on it: backend, executor, lowering and passes."""
    from optimum_neuron_torch.emulator.compiler import stablehlo

    lowering = f"{options.lowering}-{stablehlo.version()}-{options.fallback_execution}"
    return f"neuron-{options.executor}-{lowering}-{own_version()}"


@functools.cache
def own_version() -> str:
    """A digest of this package: any change of a pass is another version."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def verified(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap AOTAutograd's search for stored results: within `enabled`, only whole files of ours are read."""

    @functools.wraps(original)
    def iterate_over_candidates(local: bool, remote_cache: Any, key: str) -> Iterator[tuple[Any, bytes, bool]]:
        search = _search.get()
        if search is None:
            yield from original(local, remote_cache, key)
            return
        directory = graph_directory()
        if not local or directory is None:
            return
        folder, seen = directory / "aotautograd" / key, set[str]()
        yield from _whole_results(folder, seen)
        if search.loaded is not None:
            yield from _whole_results(search.loaded / key, seen)
        # None of them served. Whoever is first makes the result; for the others it is there when they get the lock.
        search.locks.enter_context(lock(directory, key))
        yield from _whole_results(folder, seen)

    return iterate_over_candidates


def _whole_results(folder: Path, seen: set[str]) -> Iterator[tuple[Any, bytes, bool]]:
    """The stored results in `folder` not `seen` before that match the digest in their name; others are removed, with
    a warning.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(".") or path.name in seen:  # a dot: another process is writing it
            continue
        seen.add(path.name)
        try:
            content = path.read_bytes()
            if sha256_hash(content) != path.name:
                raise ValueError("its content does not match its digest")
            entry = pickle.loads(content)
        except FileNotFoundError:  # evicted meanwhile
            continue
        except Exception as error:
            warnings.warn(f"The cached graph {path} is compiled anew: {error}.", RuntimeWarning, stacklevel=2)
            with contextlib.suppress(OSError):
                path.unlink()
            continue
        with contextlib.suppress(OSError):
            os.utime(path)  # what was not used for long is evicted first
        yield entry, content, True


@contextlib.contextmanager
def lock(directory: Path, key: str) -> Iterator[None]:
    """Held while `key` is compiled, so that processes which want the same graph compile it once.

    The system releases it when its holder dies. Where there are no locks, or one is held for very long, each process
    compiles for itself.
    """
    folder = directory / LOCKS
    held = FileLock(folder / f"{key}.lock", timeout=LONGEST_WAIT_S, mode=0o600)
    try:
        folder.mkdir(exist_ok=True, mode=0o700)
        held.acquire(poll_interval=0.02)
    except (OSError, NotImplementedError) as error:
        warnings.warn(f"Other processes may compile the same graph at once: {error}", RuntimeWarning, stacklevel=2)
    try:
        yield
    finally:
        held.release()


def _remove_temporary_files(directory: Path | None) -> None:
    if directory is not None:
        for path in directory.glob(f"aotautograd/*/.{os.getpid()}.*.tmp"):
            path.unlink(missing_ok=True)
