"""A plan as text for people: what each bucket serves, and the plan beside its bound and its peers."""

from typing import TYPE_CHECKING

from rich.table import Table

from ...tables import render


if TYPE_CHECKING:
    from .plan import Plan


def render_plan(plan: "Plan") -> str:
    if plan.observed is None:
        sizes = Table(title=f"{plan.grid.graphs} graphs", title_justify="left")
        for axis, values in (("batch", plan.batches), ("sequence", plan.sizes)):
            if values:
                sizes.add_column(axis)
        sizes.add_row(*(", ".join(map(str, values)) for values in (plan.batches, plan.sizes) if values))
        return render(sizes)
    return render(_served_table(plan), _comparison_table(plan))


def _served_table(plan: "Plan") -> Table:
    """One row per bucket: the inputs it serves, and their padding."""
    table = Table(title=f"{len(plan.observed)} inputs", title_justify="left")
    for column in (*(["batch"] if plan.batches else []), "sequence", "inputs", "waste"):
        table.add_column(column, justify="right")
    pairs = plan.pairs
    served = plan.grid.fit(pairs)
    for batch in plan.grid.batches:
        for sequence in plan.sizes:
            inside = (served == (batch, sequence)).all(axis=1)
            padded = int(inside.sum()) * batch * sequence
            waste = f"{1 - int(pairs[inside].prod(axis=1).sum()) / padded:.1%}" if padded else "-"
            row = [str(sequence), str(int(inside.sum())), waste]
            table.add_row(*([str(batch), *row] if plan.batches else row))
    return table


def _comparison_table(plan: "Plan") -> Table:
    """The plan beside the bound and what is usual: the positions each computes for the observed inputs."""
    real = int(plan.pairs.prod(axis=1).sum())
    table = Table(title="positions computed", title_justify="left")
    table.add_column("buckets")
    for column in ("graphs", "positions", "padding", "over this plan"):
        table.add_column(column, justify="right")
    graphs = plan.grid.graphs
    rows = [("no padding", "", 0.0), ("this plan", str(graphs), plan.waste)]
    rows.append((f"bound: no {graphs} graphs do better", str(graphs), plan.bound))
    rows += [(name, str(grid.graphs), plan.peers[name]) for name, grid in plan.peer_grids.items()]
    for name, count, waste in sorted(rows, key=lambda row: row[2]):
        ratio = (1 - plan.waste) / (1 - waste)
        table.add_row(name, count, str(round(real / (1 - waste))), f"{waste:.1%}", f"{ratio:.2f}x")
    return table
