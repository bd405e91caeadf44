"""What was found of one model whose kernels ran in the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


# How a call went. Only the first counts as equal.
EQUAL = "equal"  # the CPU's results, and kernels of attention ran
PLAIN = "plain"  # the CPU's results, without a kernel of attention, for the reason given
DIFFERS = "differs"
FAILED = "failed"  # raises, where the CPU does not


@dataclass(frozen=True, kw_only=True)
class Cell:
    """
    One kind of call, compared with the CPU's.

    Args:
        state: one of the four above.
        difference: at float32 the largest, relative to the largest magnitude of its tensor; at bfloat16 the mean
            distance from the result at float32 over that of the CPU's bfloat16.
        kernels: how often each kernel ran.
        graphs: how many graphs were made.
        breaks: where code left its graph.
        reason: what differs or raises, or why no kernel ran.
    """

    state: str
    difference: float | None = None
    kernels: dict[str, int] = field(default_factory=dict)
    graphs: int = 0
    breaks: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The cells of one model by name."""

    cells: dict[str, Cell] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcome:
        """The outcome that `dataclasses.asdict` turned into `values`."""
        return cls(**{**values, "cells": {name: Cell(**cell) for name, cell in values["cells"].items()}})

    @property
    def is_wrong(self) -> bool:
        return any(cell.state in (DIFFERS, FAILED) or cell.breaks for cell in self.cells.values())

    @property
    def runs_kernels(self) -> bool:
        return all(cell.state == EQUAL for cell in self.cells.values())
