"""The instructions, by engine. What is listed here is what `nki.isa` offers."""

from .dma import dma_copy
from .elementwise import tensor_tensor
from .moving import memset, tensor_copy
from .tensor_engine import nc_matmul


__all__ = ["dma_copy", "memset", "nc_matmul", "tensor_copy", "tensor_tensor"]
