"""The store of fast programs: what a host graph became after minutes of compilation, kept for every later process.

A program is a folder `programs/<vector ISA>/<digest of the graph>/`: Inductor's generated module, its kernels as
libraries, and a digest of each file. Loading it needs no compiler. It is made under another name and renamed when
it is whole. A folder that is damaged, or that does not load, is removed with a warning and made anew.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import hashlib
import json
import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from optimum_neuron_torch.emulator.compiler import cache, isa
from optimum_neuron_torch.emulator.compiler.executors.inductor import Call, load_code, prepare_for_storage
from optimum_neuron_torch.emulator.compiler.graph import HostGraph


if TYPE_CHECKING:
    from torch._inductor.output_code import CompiledFxGraph


FOLDER = "programs"
_CODE, _CONTENTS = "code.pickle", "contents.json"


def key_of(digest: str, *, threads: int | None = None) -> str:
    """The name of the program of the graph with a digest: generated loops are split for a number of threads."""
    facts = f"{digest}|{threads or torch.get_num_threads()}|{cache.own_version()}"
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def load(key: str) -> Call | None:
    """The stored program, for this CPU; None where there is none, or none that loads."""
    for tag in isa.usable_tags():
        if call := _load_from(root() / tag / key):
            return call
    elsewhere = sorted(folder.parent.name for folder in root().glob(f"*/{key}"))
    if elsewhere:
        warnings.warn(
            f"A graph was compiled for {', '.join(elsewhere)}, which this CPU or process cannot run: it is compiled "
            f"again, for {isa.usable_tags()[0]}.",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def folders(
    digests: Sequence[str], *, name: str | None = None, threads: int | None = None, build_missing: bool = True
) -> list[Path]:
    """
    The folders of the programs of graphs, for export.

    Args:
        digests: the graphs'.
        name: the vector ISA; None takes the process's.
        threads: the number of threads they run with; None takes the process's.
        build_missing: compile what is not there, which is possible for graphs in use in this process; else leave out.

    Raises LookupError for a graph that is not in use here and has no program.
    """
    from optimum_neuron_torch.emulator.compiler.executors.host import live_graph

    name = isa.checked(name) if name else isa.chosen()
    found = []
    for digest in digests:
        key = key_of(digest, threads=threads)
        folder = root() / isa.tag(name) / key
        if not folder.is_dir() and build_missing:
            graph = live_graph(digest)
            if graph is None:
                raise LookupError(
                    f"the graph {digest[:12]} has no program for {name} and is not in use in this process"
                )
            build(key, graph, name=name, threads=threads)
        if folder.is_dir():
            found.append(folder)
    return found


def build(key: str, graph: HostGraph, *, name: str | None = None, threads: int | None = None) -> Call:
    """
    The program of `graph`, compiled now unless another process does, or did, that.

    Args:
        key: of `key_of`.
        graph: is consumed.
        name: the vector ISA; None takes the process's.
        threads: the number of threads it will run with; None takes the process's.
    """
    from optimum_neuron_torch.emulator.compiler.executors.inductor_compiler import compile_graph

    name = name or isa.chosen()
    tag = isa.tag(name)
    parent = root() / tag
    parent.mkdir(mode=0o700, exist_ok=True, parents=True)
    with cache.lock(root().parent, f"{tag}-{key}"):
        if call := _load_from(parent / key):
            return call
        with (
            tempfile.TemporaryDirectory(dir=parent, prefix=".building-", ignore_cleanup_errors=True) as unfinished,
            # Not below the cache, in whose path Inductor would stumble over a space.
            tempfile.TemporaryDirectory(prefix="optimum-neuron-", ignore_cleanup_errors=True) as scratch,
        ):
            folder = Path(unfinished) / "program"
            folder.mkdir()
            with cache.inductor_directory(Path(scratch)), isa.inductor_target(name) as settings:
                code, kernels = compile_graph(graph, threads=threads, settings=settings)
            _write(folder, code, kernels)
            folder.rename(parent / key)
    return code.current_callable


@functools.cache
def _scratch() -> Path:
    """Where programs go that may not be kept: a private folder that ends with the process."""
    folder = tempfile.mkdtemp(prefix="optimum-neuron-programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def root() -> Path:
    """The folder of all programs."""
    directory = cache.graph_directory()
    return (directory or _scratch()) / FOLDER


def _write(folder: Path, code: CompiledFxGraph, kernels: Mapping[str, Path]) -> None:
    stored = copy.copy(code)
    prepare_for_storage(stored)
    (folder / _CODE).write_bytes(pickle.dumps(stored))
    files = {}
    for number, (source, library) in enumerate(kernels.items()):
        files[source] = f"kernel_{number}{''.join(library.suffixes[-1:])}"
        shutil.move(library, folder / files[source])
    digests = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    (folder / _CONTENTS).write_text(json.dumps({"digests": digests, "kernels": files}, indent=1))


def _load_from(folder: Path) -> Call | None:
    if not folder.is_dir():
        return None
    try:
        return _load(folder)
    except Exception as error:  # a damaged module or kernel fails in any way Python and the linker know
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(f"The cached kernels in {folder} are compiled anew: {reason}.", RuntimeWarning, stacklevel=2)
        _remove(folder)
        return None


def _load(folder: Path) -> Call:
    contents = json.loads((folder / _CONTENTS).read_text())
    for name, digest in contents["digests"].items():
        if _digest(folder / name) != digest:
            raise ValueError(f"{name} does not match its digest")
    with contextlib.suppress(OSError):
        os.utime(folder)  # what was not used for long is evicted first
    kernels = {source: folder / name for source, name in contents["kernels"].items()}
    code = pickle.loads((folder / _CODE).read_bytes())
    # The generated module goes into a file while it is loaded.
    with tempfile.TemporaryDirectory(prefix="optimum-neuron-") as scratch, cache.inductor_directory(Path(scratch)):
        return load_code(code, kernels)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
