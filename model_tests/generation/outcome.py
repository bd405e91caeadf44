"""What the comparison of one class, or of one family's strategies, found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


# How a generate() call went. Only the first counts as equal.
EQUAL = "equal"  # the CPU's tokens and logits, every step in buckets
STOCK = "stock"  # the CPU's tokens and logits, on the stock path for the reason given
DIFFERS = "differs"  # other tokens or logits
FAILED = "failed"  # raises, where the CPU does not
UNSUPPORTED = "unsupported"  # raises on the CPU too


@dataclass(frozen=True, kw_only=True)
class Cell:
    """
    One kind of call, compared with the CPU's.

    Args:
        state: one of the five above.
        difference: of the logits or scores of all steps, relative to the largest magnitude of its tensor.
        distinct: how many different tokens were generated.
        graphs: graphs made for the first call.
        grown: graphs made for a second call of another length in the same buckets.
        reason: what differs or raises, or why it is the stock path.
    """

    state: str
    difference: float | None = None
    distinct: int = 0
    graphs: int = 0
    grown: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """
    The cells of one model by name; `unmade` says why there is no model to compare.

    Args:
        window: the sliding window that the calls ran past, where the model has one.
    """

    cells: dict[str, Cell] = field(default_factory=dict)
    unmade: str = ""
    window: int | None = None
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcome:
        """The outcome that `dataclasses.asdict` turned into `values`."""
        cells = {name: Cell(**cell) for name, cell in values["cells"].items()}
        return cls(**{**values, "cells": cells})

    @property
    def state(self) -> str:
        """The worst of the cells that the CPU has a result for; `UNSUPPORTED` where there is none."""
        states = {cell.state for cell in self.cells.values()} | ({UNSUPPORTED} if self.unmade else set())
        return next(state for state in (FAILED, DIFFERS, STOCK, EQUAL, UNSUPPORTED) if state in states)

    @property
    def is_static(self) -> bool:
        return self.state == EQUAL and not any(cell.grown for cell in self.cells.values())

    @property
    def is_wrong(self) -> bool:
        return self.state in (FAILED, DIFFERS)
