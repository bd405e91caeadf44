"""What a run of a kernel did, and how long it would take on the chip: an estimate, as no hardware is asked."""

import io
import os
import textwrap
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..core import Run
from ..memory import MemoryRegion
from ..records import Record
from .capacity import Peak, peak
from .costs import dma_bytes, matmul_flops, matmul_ideal_ns
from .estimate import ENGINES, Estimate, estimate
from .overlays import overwritten_reads


ESTIMATE_NOTE = "estimate from documented clocks; no hardware was asked"
# An engine that works for less of the time than this does not set the pace: waiting for each other does.
BOUND_SHARE = 0.7
HOT_LINES = 8
WIDTH = 140
OPS_WIDTH = 70


class Line(NamedTuple):
    """A line of the kernel: how often it issued instructions, and the time that they take of their engines."""

    name: str
    engine: str
    instructions: int
    ns: float


class PerformanceReport:
    """The report of one call of a kernel. `str()` is a table. Counting and estimating are done when asked for.

    Attributes:
        kernel: the name of the function.
        chip: the `Chip` that it ran on; `lnc`, how many cores of it.
        host_seconds: what the simulation took.
        unwritten: reads of memory that nothing had written, a line of text each.
        warnings: what the run warned of.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.kernel, self.chip, self.lnc, self.host_seconds = run.kernel, run.chip, run.lnc, run.seconds
        self.unwritten = [str(entry) for entry in run.unwritten.values()]
        self.warnings = sorted(run.messages)

    @cached_property
    def overwritten(self) -> list[str]:
        """Reads of what another tensor at an overlapping address had written over, a line of text each."""
        return [str(read) for core in self._run.cores for read in overwritten_reads(core)]

    @property
    def records(self) -> list[Record]:
        """The instructions, core by core."""
        return [record for core in self._run.cores for record in core.records]

    @cached_property
    def instructions(self) -> dict[str, int]:
        """How many there were, by engine."""
        counts = Counter(record.engine for record in self.records)
        return {engine: counts[engine] for engine in ENGINES if counts[engine]}

    @cached_property
    def ops(self) -> dict[str, int]:
        """How many instructions there were, by name, most first."""
        return dict(Counter(record.op for record in self.records).most_common())

    @cached_property
    def dma_bytes(self) -> dict[str, int]:
        """What DMA moved, by direction, e.g. "HBM -> SBUF"."""
        moved: Counter[str] = Counter()
        for record in self.records:
            if record.engine == "dma" and record.read and record.written:
                moved[f"{_memory(record.read[0].space)} -> {_memory(record.written[0].space)}"] += dma_bytes(record)
        return dict(moved)

    @cached_property
    def matmul_flops(self) -> int:
        return sum(matmul_flops(record) for record in self.records)

    @cached_property
    def estimate(self) -> Estimate:
        """The schedule: when each instruction starts and stops."""
        return estimate(self._run)

    @property
    def estimated_us(self) -> float:
        return self.estimate.total_ns / 1000

    @cached_property
    def busy_us(self) -> dict[str, float]:
        """How long each engine works, of the core where it works longest."""
        engines = [engine for engine in ENGINES if engine in self.instructions and engine != "sync"]
        return {engine: max(core.busy[engine] for core in self.estimate.cores) / 1000 for engine in engines}

    @property
    def matmul_utilisation(self) -> float:
        """Share of the multiplications that the Tensor Engines could do in the estimated time, at the highest rate for
        the type of the inputs; for those of 32 bits at the rate of 16 bits.
        """
        return self._utilisation(self.lnc * self.estimate.total_ns)

    @property
    def matmul_utilisation_while_busy(self) -> float:
        """The same share of the time in which they work."""
        return self._utilisation(sum(core.busy["tensor"] for core in self.estimate.cores))

    def _utilisation(self, ns: float) -> float:
        return self._matmul_ideal_ns / ns if ns else 0.0

    @cached_property
    def _matmul_ideal_ns(self) -> float:
        return sum(matmul_ideal_ns(record, self.chip) for record in self.records)

    @cached_property
    def peaks(self) -> dict[str, Peak]:
        """The most that was needed of "sbuf" and "psum" at once, on the core that needed more."""
        return {
            space.name: max((peak(core, space) for core in self._run.cores), key=lambda found: found.nbytes)
            for space in (MemoryRegion.sbuf, MemoryRegion.psum)
        }

    @cached_property
    def hot_lines(self) -> list[Line]:
        """The kernel's lines by the time that they take of their engines, longest first."""
        times: Counter[tuple[str, int, str]] = Counter()
        counts: Counter[tuple[str, int, str]] = Counter()
        for core in self.estimate.cores:
            for record, work in zip(core.records, core.work, strict=True):
                key = (record.code, record.lineno, record.engine)
                times[key] += work
                counts[key] += 1
        return [
            Line(f"{os.path.basename(code)}:{lineno}", engine, counts[code, lineno, engine], ns)
            for (code, lineno, engine), ns in times.most_common()
        ]

    @cached_property
    def bound(self) -> str:
        """What sets the pace, in words."""
        if not self.busy_us or not self.estimate.total_ns:
            return "nothing was issued"
        engine, busy = max(self.busy_us.items(), key=lambda item: item[1])
        share = busy / self.estimated_us
        if share < BOUND_SHARE:
            return f"waiting: even the busiest engine, {engine}, works {share:.0%} of the time"
        return f"the {engine} engine, which works {share:.0%} of the time{self._roofline(engine)}"

    def _roofline(self, engine: str) -> str:
        moved = sum(self.dma_bytes.values())
        if engine not in ("dma", "tensor") or not moved or not self.matmul_flops:
            return ""
        intensity = self.matmul_flops / moved
        widest = min(self.chip.dma_peak_bytes_per_ns, self.chip.hbm_bytes_per_ns)
        ridge = self.matmul_flops / self._matmul_ideal_ns / widest
        return f"; {intensity:.0f} FLOP per byte moved, where {ridge:.0f} keep both the Tensor Engine and DMA busy"

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain numbers and strings, for JSON."""
        return {
            "kernel": self.kernel,
            "chip": self.chip.name,
            "lnc": self.lnc,
            "instructions": dict(self.instructions),
            "ops": dict(self.ops),
            "dma_bytes": dict(self.dma_bytes),
            "matmul_flops": self.matmul_flops,
            "estimated_us": self.estimated_us,
            "note": ESTIMATE_NOTE,
            "busy_us": dict(self.busy_us),
            "matmul_utilisation": self.matmul_utilisation,
            "matmul_utilisation_while_busy": self.matmul_utilisation_while_busy,
            "bound": self.bound,
            "peaks": {
                name: {"bytes_per_partition": found.nbytes, "limit": found.limit} for name, found in self.peaks.items()
            },
            "hot_lines": [line._asdict() for line in self.hot_lines[:HOT_LINES]],
            "unwritten": list(self.unwritten),
            "overwritten": list(self.overwritten),
            "warnings": list(self.warnings),
            "host_seconds": self.host_seconds,
        }

    def plot(self, path: str | Path) -> Path:
        """Draws what each engine does over time, and how full SBUF and PSUM are; the suffix says in which format.

        Raises:
            ModuleNotFoundError: without matplotlib.
        """
        from .timeline import draw

        return draw(self, self._run, Path(path))

    def trace(self, path: str | Path) -> Path:
        """Writes the schedule as JSON that chrome://tracing and ui.perfetto.dev show."""
        from .timeline import write_trace

        return write_trace(self, Path(path))

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, no_color=True, highlight=False)
        console.print(self._heading(), markup=False)
        console.print(self._engine_table())
        for text in self._remarks():
            console.print(text, markup=False)
        console.print(self._line_table())
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def _heading(self) -> str:
        cores = f"{self.lnc} cores of " if self.lnc > 1 else ""
        return f"{self.kernel} on {cores}{self.chip.name}: {self.estimated_us:,.1f} us ({ESTIMATE_NOTE})"

    def _engine_table(self) -> Any:
        table = _table("engine", "instructions", "busy us", "busy", "most of them")
        for engine, count in self.instructions.items():
            ops = Counter(record.op for record in self.records if record.engine == engine).most_common(3)
            busy = self.busy_us.get(engine)
            times = ("", "") if busy is None else (f"{busy:,.1f}", f"{busy / (self.estimated_us or 1):.0%}")
            names = textwrap.shorten(", ".join(f"{op} {n:,}" for op, n in ops), OPS_WIDTH, placeholder=" ...")
            table.add_row(engine, f"{count:,}", *times, names)
        return table

    def _remarks(self) -> list[str]:
        remarks = [f"bound by {self.bound}"]
        if self.matmul_flops:
            remarks.append(
                f"matmul: {self.matmul_flops / 1e9:,.3f} GFLOP, {self.matmul_utilisation:.1%} of the Tensor Engine's "
                f"highest rate for such inputs; {self.matmul_utilisation_while_busy:.1%} while it works"
            )
        if self.dma_bytes:
            moved = ", ".join(f"{name} {_size(nbytes)}" for name, nbytes in self.dma_bytes.items())
            remarks.append(f"DMA: {moved}")
        fills = [f"{name.upper()} {_size(p.nbytes)} ({p.nbytes / p.limit:.0%})" for name, p in self.peaks.items()]
        remarks.append(f"peak per partition: {', '.join(fills)}")
        if self.host_seconds:
            remarks.append(
                f"simulated in {self.host_seconds:.3f} s, {self._us_per_instruction():.0f} us per instruction"
            )
        remarks.extend(f"not written before: {text}" for text in self.unwritten)
        remarks.extend(f"overwritten before: {text}" for text in self.overwritten)
        remarks.extend(f"warning: {text}" for text in self.warnings)
        return remarks

    def _us_per_instruction(self) -> float:
        return self.host_seconds * 1e6 / max(1, sum(self.instructions.values()))

    def _line_table(self) -> Any:
        table = _table("line", "engine", "instructions", "engine us")
        for line in self.hot_lines[:HOT_LINES]:
            table.add_row(line.name, line.engine, f"{line.instructions:,}", f"{line.ns / 1000:,.1f}")
        return table


def _table(*columns: str) -> Any:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(box=SIMPLE, pad_edge=False)
    for column in columns:
        is_number = column not in ("engine", "line", "most of them")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=True)
    return table


def _memory(space: str) -> str:
    return "HBM" if space.endswith("hbm") else space.upper()


def _size(nbytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes} B"
