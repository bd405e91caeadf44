"""The estimated schedule as a picture, and as a trace for viewers."""

import heapq
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import Run
from ..memory import MemoryRegion
from .capacity import QUADRANTS, lifetimes
from .estimate import ENGINES, CoreEstimate


if TYPE_CHECKING:
    from .report import PerformanceReport


# Transfers that overlap are drawn beside each other, in as many lanes at most.
DMA_LANES = 4
NAMED_OPS = 14  # in the legend; the others share a grey


def draw(report: "PerformanceReport", run: Run, path: Path) -> Path:
    """
    Raises:
        ModuleNotFoundError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("drawing needs matplotlib: pip install 'optimum-neuron-torch[plots]'") from error

    cores = report.estimate.cores
    lanes = [lane for index, core in enumerate(cores) for lane in _lanes(core, index if len(cores) > 1 else None)]
    height = 0.34 * sum(rows for _, rows, _ in lanes) + 3.6
    figure = Figure(figsize=(13, height), layout="constrained")
    engines, sbuf, psum = figure.subplots(3, 1, sharex=True, height_ratios=[height - 2.6, 0.8, 0.8])
    _draw_lanes(engines, lanes, _colours(report))
    for axes, space in ((sbuf, MemoryRegion.sbuf), (psum, MemoryRegion.psum)):
        _draw_use(axes, report, run, space)
    psum.set_xlabel("estimated time, us")
    psum.set_xlim(0, max(report.estimated_us, 1e-3))
    figure.suptitle(f"{report.kernel} on {report.chip.name}: {report.estimated_us:,.1f} us, an estimate", fontsize=11)
    figure.savefig(path, dpi=120)
    return path


def _lanes(core: CoreEstimate, index: int | None) -> list[tuple[str, int, list[tuple[int, int]]]]:
    """Name, number of rows, and (record, row) for each engine that was used; top to bottom."""
    lanes = []
    suffix = "" if index is None else f" {index}"
    for engine in ENGINES:
        members = [i for i, record in enumerate(core.records) if record.engine == engine]
        if not members or (engine == "sync" and not any(core.work[i] for i in members)):
            continue
        rows = _rows(core, members, DMA_LANES) if engine == "dma" else dict.fromkeys(members, 0)
        used = max(rows.values()) + 1
        share = core.busy[engine] / (max(core.stops) or 1)
        lanes.append((f"{engine}{suffix}\n{share:.0%}", used, [(core, i, row) for i, row in rows.items()]))
    return lanes


def _rows(core: CoreEstimate, members: list[int], limit: int) -> dict[int, int]:
    """A row for each of the members, so that those of one row do not overlap, as far as `limit` rows allow."""
    rows, free = {}, [(0.0, row) for row in range(limit)]
    for i in sorted(members, key=lambda member: core.starts[member]):
        # The first row that is free; if none is, the one that will be first.
        ready = [entry for entry in free if entry[0] <= core.starts[i]]
        entry = min(ready, key=lambda entry: entry[1]) if ready else min(free)
        free.remove(entry)
        free.append((max(entry[0], core.stops[i]), entry[1]))
        rows[i] = entry[1]
    return rows


def _colours(report: "PerformanceReport") -> dict[str, Any]:
    """A colour for each of the ops that take most time; the same for an op in all pictures, as far as that goes."""
    import matplotlib

    times: dict[str, float] = {}
    for core in report.estimate.cores:
        for record, work in zip(core.records, core.work, strict=True):
            times[record.op] = times.get(record.op, 0.0) + work
    ops = heapq.nlargest(NAMED_OPS, times, key=times.get)
    palette = [matplotlib.colormaps["tab20"](i) for i in (0, 2, 4, 6, 8, 10, 12, 16, 18, 1, 3, 5, 7, 9)]
    return dict(zip(ops, palette, strict=False))


def _draw_lanes(axes: Any, lanes: list[Any], colours: dict[str, Any]) -> None:
    from matplotlib.patches import Patch

    bars: dict[str, list[tuple[float, float, float]]] = {}
    ticks, names, bottom = [], [], 0.0
    for name, rows, members in lanes:
        for core, i, row in members:
            start, stop = core.starts[i] / 1000, core.stops[i] / 1000
            bars.setdefault(core.records[i].op, []).append((start, stop - start, bottom + row))
        ticks.append(bottom + rows / 2)
        names.append(name)
        bottom += rows
        axes.axhline(bottom, color="0.85", linewidth=0.6, zorder=0)
    for op, boxes in bars.items():
        _draw_boxes(axes, boxes, colours.get(op, "0.6"))
    axes.set_yticks(ticks, names, fontsize=8)
    axes.set_ylim(bottom or 1.0, 0)
    handles = [Patch(color=colour, label=op) for op, colour in colours.items() if op in bars]
    if any(op not in colours for op in bars):
        handles.append(Patch(color="0.6", label="others"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _draw_boxes(axes: Any, boxes: list[tuple[float, float, float]], colour: Any) -> None:
    from matplotlib.collections import PolyCollection

    low, high = 0.08, 0.92
    corners = [
        [(start, row + low), (start + width, row + low), (start + width, row + high), (start, row + high)]
        for start, width, row in boxes
    ]
    # The edges keep what is narrower than a pixel visible.
    axes.add_collection(PolyCollection(corners, facecolors=[colour], edgecolors=[colour], linewidths=0.15))


def _draw_use(axes: Any, report: "PerformanceReport", run: Run, space: MemoryRegion) -> None:
    """How many bytes per partition are in use over the estimated time."""
    limit = run.cores[0].memories[space].partition_nbytes
    for core, timing in zip(run.cores, report.estimate.cores, strict=True):
        times, sizes = use_over_time(core, timing, space)
        label = f"core {core.index}" if len(run.cores) > 1 else None
        axes.fill_between(times, sizes, step="post", alpha=0.45, linewidth=0, label=label)
        axes.step(times, sizes, where="post", linewidth=0.8)
    axes.axhline(limit / 1024, color="0.4", linewidth=0.8, linestyle="--")
    axes.set_ylim(0, limit / 1024 * 1.08)
    axes.set_ylabel(f"{space.name.upper()}\nKiB", fontsize=8)
    axes.tick_params(labelsize=8)
    if len(run.cores) > 1 and space is MemoryRegion.sbuf:
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def use_over_time(core: Any, timing: CoreEstimate, space: MemoryRegion) -> tuple[list[float], list[float]]:
    """Times in us, and KiB per partition in use from each of them on.

    It can be more than the memory has for what an estimate starts ahead of its turn, but for tensors with an address.
    """
    changes: dict[float, float] = {}
    for first, behind, share in lifetimes(core, space):
        size = share / QUADRANTS / 1024
        start, stop = timing.starts[first] / 1000, timing.stops[behind - 1] / 1000
        changes[start] = changes.get(start, 0.0) + size
        changes[max(start, stop)] = changes.get(max(start, stop), 0.0) - size
    times, sizes, total = [0.0], [0.0], 0.0
    for time in sorted(changes):
        total += changes[time]
        times.append(time)
        sizes.append(total)
    return times, sizes


def write_trace(report: "PerformanceReport", path: Path) -> Path:
    """The schedule in the Trace Event Format: a process per core, a thread per engine and lane of transfers."""
    events: list[dict[str, Any]] = []
    for index, core in enumerate(report.estimate.cores):
        events.append({"name": "process_name", "ph": "M", "pid": index, "args": {"name": f"core {index}"}})
        for number, engine in enumerate(ENGINES):
            members = [i for i, record in enumerate(core.records) if record.engine == engine]
            rows = _rows(core, members, report.chip.dma_engines) if engine == "dma" else dict.fromkeys(members, 0)
            for row in sorted(set(rows.values())):
                name = f"{engine} {row}" if engine == "dma" else engine
                events.append(_thread(index, number * 100 + row, name))
            events.extend(_event(core, i, index, number * 100 + row) for i, row in rows.items())
    other = {"kernel": report.kernel, "chip": report.chip.name, "note": report.to_dict()["note"]}
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}))
    return path


def _thread(core: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": core, "tid": thread, "args": {"name": name}}


def _event(core: CoreEstimate, i: int, pid: int, tid: int) -> dict[str, Any]:
    record = core.records[i]
    return {
        "name": record.op,
        "cat": record.engine,
        "ph": "X",
        "ts": core.starts[i] / 1000,
        "dur": (core.stops[i] - core.starts[i]) / 1000,
        "pid": pid,
        "tid": tid,
        "args": {"line": record.line, "instruction": repr(record)},
    }
