"""What the check of one architecture found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Step:
    """
    Inference, or a training step.

    Args:
        lowered: whether every graph was lowered to StableHLO, without a fallback.
        equal: whether the results are the CPU's within the tolerance.
        graphs: how many graphs were compiled.
        nodes: operators in these graphs.
        difference: the largest difference, relative to the largest magnitude of the tensor it is in.
        reason: what failed, or why a larger difference is right.
    """

    lowered: bool = False
    equal: bool = False
    graphs: int = 0
    nodes: int = 0
    difference: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Both steps of one architecture; `training` is None where the table does not ask for it."""

    inference: Step
    training: Step | None = None
    seconds: float = 0.0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcome:
        """The outcome that `dataclasses.asdict` turned into `values`."""
        training = values.get("training")
        return cls(
            inference=Step(**values["inference"]),
            training=Step(**training) if training else None,
            seconds=values["seconds"],
        )

    @classmethod
    def failed(cls, reason: str) -> Outcome:
        """An architecture whose check did not end."""
        return cls(inference=Step(reason=reason))

    @property
    def steps(self) -> list[Step]:
        return [step for step in (self.inference, self.training) if step is not None]

    @property
    def passed(self) -> bool:
        return all(step.lowered and step.equal for step in self.steps)
