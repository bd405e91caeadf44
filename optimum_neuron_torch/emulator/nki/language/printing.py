"""`nl.device_print`."""

from typing import Any

from ..core import current
from ..dtypes import to_float32
from ..errors import NkiError
from ..tensor import NkiTensor


def device_print(print_prefix: str, tensor: Any) -> None:
    """Prints a prefix and the elements of a tensor in SBUF or HBM; without data, its shape and dtype.

    With two cores the prefix says which one prints.
    """
    if not isinstance(print_prefix, str):
        raise NkiError(f"the prefix is a string, but got {print_prefix!r}", op="nl.device_print")
    if not isinstance(tensor, NkiTensor):
        raise NkiError(f"takes a tensor, but got {tensor!r}", op="nl.device_print")
    core = current()
    prefix = print_prefix if core.run.lnc == 1 else f"{print_prefix} (core {core.index})"
    if core.is_tracing:
        print(prefix, tensor.describe())
        return
    values = tensor.read()
    is_plain = values.dtype.kind in "iub" or tensor.dtype.is_packed
    print(prefix, values if is_plain else to_float32(values, tensor.dtype))
