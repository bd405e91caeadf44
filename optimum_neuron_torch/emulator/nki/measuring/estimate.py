"""When each instruction of a run would start and end on the chip, by its documented clocks and widths.

An estimate: no hardware was asked. It goes by these rules:

* Every engine executes its instructions in the order in which the kernel issued them. An instruction starts when its
  engine is free and the instructions that it must wait for (`hazards.py`) are done.
* Transfers do not wait for each other's data: each one takes free time of what makes the descriptors and then of the
  DMA engines, 16 per core, from the moment when its operands are ready.
* A tensor without an address can be written when the memory has room for it beside all that were issued before it and
  are still in use: so data is fetched ahead as far as SBUF allows.
* Two cores meet where they wait for each other.

Not in it: what a compiler reorders, spills or adds; GpSimd's time where it makes descriptors; collisions in banks and
in HBM; clocks that change with the load.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ..chips import Chip
from ..core import Run
from ..records import Record, operand_at
from .capacity import QUADRANT, QUADRANTS
from .costs import cost_of
from .hazards import Hazards


ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "sync")
MEETINGS = ("core_barrier", "sendrecv")
# Gaps between transfers that later ones can fill, of each DMA engine; older ones are forgotten.
MAX_GAPS = 64


@dataclass(frozen=True)
class CoreEstimate:
    """Times in ns, one per record; `work` is what it takes of its engine, and of DMA what it takes of all DMA engines
    together, where a transfer on half of them counts half, or of the making of descriptors if that is more. `busy` is
    the sum for each engine, and of DMA the larger of the two sums.
    """

    records: Sequence[Record]
    starts: Sequence[float]
    stops: Sequence[float]
    work: Sequence[float]
    busy: dict[str, float]


@dataclass(frozen=True)
class Estimate:
    """The schedule of a run. `total_ns`: from the first instruction to the last result."""

    chip: Chip
    cores: tuple[CoreEstimate, ...]
    total_ns: float


def estimate(run: Run) -> Estimate:
    return schedule([core.records for core in run.cores], run.chip)


def schedule(records_of_cores: Sequence[Sequence[Record]], chip: Chip) -> Estimate:
    """The estimate for one list of records per core."""
    cores = [_Schedule(list(records), chip) for records in records_of_cores]
    while not all(core.is_done for core in cores):
        for core in cores:
            core.advance()
        waiting = [core for core in cores if not core.is_done]
        if not waiting:
            break
        meeting = waiting[0].meeting
        together = [core for core in waiting if core.meeting == meeting]
        start = max(core.ready for core in together)
        for core in together:
            core.meet(start)
    return Estimate(chip, tuple(core.result() for core in cores), max((core.last_ns for core in cores), default=0.0))


class _Schedule:
    """One core's instructions, placed in time one by one."""

    def __init__(self, records: list[Record], chip: Chip) -> None:
        self.records, self.chip = records, chip
        self.starts: list[float] = []
        self.stops: list[float] = []
        self.results: list[float] = []  # when what was written can be read
        self.work: list[float] = []
        self.busy = dict.fromkeys(ENGINES, 0.0)
        self.last_ns = 0.0
        self.meeting: tuple | None = None
        self.ready = 0.0
        self._free = dict.fromkeys(ENGINES, 0.0)
        self._ports = {"sbuf": 0.0, "psum": 0.0}
        self._transfers = _DmaEngines(chip.dma_engines)
        self._descriptors = _DmaEngines(1)
        self._descriptors_ns = self._moving_ns = 0.0
        self._hazards = Hazards(records)
        self._rooms = _Rooms(records, chip)
        self._indices = {id(record): index for index, record in enumerate(records)}
        self._met: dict[tuple, int] = {}

    @property
    def is_done(self) -> bool:
        return len(self.starts) == len(self.records)

    def advance(self) -> None:
        """Goes on to the end, or to where this core meets another."""
        while not self.is_done and self.meeting is None:
            record = self.records[len(self.starts)]
            ready = self._ready(record)
            if record.op in MEETINGS:
                key = (record.op, (record.detail or {}).get("pipe"))
                self._met[key] = self._met.get(key, 0) + 1
                self.meeting, self.ready = (*key, self._met[key]), ready
            else:
                self._place(record, ready)

    def meet(self, start: float) -> None:
        self.meeting = None
        self._place(self.records[len(self.starts)], start)

    def result(self) -> CoreEstimate:
        self.busy["dma"] = max(self._moving_ns, self._descriptors_ns)
        return CoreEstimate(self.records, self.starts, self.stops, self.work, self.busy)

    def _ready(self, record: Record) -> float:
        """When nothing but its engine keeps the next instruction."""
        index, engine = len(self.starts), record.engine
        ready = self._rooms.open_at(index)
        waits = self._hazards.of(index)
        for other in waits.results:
            # The Tensor Engine cannot read PSUM: what it writes there accumulates, without a gap.
            if engine != "tensor" or self.records[other].engine != "tensor":
                ready = max(ready, self.results[other])
        for other in waits.writers:
            # An engine writes in order.
            if engine == "dma" or self.records[other].engine != engine:
                ready = max(ready, self.results[other])
        for other in waits.readers:
            ready = max(ready, self.stops[other])
        for producer in (record.detail or {}).get("after", ()):
            other = self._indices.get(id(producer))
            if other is not None and other < index:
                ready = max(ready, self.results[other])
        return ready

    def _place(self, record: Record, ready: float) -> None:
        cost = cost_of(record, self.chip)
        if record.engine == "dma":
            begun, _ = self._descriptors.take(ready, cost.descriptors_ns, 1)
            start, stop = self._transfers.take(begun + cost.start_ns, cost.busy_ns, cost.engines)
            share = cost.busy_ns * cost.engines / self.chip.dma_engines
            self._moving_ns += share
            self._descriptors_ns += cost.descriptors_ns
            work = max(share, cost.descriptors_ns)
        else:
            start = max(ready + cost.start_ns, self._free[record.engine], self._port_free(record))
            stop = start + cost.busy_ns
            self._free[record.engine] = stop
            self._keep_port(record, stop)
            work = cost.busy_ns
        index = len(self.starts)
        self.busy[record.engine] += work
        self.work.append(work)
        self.starts.append(start)
        self.stops.append(stop)
        self.results.append(stop + cost.result_ns)
        self.last_ns = max(self.last_ns, stop + cost.result_ns)
        self._rooms.used(index, stop + cost.result_ns)

    def _port_free(self, record: Record) -> float:
        return max((self._ports[port] for port in self._exclusive_ports(record)), default=0.0)

    def _keep_port(self, record: Record, stop: float) -> None:
        for port in self._exclusive_ports(record):
            self._ports[port] = stop

    def _exclusive_ports(self, record: Record) -> list[str]:
        """The memories that a second engine cannot access at the same time."""
        if not self.chip.has_exclusive_ports:
            return []
        spaces = {footprint.space for footprint in (*record.written, *record.read)}
        engines = {"sbuf": ("vector", "gpsimd"), "psum": ("vector", "scalar")}
        return [space for space, users in engines.items() if space in spaces and record.engine in users]


class _DmaEngines:
    """When the DMA engines are busy. Transfers fill gaps, so one that waits for data holds nobody up."""

    def __init__(self, count: int) -> None:
        self._busy: list[tuple[list[float], list[float]]] = [([], []) for _ in range(count)]

    def take(self, ready: float, duration: float, engines: int) -> tuple[float, float]:
        """Start and stop of a transfer on those engines that can have it first."""
        if not duration:
            return ready, ready
        gaps = sorted((_first_gap(intervals, ready, duration), engine) for engine, intervals in enumerate(self._busy))
        taken = gaps[:engines]
        for start, engine in taken:
            _occupy(self._busy[engine], start, start + duration)
        return taken[0][0], taken[-1][0] + duration


def _first_gap(intervals: tuple[list[float], list[float]], ready: float, duration: float) -> float:
    starts, stops = intervals
    at = bisect_right(stops, ready)
    while at < len(starts) and starts[at] < ready + duration:
        ready = max(ready, stops[at])
        at += 1
    return ready


def _occupy(intervals: tuple[list[float], list[float]], start: float, stop: float) -> None:
    starts, stops = intervals
    at = bisect_left(starts, start)
    joins_before = at > 0 and stops[at - 1] == start
    joins_after = at < len(starts) and starts[at] == stop
    if joins_before and joins_after:
        stops[at - 1] = stops.pop(at)
        starts.pop(at)
    elif joins_before:
        stops[at - 1] = stop
    elif joins_after:
        starts[at] = start
    else:
        starts.insert(at, start)
        stops.insert(at, stop)
        if len(starts) > MAX_GAPS:
            del starts[1], stops[0]


class _Rooms:
    """When there is room for the tensors without an address, in SBUF and in PSUM, in the order of their first use."""

    def __init__(self, records: list[Record], chip: Chip) -> None:
        self._first: dict[int, list[tuple[str, int]]] = {}  # by instruction
        self._last: dict[int, list[tuple[str, int]]] = {}
        self._owners: list[set[tuple[str, int]]] = []
        self._sizes: dict[tuple[str, int], float] = {}
        first: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], int] = {}
        placed = {"sbuf": 0, "psum": 0}
        for index, record in enumerate(records):
            owners = set()
            for footprint in (*record.written, *record.read):
                if not footprint.pitch:
                    continue
                if not footprint.owner:
                    placed[footprint.space] = max(placed[footprint.space], operand_at(footprint).region.stop)
                    continue
                owner = (footprint.space, footprint.owner)
                owners.add(owner)
                quadrants = min(QUADRANTS, -(-footprint.shape[0] // QUADRANT))
                size = footprint.pitch * quadrants / QUADRANTS
                self._sizes[owner] = max(self._sizes.get(owner, 0), size)
                first.setdefault(owner, index)
                last[owner] = index
            self._owners.append(owners)
        for owner, index in first.items():
            self._first.setdefault(index, []).append(owner)
        for owner, index in last.items():
            self._last.setdefault(index, []).append(owner)
        self._left = {
            "sbuf": chip.sbuf_partition_bytes - placed["sbuf"],
            "psum": chip.psum_partition_bytes - placed["psum"],
        }
        self._opened: dict[tuple[str, int], float] = {}
        self._done: dict[tuple[str, int], float] = {}
        self._ending: dict[str, list[tuple[float, float]]] = {"sbuf": [], "psum": []}
        self._latest = {"sbuf": 0.0, "psum": 0.0}

    def open_at(self, index: int) -> float:
        """When there is room for all tensors of an instruction."""
        for owner in self._first.get(index, ()):
            self._opened[owner] = self._admit(owner)
        return max((self._opened[owner] for owner in self._owners[index]), default=0.0)

    def used(self, index: int, until: float) -> None:
        for owner in self._owners[index]:
            self._done[owner] = max(self._done.get(owner, 0.0), until)
        for owner in self._last.get(index, ()):
            heapq.heappush(self._ending[owner[0]], (self._done[owner], self._sizes[owner]))

    def _admit(self, owner: tuple[str, int]) -> float:
        space, size = owner[0], self._sizes[owner]
        ending = self._ending[space]
        while self._left[space] < size and ending:
            time, freed = heapq.heappop(ending)
            self._left[space] += freed
            self._latest[space] = max(self._latest[space], time)
        self._left[space] -= size
        return self._latest[space]
