"""Moving data between HBM and SBUF with the DMA engines."""

from typing import Any

from ..dtypes import to_float32
from ..errors import NkiError
from ..indirect import in_bounds
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .constants import dge_mode as dge_modes
from .constants import engine as engines
from .constants import oob_mode as oob_modes


@instruction
def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: Any = oob_modes.error,
    dge_mode: Any = dge_modes.unknown,
    engine: Any = engines.unknown,
) -> Step:
    """`dst = src` between HBM and SBUF, element by element; other dtypes go through float32."""
    for tensor, role in ((dst, "dst"), (src, "src")):
        if not isinstance(tensor, NkiTensor):
            raise NkiError(f"{role} must be a tensor in HBM or SBUF, but is {tensor!r}")
        if tensor.buffer is MemoryRegion.psum:
            raise NkiError(f"DMA cannot access PSUM ({tensor.describe()}): copy to SBUF first, with nisa.tensor_copy")
    if dst.size != src.size:
        raise NkiError(f"{src.size} elements into {dst.size} ({src.describe()} to {dst.describe()})")

    def copy() -> None:
        for tensor in (dst, src):
            if tensor.is_indirect() and oob_mode is oob_modes.error and not in_bounds(tensor).all():
                raise NkiError(f"a dynamic index is out of bounds of {tensor.describe()}; oob_mode.skip would skip it")
        values = src.read()
        dst.write(values if src.dtype == dst.dtype else to_float32(values, src.dtype))

    return Step("dma", (dst,), (src,), copy)
