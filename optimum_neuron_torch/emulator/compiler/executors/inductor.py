"""Inductor's compiled graphs: what runs them, and how a stored one is loaded without a compiler.

Loading imports none of Inductor's lowerings, and neither reads headers nor asks for the compiler's version: that would
cost more than all the rest. `inductor_compiler.py` makes the graphs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._inductor import config as inductor_config
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.output_code import CompiledFxGraph, CompiledFxGraphConstants


# `vec_isa_ok` skips up to ten trial compilations (14 s of a cold start); the ISA is still read from cpuid.
CONFIG = {"cpp.vec_isa_ok": True}

# Kernels of a graph: the digest of each one's source, and the library made from it.
Kernels = Mapping[str, Path]


# A compiled graph as a function of its boxed arguments: what lies beneath `CompiledFxGraph.__call__`, which serves
# profilers and autotuning of other devices.
Call = Callable[[list[Any]], Sequence[Any]]


@functools.cache
def has_compiler() -> bool:
    """Whether there is a C++ compiler that works."""
    try:
        return bool(get_cpp_compiler())
    except (InvalidCxxCompiler, OSError):
        return False


def prepare_for_storage(code: CompiledFxGraph) -> None:
    """Make a copy of a compiled graph fit for pickling, and cheap to load."""
    code.prepare_for_serialization()
    for line in _EXPENSIVE_IMPORTS:
        *_, name = line.split()
        code.source_code = code.source_code.replace(f"{line}\n", f"from {__name__} import {name}\n")


def load_code(code: CompiledFxGraph, kernels: Kernels) -> Call:
    """Load a stored graph's module. (Its own `post_compile` serves CUDA graphs only.)"""
    with inductor_config.patch({**CONFIG, "cpp_cache_precompile_headers": False}), _loading(kernels):
        code.after_deserialization(CompiledFxGraphConstants())
    return code.current_callable


@contextlib.contextmanager
def recording_kernels() -> Iterator[Callable[[], dict[str, Path]]]:
    """In this scope Inductor's kernels are noted; yields what lists them once they are compiled."""
    made: dict[str, Callable[[], ModuleType]] = {}

    def record(original: Callable[..., Any], source: str, *args: Any, **kwargs: Any) -> Any:
        made[_digest(source)] = load = original(source, *args, **kwargs)
        return load

    with _replacing_load(record):
        yield lambda: {digest: Path(str(load().__file__)) for digest, load in made.items()}


@contextlib.contextmanager
def _loading(kernels: Kernels) -> Iterator[None]:
    """In this scope kernels are loaded from their files, and none is compiled.

    Under vector instructions other than those that its source was generated for, it would write beyond its tensors.
    """

    def load(original: Callable[..., Any], source: str, *args: Any, **kwargs: Any) -> Any:
        digest = _digest(source)
        if digest not in kernels:
            raise LookupError("a kernel is not among the stored ones")
        path = kernels[digest]
        # The name is the process's: another program's kernel of this name would be taken for this one.
        name = f"{path.parent.parent.name}_{path.parent.name}_{digest}"
        return functools.partial(CppPythonBindingsCodeCache._load_library, str(path), name)

    with _replacing_load(load):
        yield


@contextlib.contextmanager
def _replacing_load(replacement: Callable[..., Any]) -> Iterator[None]:
    original = CppPythonBindingsCodeCache.load_async

    def load_async(cls: type, source: str, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, source, *args, **kwargs)

    with mock.patch.object(CppPythonBindingsCodeCache, "load_async", classmethod(load_async)):
        yield


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


# In generated modules. Both bring all of Inductor's lowerings and code generators; what follows stands in for them.
_EXPENSIVE_IMPORTS = (
    "from torch._inductor.select_algorithm import extern_kernels",
    "from torch._inductor.codegen.memory_planning import _align as align",
)


class _ExternKernels:
    """Inductor's table of ready-made kernels, imported only for those that are not functions of `torch` themselves."""

    mm, addmm, bmm, baddbmm = map(staticmethod, (torch.mm, torch.addmm, torch.bmm, torch.baddbmm))

    def __getattr__(self, name: str) -> Any:
        from torch._inductor.select_algorithm import extern_kernels as all_kernels

        return getattr(all_kernels, name)


extern_kernels = _ExternKernels()


def align(size: int) -> int:
    """Inductor's rounding up of a number of bytes in a memory pool."""
    from torch._inductor.codegen.memory_planning import _align

    return _align(size)
