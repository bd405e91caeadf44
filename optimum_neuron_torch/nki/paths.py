"""Calls of people's own that no kernel takes."""

from ..buckets.notes import ledger_outside_graphs
from .modes import kernels_run


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
