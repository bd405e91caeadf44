"""The vector instructions that kernels are compiled for: this CPU's own, or a named level that a whole fleet has.

Code for this CPU's own (`native`) uses all it has and runs on no lesser one. A named level is less specific, so that
one machine can compile for many: `NEURON_EMULATOR_ISA=avx2`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock


VARIABLE = "NEURON_EMULATOR_ISA"
NATIVE = "native"


@dataclass(frozen=True)
class Level:
    """
    A named level of one architecture.

    Args:
        machine: what `platform.machine()` calls the architecture.
        march: the compiler's name of the level (x86-64 psABI, "Micro-Architecture Levels").
        flags: what /proc/cpuinfo must list.
        inductor: Inductor's name of the vector instructions it may generate.
    """

    machine: str
    march: str
    flags: frozenset[str]
    inductor: str


LEVELS = {
    "avx512": Level(
        "x86_64",
        "x86-64-v4",
        frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma", "bmi2", "movbe"}),
        "avx512",
    ),
    "avx2": Level("x86_64", "x86-64-v3", frozenset({"avx2", "fma", "f16c", "bmi2", "movbe"}), "avx2"),
}


class UnknownIsaError(ValueError):
    """`NEURON_EMULATOR_ISA`, or an `isa=` argument, names no level or one that this CPU lacks."""


def chosen() -> str:
    """The level that kernels are compiled for in this process."""
    return checked(os.environ.get(VARIABLE) or NATIVE)


def checked(name: str) -> str:
    """`name`, if kernels for it can be compiled and run here."""
    if name == NATIVE:
        return name
    usable = [level for level in LEVELS if _runs_here(level)]
    if name not in LEVELS:
        raise UnknownIsaError(f"There is no vector ISA {name!r}; this CPU can use {', '.join([NATIVE, *usable])}.")
    if name not in usable:
        missing = ", ".join(sorted(LEVELS[name].flags - cpu_flags())) or LEVELS[name].machine
        raise UnknownIsaError(f"This CPU cannot run {name} (it lacks {missing}); use {', '.join([NATIVE, *usable])}.")
    return name


def usable_tags() -> list[str]:
    """The folders of kernels that this process may run, the one it compiles into first."""
    name = chosen()
    further = [level for level in LEVELS if _runs_here(level)] if name == NATIVE else []
    return [tag(name), *map(tag, further)]


def tag(name: str) -> str:
    """The name of the folder for kernels of a level; native ones are for CPUs with the same flags only."""
    if name != NATIVE:
        return name
    facts = "|".join([platform.machine(), *sorted(cpu_flags())])
    return f"{NATIVE}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def _runs_here(name: str) -> bool:
    level = LEVELS[name]
    return platform.machine() == level.machine and level.flags <= cpu_flags()


@functools.cache
def cpu_flags() -> frozenset[str]:
    """What the kernel says that the CPU can do; empty where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.split(":", 1)[1].split())
    return frozenset()


@contextlib.contextmanager
def inductor_target(name: str) -> Iterator[dict[str, Any]]:
    """In this scope Inductor generates code for a level; yields the settings of Inductor that belong to it."""
    from torch._inductor import cpu_vec_isa

    if name == NATIVE:
        yield {}
        return
    # Inductor picks by width or by environment, and would take a wider relative of the level (AMX for avx512).
    level = LEVELS[name]
    exact = [isa for isa in cpu_vec_isa.supported_vec_isa_list if str(isa) == level.inductor]
    with (
        mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: exact),
        mock.patch.dict(os.environ, {"ATEN_CPU_CAPABILITY": level.inductor}),
    ):
        yield {"cpp.march": level.march}
