"""Drawing a plan: observed sizes and the buckets that serve them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np


if TYPE_CHECKING:
    from .plan import Plan


def draw(plan: "Plan", path: Path) -> Path:
    """Write the picture of a plan with observations to `path`; its suffix says in which format.

    Raises ModuleNotFoundError without matplotlib.
    """
    try:
        import matplotlib.figure
        import matplotlib.ticker
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("drawing needs matplotlib: pip install 'optimum-neuron-torch[plots]'") from error

    figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    draw_axes = _draw_pairs if plan.batches else _draw_lengths
    draw_axes(plan, axes)
    peers = ", ".join(f"{name} {waste:.1%}" for name, waste in plan.peers.items())
    axes.set_title(f"{plan.grid.graphs} graphs, {plan.waste:.1%} padding ({peers})", fontsize=11)
    if _is_skewed(plan):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
        axes.set_xlim(max(1, plan.pairs[:, 1].min() * 0.9), plan.sizes[-1] * 1.2)
    figure.savefig(path, dpi=120)
    return path


def _is_skewed(plan: "Plan") -> bool:
    """Whether most inputs would be drawn on a tenth of the width."""
    return plan.sizes[-1] > 10 * np.median(plan.pairs[:, 1])


def _draw_lengths(plan: "Plan", axes: Any) -> None:
    """A histogram of lengths, each bar in the shade of the bucket that serves it; lines are the buckets."""
    observed, edges = plan.observed, [0, *plan.sizes]
    count = min(80, int(observed.max()))
    bins = np.geomspace(observed.min(), plan.sizes[-1], count) if _is_skewed(plan) else count
    parts = [observed[(observed > low) & (observed <= high)] for low, high in zip(edges, plan.sizes, strict=False)]
    shades = ["#6f8faf" if index % 2 == 0 else "#a9bdd1" for index in range(len(parts))]
    axes.hist(parts, bins=bins, stacked=True, color=shades)
    top = axes.get_ylim()[1]
    axes.set_ylim(0, top * 1.12)
    for size in plan.sizes:
        axes.axvline(size, color="#c0392b", linewidth=1)
        axes.annotate(f" {size}", (size, top * 1.11), ha="right", va="top", rotation=90, fontsize=8)
    axes.set_xlim(0, plan.sizes[-1] * 1.02)
    axes.set(xlabel="sequence length (tokens); red: buckets", ylabel="inputs")


def _draw_pairs(plan: "Plan", axes: Any) -> None:
    """Observed pairs, larger dots for more inputs, on the grid of buckets."""
    pairs, counts = np.unique(plan.observed, axis=0, return_counts=True)
    waste = 1 - pairs.prod(axis=1) / plan.grid.fit(pairs).prod(axis=1)
    area = 8 + 120 * counts / counts.max()
    dots = axes.scatter(pairs[:, 1], pairs[:, 0], s=area, c=waste, cmap="viridis_r", vmin=0, alpha=0.8, linewidths=0)
    axes.figure.colorbar(dots, label="share of padding")
    for size in plan.sizes:
        axes.axvline(size, color="#c0392b", linewidth=1)
    for size in plan.batches:
        axes.axhline(size, color="#c0392b", linewidth=1)
    axes.set(xlabel="sequence length (tokens); red: buckets", ylabel="batch")
    axes.set_xlim(0, plan.sizes[-1] * 1.02)
    axes.set_ylim(0, plan.batches[-1] * 1.05)
