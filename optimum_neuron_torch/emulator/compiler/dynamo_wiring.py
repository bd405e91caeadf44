"""What the compiler changes in Dynamo, as a table that can be undone; put in place with the first compilation.

Apart from `emulator/wiring.py` because it needs `torch._dynamo`, which `import torch` must not load.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo import guards
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

from optimum_neuron_torch.emulator.compiler.cache import verified
from optimum_neuron_torch.emulator.patches import Patch, PatchTable


def _without_key_order(original: Callable[..., bytes]) -> Callable[..., bytes]:
    """Let guards of Transformers' models be stored: their key-order guard on a registry fails to load."""

    @functools.wraps(original)
    def pickle_guards_state(state: Any, *args: Any, **kwargs: Any) -> bytes:
        if hasattr(getattr(state, "output_graph", None), "guard_on_key_order"):
            with _no_key_order(state.output_graph):
                return original(state, *args, **kwargs)
        return original(state, *args, **kwargs)

    return pickle_guards_state


@contextmanager
def _no_key_order(output_graph: Any) -> Iterator[None]:
    kept = output_graph.guard_on_key_order
    output_graph.guard_on_key_order = set()
    try:
        yield
    finally:
        output_graph.guard_on_key_order = kept


_TABLE = PatchTable(
    (
        Patch(
            guards,
            "pickle_guards_state",
            _without_key_order,
            until="a key-order guard that can be stored for dictionaries whose owner is dropped",
        ),
        Patch(
            AOTAutogradCache,
            "iterate_over_candidates",
            verified,
            until="a digest with each stored result, and a lock while one is made",
        ),
    )
)


def install() -> None:
    """Apply all patches; a second call does nothing."""
    _TABLE.install()


def uninstall() -> None:
    """Put the originals back."""
    _TABLE.uninstall()
