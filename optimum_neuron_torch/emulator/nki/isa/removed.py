"""Instructions that are gone, each with what to write instead."""

from ..names import MissingNameError


_DYNAMIC = "use nisa.tensor_copy, with a register or a tensor as scalar_offset= of .ap()"

REMOVED = {"tensor_copy_dynamic_src": _DYNAMIC, "tensor_copy_dynamic_dst": _DYNAMIC}


def missing(name: str) -> MissingNameError:
    """What to raise for a name that `nki.isa` does not have."""
    return MissingNameError.of("nki.isa", name, REMOVED)
