"""Which path eager attention calls take: noted while somebody records."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
    """Note one call."""
    if not torch.compiler.is_dynamo_compiling():
        for recorder in _recorders:
            recorder[path] += 1
