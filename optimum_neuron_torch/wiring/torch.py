"""Entry for PyTorch: scaled_dot_product_attention on neuron by our kernels, while kernels run.

The integration is imported when kernels first run: an entry for PyTorch is applied whenever the plugin is imported.
"""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .. import runtime
from .entries import Entry, Undo


def _attend_by_kernels(module: ModuleType) -> Undo:
    made: list[Any] = []

    def exchange() -> Any:
        if not made:
            from ..integrations.sdpa import Exchange

            made.append(Exchange(module))
        return made[0]

    @contextlib.contextmanager
    def around_simulation() -> Iterator[None]:
        with exchange().around():
            yield

    runtime.around_simulation.append(around_simulation)
    on_device = runtime.is_available() and not runtime.is_emulated()
    if on_device:
        exchange().put()

    def undo() -> None:
        runtime.around_simulation.remove(around_simulation)
        if on_device:
            exchange().take_back()

    return undo


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "torch: scaled_dot_product_attention by kernels",
        "torch.nn.functional",
        _attend_by_kernels,
        "a registry of attention kernels by device below scaled_dot_product_attention, whose choice Dynamo sees: the "
        "operator that PyTorch has for other devices, _scaled_dot_product_fused_attention_overrideable, is the "
        "device's own, and a kernel put there is in no graph under its own name",
    ),
)
