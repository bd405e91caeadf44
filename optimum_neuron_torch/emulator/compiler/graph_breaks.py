"""Code of a `torch.compile` on neuron that is in no graph, by source line: graph breaks, skipped functions, limits."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from optimum_neuron_torch.emulator import logs


Kind = Literal["graph break", "skipped", "recompile limit"]

_CONSEQUENCES: dict[Kind, str] = {
    "graph break": "that line runs eagerly, and what follows it is another graph",
    "skipped": "the whole function runs eagerly",
    "recompile limit": "from here on the function runs eagerly wherever none of its graphs fits",
}


@dataclass(frozen=True)
class GraphBreak:
    """
    One place where a compiled function leaves its graphs.

    Args:
        kind: `graph break`: between two graphs; `skipped`: the function has no graph at all; `recompile limit`: it has
            as many as Dynamo allows.
        location: `file:line, in function: code`.
        reason: why, in Dynamo's words.
    """

    kind: Kind
    location: str
    reason: str


_lock = threading.Lock()
_calls: dict[GraphBreak, int] = {}


def record(kind: Kind, location: str, reason: str) -> None:
    """Count a break, and say so the first time: in the log, and as a warning where a function turns eager for good."""
    from torch._dynamo.utils import counters

    found = GraphBreak(kind, location, reason)
    with _lock:
        _calls[found] = _calls.get(found, 0) + 1
        is_first = _calls[found] == 1
    counters["neuron"][f"{kind.replace(' ', '_')}s"] += 1
    if not is_first:
        return
    message = f"{kind.capitalize()} at {location}: {reason}; {_CONSEQUENCES[kind]}."
    if kind == "recompile limit":
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    else:
        logs.logger().info("%s", message)


def get_graph_breaks() -> list[dict[str, Any]]:
    """Where compiled functions left their graphs so far, oldest first: `kind`, `location`, `reason`, `times`.

    `times` counts compilations that met the place, not calls.
    """
    with _lock:
        return [{**asdict(found), "times": times} for found, times in _calls.items()]


def reset_graph_breaks() -> None:
    """Forget all of them."""
    with _lock:
        _calls.clear()


def location_of(stack: Sequence[traceback.FrameSummary] | None) -> str:
    """`file:line, in function: code` of a stack's innermost frame."""
    if not stack:
        return "an unknown line"
    frame = stack[-1]
    return f"{frame.filename}:{frame.lineno}, in {frame.name}: {(frame.line or '').strip()}"


def reason_of(error: BaseException) -> str:
    """What Dynamo calls this kind of break, and its explanation."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = getattr(error, "gb_type", None) or (lines[0] if lines else type(error).__name__)
    explanation = next((line for line in lines if line.startswith("Explanation:")), "")
    return f"{first} ({explanation.removeprefix('Explanation:').strip().rstrip('.')})" if explanation else first
