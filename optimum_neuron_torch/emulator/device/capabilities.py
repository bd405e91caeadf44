"""What is publicly known of the real device's eager operations: native, run on the CPU, or unknown."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal


State = Literal["native", "cpu", "unknown"]

TABLE = Path(__file__).with_name("capabilities.json")


@dataclass(frozen=True)
class Capability:
    """One row of the table; `source` names the public document that says so."""

    op: str
    state: State
    source: str
    note: str = ""


@dataclass(frozen=True)
class CapabilityTable:
    rows: dict[str, Capability]

    def state_of(self, op: str) -> State:
        """The state of an operator, given with its overload ("aten::add.Tensor"); a row may name all overloads."""
        row = self.rows.get(op) or self.rows.get(op.split(".")[0])
        return "unknown" if row is None else row.state


@cache
def capabilities() -> CapabilityTable:
    """The table, read at its first use."""
    document = json.loads(TABLE.read_text())
    sources = document["sources"]
    rows = (
        Capability(op=row["op"], state=row["state"], source=sources[row["source"]], note=row.get("note", ""))
        for row in document["operations"]
    )
    return CapabilityTable({row.op: row for row in rows})
