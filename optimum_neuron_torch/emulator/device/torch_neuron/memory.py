"""Memory functions of `torch.neuron`. The figures are those of the emulator's allocator (csrc/allocator.cpp)."""

from collections import OrderedDict
from typing import Any

import torch

from .devices import Device, index_of


def empty_cache() -> None:
    """Gives memory that is cached but not in use back to the host."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> "OrderedDict[str, Any]":
    """Allocator statistics of one core, with the keys of `torch.accelerator.memory_stats`."""
    return torch.accelerator.memory_stats(index_of(device))


def memory_allocated(device: Device = None) -> int:
    """Bytes in use by tensors."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """The largest number of bytes in use since the start or the last `reset_peak_memory_stats()`."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes in use or cached."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """The largest number of bytes in use or cached since the start or the last `reset_peak_memory_stats()`."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes. The total is the limit in force, which all cores of the emulated chip share."""
    return torch.accelerator.get_memory_info(index_of(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table of `memory_stats` in MiB."""
    index = index_of(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    lines = [f"Memory of neuron:{index} (limit {_mib(total)}, free {_mib(free)})"]
    for label, key in (
        ("in use", "allocated_bytes"),
        ("reserved", "reserved_bytes"),
        ("requested", "requested_bytes"),
    ):
        now, peak = stats.get(f"{key}.all.current", 0), stats.get(f"{key}.all.peak", 0)
        lines.append(f"  {label:<10} {_mib(now):>14}   peak {_mib(peak):>14}")
    if not abbreviated:
        lines.append(f"  blocks     {stats.get('allocation.all.current', 0):>14}")
        lines.append(f"  retries    {stats.get('num_alloc_retries', 0):>14}   OOMs {stats.get('num_ooms', 0):>14}")
    return "\n".join(lines)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
