"""What is publicly known of the real device's eager operations: native, run on the CPU, or unknown.

The facts are in `capabilities.json`, each with the public source that states it.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal


State = Literal["native", "cpu", "unknown"]

TABLE = Path(__file__).with_name("capabilities.json")
ALL_OVERLOADS = ".*"
# Kernels of a user's own, one overload each; no operator of PyTorch's, so no row of the table.
NKI_KERNELS = "neuron::nki_kernel.*"


@dataclass(frozen=True)
class Capability:
    """One row: `op` is an overload ("aten::max.dim"), or with ".*" a family (see `family_of`).

    `source` names the public document that says so, `source_key` is its short name.
    """

    op: str
    state: State
    source: str
    source_key: str
    note: str = ""


@dataclass(frozen=True)
class DtypeFact:
    """What becomes of a dtype on the device; `strict` is the strict kind that refuses it, if there is one."""

    dtype: str
    note: str
    source: str
    strict: str | None = None


@dataclass(frozen=True)
class CapabilityTable:
    rows: dict[str, Capability]
    dtypes: tuple[DtypeFact, ...] = ()

    def row_of(self, op: str) -> Capability | None:
        """The row that speaks of an operator with its overload: its own, or that of its family."""
        return self.rows.get(op) or self.rows.get(family_of(op)) or self.rows.get(family_of(op, in_place=True))

    def state_of(self, op: str) -> State:
        """The state of an operator, given with its overload ("aten::add.Tensor"). Views compute nothing."""
        row = self.row_of(op)
        if row is not None:
            return row.state
        if family_of(op) == NKI_KERNELS:
            return "native"
        return "native" if _is_view(op) else "unknown"


def family_of(op: str, *, in_place: bool = False) -> str:
    """The name of the row for all overloads of an operator: "aten::add.*" for "aten::add.out".

    With `in_place`, the family that an in-place operator ("aten::add_.Tensor") shares with the plain one.
    """
    base = op.split(".")[0]
    return (base.removesuffix("_") if in_place else base) + ALL_OVERLOADS


@cache
def capabilities() -> CapabilityTable:
    """The table, read at its first use."""
    document = json.loads(TABLE.read_text())
    sources = document["sources"]
    rows = (
        Capability(
            op=row["op"],
            state=row["state"],
            source=sources[row["source"]],
            source_key=row["source"],
            note=row.get("note", ""),
        )
        for row in document["operations"]
    )
    dtypes = (
        DtypeFact(row["dtype"], row["note"], sources[row["source"]], row.get("strict")) for row in document["dtypes"]
    )
    return CapabilityTable({row.op: row for row in rows}, tuple(dtypes))


def _is_view(op: str) -> bool:
    """Whether all results of an operator are views of its arguments."""
    import torch

    base, _, overload = op.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(base) if "::" in base else []
    for schema in schemas:
        if schema.overload_name == overload:
            aliases = [result.alias_info for result in schema.returns]
            return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return False
