"""Strict mode: what is slow, lossy, undocumented or missing on the real device becomes an error.

The checks are in C++ (csrc/strict.cpp); here are their names, the environment variable and the context manager.
"""

import os
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from . import extension


VARIABLE = "NEURON_EMULATOR_STRICT"

# fallback      an operation that the real device runs on the CPU
# unknown       an operation of which no public source says anything
# float64       a float64 tensor on the device
# int64         values of an int64 tensor that leave 32 bits
# complex       a complex tensor on the device
# sparse        sparse tensors (always an error on the emulator; named for completeness)
# forward_ad    forward-mode differentiation
# channels_last a tensor asked for in the channels_last memory format
# recompile     an eager signature or a graph that is new after mark_warm()
# multicore     a second logical core used by one process
KINDS = (
    "fallback",
    "unknown",
    "float64",
    "int64",
    "complex",
    "sparse",
    "forward_ad",
    "channels_last",
    "recompile",
    "multicore",
)

# How many scopes, and the environment, ask for each kind: scopes of several threads may end in any order.
_askers: Counter[str] = Counter()
_lock = threading.Lock()

_PACKAGE_DIR = str(Path(__file__).resolve().parents[2])
_LIBRARY_DIRS = tuple(
    {*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), _PACKAGE_DIR}
)


def strict_kinds() -> frozenset[str]:
    """The kinds that are errors now."""
    return frozenset(extension.load().strict_kinds())


@contextmanager
def strict(*kinds: str) -> Iterator[None]:
    """Adds kinds of errors in this scope, for the whole process; without arguments, all of them.

    For the process, not the thread: a backward pass runs on threads of its own. Scopes nest, and those of several
    threads may overlap.

    Raises:
        ValueError: a name is none of `KINDS` and not "all".
    """
    wanted = _expand(kinds or ("all",), origin="strict()")
    _ask(wanted)
    try:
        yield
    finally:
        _ask(wanted, times=-1)


def mark_warm(is_warm: bool = True) -> None:
    """Says that warm-up is over: under the strict kind "recompile", what would compile is an error from here on."""
    extension.load().mark_warm(is_warm)


def apply_environment() -> None:
    """Enables what `NEURON_EMULATOR_STRICT` names, a comma-separated list.

    Raises:
        ValueError: it names an unknown kind.
    """
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    wanted = _expand([name for name in names if name], origin=VARIABLE)
    if wanted:
        _ask(wanted)


def user_location() -> str:
    """The innermost frame of neither an installed library nor this package. Called from C++ for error messages."""
    frame = sys._getframe(0)
    fallback = "an unknown place (no Python code on this thread, e.g. in a backward pass)"
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_LIBRARY_DIRS) and not filename.startswith("<frozen"):
            return f"{filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return fallback


def _expand(kinds: list[str] | tuple[str, ...], *, origin: str) -> frozenset[str]:
    unknown = [kind for kind in kinds if kind not in KINDS and kind != "all"]
    if unknown:
        raise ValueError(f"{origin}: unknown strict kind {', '.join(unknown)}. Known are {', '.join(KINDS)} and all.")
    return frozenset(KINDS) if "all" in kinds else frozenset(kinds)


def _ask(kinds: Iterable[str], *, times: int = 1) -> None:
    """Counts askers for `kinds`, or takes them back, and tells C++ which kinds have any."""
    module = extension.load()
    with _lock:
        if {"fallback", "unknown"} & set(kinds) and times > 0:
            _load_capabilities(module)
        for kind in kinds:
            _askers[kind] += times
        module.set_strict_kinds(sorted(kind for kind, count in _askers.items() if count > 0))


def _load_capabilities(module: ModuleType) -> None:
    from .capabilities import NKI_KERNELS, capabilities

    states = {name: row.state for name, row in capabilities().rows.items()}
    module.set_capabilities({**states, NKI_KERNELS: "native"})
