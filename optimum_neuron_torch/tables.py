"""Reports as text tables for people."""

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table


if TYPE_CHECKING:
    from .report import Report


def render(*renderables, width: int = 110) -> str:
    """`rich` renderables as plain text."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=False, color_system=None)
    for renderable in renderables:
        console.print(renderable)
    return buffer.getvalue().rstrip()


def summary_table(report: "Report") -> Table:
    """One row per figure of the report."""
    table = Table(
        title=f"{report.name} on {'the emulated' if report.emulated else 'the'} neuron device", title_justify="left"
    )
    table.add_column("what")
    table.add_column("figure")
    unknown = "not counted by this device"
    rows = [
        ("graphs compiled", str(report.graphs)),
        ("graphs from the cache", str(report.cached)),
        ("lowering to StableHLO", ", ".join(f"{count} {state}" for state, count in report.lowering.items()) or "-"),
        ("eager signatures", unknown if report.eager_signatures is None else str(report.eager_signatures)),
        ("copies", unknown if report.copies is None else str(report.copies)),
        *([("CPU tensors into graphs", str(report.cpu_autocopies))] if report.cpu_autocopies else []),
        ("buckets touched", str(len(report.buckets))),
        ("padded share of the work", f"{report.padded_share:.0%}"),
        ("ops on the CPU", ", ".join(report.fallbacks) or "none"),
        *([] if report.unknown_ops is None else [("ops of unknown support", ", ".join(report.unknown_ops) or "none")]),
        ("attention", ", ".join(f"{path} {calls}" for path, calls in report.attention.items()) or "-"),
        ("seconds", ", ".join(f"{name} {seconds:.1f}" for name, seconds in report.times.items())),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def bucket_table(report: "Report") -> Table:
    """One row per bucket touched."""
    table = Table(title="buckets", title_justify="left")
    for column in ("function", "bucket"):
        table.add_column(column)
    for column in ("calls", "real", "padded", "waste"):
        table.add_column(column, justify="right")
    for use in report.buckets:
        bucket = ", ".join(f"{axis} {size}" for axis, size in use.bucket.items())
        waste = f"{1 - use.real / use.padded:.0%}" if use.padded else "-"
        table.add_row(use.function, bucket, str(use.calls), str(use.real), str(use.padded), waste)
    return table


def render_report(report: "Report") -> str:
    parts = [summary_table(report)]
    if report.buckets:
        parts.append(bucket_table(report))
    if report.departures:
        parts.append(_rows("left the bucketed path", ("kind", "where", "reason", "calls"), report.departures))
    if report.recompiles:
        parts.append(_rows("compiled again", ("graph", "reason"), report.recompiles))
    if report.graph_breaks:
        parts.append(_rows("outside of graphs", ("kind", "location", "reason", "times"), report.graph_breaks))
    return render(*parts)


def _rows(title: str, columns: tuple[str, ...], rows: list[dict]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(escape(str(row[column])) for column in columns))
    return table
