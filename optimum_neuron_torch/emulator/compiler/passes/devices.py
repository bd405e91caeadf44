"""Replace devices among an operator's arguments by the host."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.node import map_aggregate


HOST = torch.device("cpu")


def to_host_devices(arguments: Any) -> Any:
    """`arguments` (nested tuples, lists, dicts) with every `torch.device` in them replaced by the CPU."""
    return map_aggregate(arguments, lambda leaf: HOST if isinstance(leaf, torch.device) else leaf)
