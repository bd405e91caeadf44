"""How much of SBUF and PSUM a run needed at its worst moment, and the error where that is more than there is.

Tensors without an address are placed by a compiler, which may reuse the bytes of one that is not used any more: they
count from the first to the last instruction that uses them, whatever Python still holds. Tensors of up to 32
partitions take a quarter of the partitions, of up to 64 a half. Tensors with an address count as the bytes they cover.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..core import Core
from ..errors import NkiError
from ..memory import MemoryRegion, Usage


QUADRANT = 32  # partitions that instructions may start at: Neuron documentation, NKI architecture guides
QUADRANTS = 4


class Peak(NamedTuple):
    """The most that was needed at once, in bytes per partition, when, and the tensors that needed it."""

    nbytes: int
    limit: int
    instruction: int
    tensors: tuple[Usage, ...]
    over_time: tuple[tuple[int, int], ...]  # (instruction, bytes from there on)


def peak(core: Core, space: MemoryRegion) -> Peak:
    limit = core.memories[space].partition_nbytes
    changes: dict[int, int] = {}
    for start, stop, share in lifetimes(core, space):
        changes[start] = changes.get(start, 0) + share
        changes[stop] = changes.get(stop, 0) - share
    total = best = at = 0
    over_time = []
    for instruction in sorted(changes):
        total += changes[instruction]
        over_time.append((instruction, -(-total // QUADRANTS)))
        if total > best:
            best, at = total, instruction
    holders = [usage for usage in _used(core, space) if usage.first <= at <= usage.last]
    holders.sort(key=_share, reverse=True)
    return Peak(-(-best // QUADRANTS), limit, at, tuple(holders), tuple(over_time))


def lifetimes(core: Core, space: MemoryRegion) -> Iterator[tuple[int, int, int]]:
    """(first instruction, one behind the last, bytes per partition times the quadrants) of what takes memory."""
    used = _used(core, space)
    for usage in used:
        if usage.address is None:
            yield usage.first, usage.last + 1, _share(usage)
    for start, stop, size in _placed(usage for usage in used if usage.address is not None):
        yield start, stop, size * QUADRANTS


def _used(core: Core, space: MemoryRegion) -> list[Usage]:
    return [usage for usage in core.usages if usage.space is space and usage.first >= 0]


def check_capacity(core: Core) -> None:
    """Raises:
    NkiError: the tensors that live at one instruction do not fit.
    """
    for space in (MemoryRegion.sbuf, MemoryRegion.psum):
        found = peak(core, space)
        if found.nbytes <= found.limit:
            continue
        record = core.records[found.instruction]
        largest = ", ".join(
            f"{usage.name or 'tensor'}{list(usage.shape)} {usage.dtype} from {usage.line}"
            for usage in found.tensors[:5]
        )
        raise NkiError(
            f"{space.name.upper()} is over its capacity: the {len(found.tensors)} tensors in use at "
            f"{record.op} ({record.line}) need {found.nbytes} bytes per partition, and there are {found.limit}. The "
            f"largest: {largest}. Use smaller tiles, or use tensors for a shorter time"
        ).place(record.code, record.lineno)


def _share(usage: Usage) -> int:
    """Bytes per partition times the quadrants it takes."""
    quadrants = -(-usage.partitions // QUADRANT)
    return usage.nbytes * (QUADRANTS if quadrants == 3 else quadrants)


def _placed(usages: Iterable[Usage]) -> Iterable[tuple[int, int, int]]:
    """(first instruction, one behind the last, bytes) of the pieces of memory that tensors with addresses cover.

    Every byte counts once however many tensors lie on it, from the first use of any of them to the last.
    """
    usages = list(usages)
    cuts = sorted({edge for usage in usages for edge in (usage.address, usage.address + usage.nbytes)})
    first = dict.fromkeys(cuts, -1)
    last = dict.fromkeys(cuts, -1)
    positions = {edge: i for i, edge in enumerate(cuts)}
    for usage in usages:
        for edge in cuts[positions[usage.address] : positions[usage.address + usage.nbytes]]:
            first[edge] = usage.first if first[edge] < 0 else min(first[edge], usage.first)
            last[edge] = max(last[edge], usage.last)
    for start, stop in zip(cuts, cuts[1:], strict=False):
        if first[start] >= 0:
            yield first[start], last[start] + 1, stop - start
