"""Which path calls take: of models' attention, counted for reports; of people's own calls, where no kernel takes
one.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..buckets.notes import count, ledger_outside_graphs
from .modes import kernels_run


_recorders: list[Counter] = []


@contextmanager
def recording() -> Iterator[Counter]:
    """Count, within the block, which path each eager attention call took (in a graph it was chosen when traced)."""
    paths: Counter = Counter()
    _recorders.append(paths)
    try:
        yield paths
    finally:
        # By identity: equal counters of nested blocks are not the same.
        _recorders[:] = [recorder for recorder in _recorders if recorder is not paths]


def record(path: str) -> None:
    """Count one call: in a graph, for each call of that."""
    count(path)
    if not torch.compiler.is_dynamo_compiling():
        for recorder in _recorders:
            recorder[path] += 1


def tell_refusal(function: str, reason: str | None) -> None:
    """Where kernels run and none takes a call of `optimum_neuron_torch.nki.function`: count it in `report()`, warn
    once, and raise StrictError under strict "attention".
    """
    if reason is not None and kernels_run():
        _depart(function, reason)


def _depart(function: str, reason: str) -> None:
    ledger_outside_graphs().depart("attention", f"nki.{function}()", f"no kernel takes it ({reason}): torch does")


# As torch.compiler.assume_constant_result() marks it, which would import Dynamo: run once, while tracing.
_depart._dynamo_marked_constant = True  # type: ignore[attr-defined]
