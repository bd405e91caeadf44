"""Leave checks of values out of the lowered graph: StableHLO has nothing that stops a program.

`torch._check` of a condition that tensors decide is a check on the host, here and on Trainium. The executors that run
the host's graph keep it.
"""

from __future__ import annotations

import torch
from torch import fx


aten = torch.ops.aten

_CHECKS = (
    aten._assert_async.default,
    aten._assert_async.msg,
    aten._functional_assert_async.msg,
    aten._assert_scalar.default,
    aten._functional_assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)


def drop_assertions(gm: fx.GraphModule) -> None:
    """Remove checks in place; what only they used is dead code."""
    changed = False
    for node in reversed(gm.graph.nodes):
        if node.target in _CHECKS and not node.users:
            gm.graph.erase_node(node)
            changed = True
    if changed:
        gm.recompile()
