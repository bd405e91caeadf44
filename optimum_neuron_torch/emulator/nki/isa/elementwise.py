"""Element by element: the Vector Engine's arithmetic."""

from typing import Any

from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .constants import engine as engines
from .operands import on_chip, same_elements


@instruction
def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Any = engines.unknown) -> Step:
    """`dst = data1 op data2`, computed in float32."""
    on_chip(dst, data1, data2)
    same_elements(dst, data1, data2)
    if data1.buffer is MemoryRegion.psum and data2.buffer is MemoryRegion.psum:
        raise NkiError("data1 and data2 cannot both be in PSUM: copy one to SBUF first")

    def compute() -> None:
        dst.write(op.function(data1.read_float32(), data2.read_float32()))

    return Step("vector", (dst,), (data1, data2), compute)
