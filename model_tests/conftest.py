"""Fixtures of the model tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty compile cache: graphs come from nowhere else."""
    monkeypatch.setitem(os.environ, "OPTIMUM_NEURON_CACHE", str(tmp_path))
    yield
    torch._dynamo.reset()
