"""Memory functions of `torch.neuron`. The figures are those of the emulator's allocator (csrc/allocator.cpp)."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from .devices import Device, index_of


def empty_cache() -> None:
    """Gives memory that is cached but not in use back to the host."""
    torch.accelerator.empty_cache()


def memory_stats(device: Device = None) -> "OrderedDict[str, Any]":
    """Allocator statistics of one core, with the keys of `torch.accelerator.memory_stats` and two of TorchNeuron's."""
    stats = torch.accelerator.memory_stats(index_of(device))
    stats["allocation_requests"] = stats["allocation.all.allocated"]
    stats["num_tensor_frees"] = stats["allocation.all.freed"]
    return stats


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
    """A table of `memory_stats`: now, at the peak and over all time, of each pool unless abbreviated."""
    index = index_of(device)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    lines = [
        f"Memory of neuron:{index}: limit {_size(total)}, free {_size(free)}, OOMs {stats['num_ooms']}, "
        f"retries after emptying the cache {stats['num_alloc_retries']}",
        f"{'':<24}" + "".join(f"{column:>14}" for column in _COLUMNS),
    ]
    for label, key, unit in _ROWS:
        for pool in ("all",) if abbreviated else _POOLS:
            values = (stats[f"{key}.{pool}.{column}"] for column in _COLUMNS)
            name = label if pool == "all" else f"  {pool.replace('_', ' ')}"
            lines.append(f"{name:<24}" + "".join(f"{unit(value):>14}" for value in values))
    return "\n".join(lines)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


_POOLS = ("all", "small_pool", "large_pool")
_COLUMNS = ("current", "peak", "allocated", "freed")
_ROWS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("in use", "allocated_bytes", _size),
    ("asked for", "requested_bytes", _size),
    ("reserved", "reserved_bytes", _size),
    ("blocks in use", "allocation", str),
    ("blocks reserved", "segment", str),
)
