"""Facts about the emulated chips, each with its public source, and the machine that the environment asks for."""

import os
import re
from dataclasses import dataclass
from pathlib import Path


GIB = 2**30

# Trainium2 and Trainium3 pages of the Neuron documentation:
# awsdocs-neuron.readthedocs-hosted.com, about-neuron/arch/neuron-hardware/trainium2.html and trainium3.html
PHYSICAL_CORES = 8
HBM_PER_CHIP = {"trn2": 96 * GIB, "trn3": 144 * GIB}
CHIP_NAMES = {"trn2": "Trainium2", "trn3": "Trainium3"}

# Logical NeuronCore configuration: 1 or 2 physical cores form a logical one, 2 by default. Same site,
# about-neuron/arch/neuron-features/logical-neuroncore-config.html
LOGICAL_CORE_SIZES = (1, 2)
DEFAULT_LOGICAL_CORE_SIZE = 2
DEFAULT_PLATFORM = "trn2"

# The emulated memory is the host's: a quarter stays for everything else that runs there.
HOST_SHARE = 0.75

MEMORY_VARIABLE = "NEURON_EMULATOR_HBM"
PLATFORM_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
LOGICAL_CORE_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
VISIBLE_CORES_VARIABLE = "NEURON_RT_VISIBLE_CORES"

_SIZE_UNITS = {"": 1, "b": 1}
_SIZE_UNITS |= {f"{prefix}ib": 2**shift for prefix, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40))}
_SIZE_UNITS |= {f"{prefix}b": 10**power for prefix, power in (("k", 3), ("m", 6), ("g", 9), ("t", 12))}


@dataclass(frozen=True)
class MemoryLimit:
    """What all cores together may hold, in bytes, and where the number comes from."""

    nbytes: int
    reason: str


@dataclass(frozen=True)
class Machine:
    """One emulated chip: `platform` "trn2" or "trn3", `logical_core_size` physical cores per logical one."""

    platform: str
    logical_core_size: int
    visible_cores: tuple[int, ...]

    @classmethod
    def from_environment(cls) -> "Machine":
        """Reads the variables that the Neuron runtime reads.

        Raises:
            ValueError: a variable has a value that no Trn2 or Trn3 chip has.
        """
        platform = os.environ.get(PLATFORM_VARIABLE, "").strip().lower() or DEFAULT_PLATFORM
        if platform not in HBM_PER_CHIP:
            raise ValueError(f"{PLATFORM_VARIABLE}={platform} is not one of {', '.join(HBM_PER_CHIP)}.")
        size = os.environ.get(LOGICAL_CORE_VARIABLE, "").strip() or str(DEFAULT_LOGICAL_CORE_SIZE)
        if size not in map(str, LOGICAL_CORE_SIZES):
            raise ValueError(f"{LOGICAL_CORE_VARIABLE}={size}: a logical NeuronCore has 1 or 2 physical ones.")
        total = PHYSICAL_CORES // int(size)
        return cls(platform, int(size), _visible_cores(total))

    @property
    def core_count(self) -> int:
        """How many logical cores this process sees."""
        return len(self.visible_cores)

    @property
    def name(self) -> str:
        return f"{CHIP_NAMES[self.platform]} (emulated)"

    @property
    def hbm_per_core(self) -> int:
        """Bytes of HBM that belong to one logical core; with two physical cores per logical one, a bank of its own."""
        return HBM_PER_CHIP[self.platform] // (PHYSICAL_CORES // self.logical_core_size)

    def memory_limit(self) -> MemoryLimit:
        """The limit in force: `NEURON_EMULATOR_HBM`, else the smaller of a core's HBM and what the host can spare."""
        wanted = os.environ.get(MEMORY_VARIABLE, "").strip()
        if wanted:
            return MemoryLimit(parse_size(wanted), f"{MEMORY_VARIABLE}={wanted}")
        spare = int(host_memory() * HOST_SHARE)
        if spare < self.hbm_per_core:
            return MemoryLimit(spare, f"{HOST_SHARE:.0%} of this host's memory, shared by all cores")
        return MemoryLimit(self.hbm_per_core, f"HBM of one logical core of {self.platform}, shared by all cores here")


def parse_size(text: str) -> int:
    """Bytes from e.g. "2GiB", "1.5 GB" or "4096".

    Raises:
        ValueError: `text` is no size.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(f"{MEMORY_VARIABLE}={text} is not a size. Give bytes or e.g. 2GiB, 512MiB, 1.5GB.")
    return int(float(match[1]) * _SIZE_UNITS[match[2]])


def host_memory() -> int:
    """Bytes of memory that this process may use: the host's, or less if its control group is limited."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_control_group_limits()])


def _control_group_limits() -> list[int]:
    files = [Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]  # version 1
    files += [directory / "memory.max" for directory in _control_group_directories()]
    limits = []
    for file in files:
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return limits


def _control_group_directories() -> list[Path]:
    """The version 2 control group of this process and the groups around it: the smallest limit holds."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [root]
    relative = next((line[3:] for line in lines if line.startswith("0::")), "/")
    group = root / relative.lstrip("/")
    return [group, *(parent for parent in group.parents if parent.is_relative_to(root))]


def _visible_cores(total: int) -> tuple[int, ...]:
    text = os.environ.get(VISIBLE_CORES_VARIABLE, "").strip()
    if not text:
        return tuple(range(total))
    cores: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise ValueError(f"{VISIBLE_CORES_VARIABLE}={text} is not a list of cores such as 0-3 or 0,2.")
        first, last = int(match[1]), int(match[2] or match[1])
        cores.extend(range(first, last + 1))
    if not cores or max(cores) >= total:
        raise ValueError(
            f"{VISIBLE_CORES_VARIABLE}={text}: the emulated chip has {total} logical cores, 0 to {total - 1} "
            f"({LOGICAL_CORE_VARIABLE} decides how many physical cores form one)."
        )
    return tuple(dict.fromkeys(cores))
