"""What `nki.language` offers beside dtypes and operators."""

from ..memory import MemoryRegion
from ..objects import NKIObject
from ..tensor import DynamicSlice as ds
from ..tensor import NkiTensor
from .creation import ndarray
from .grid import num_programs, program_id, program_ndim


sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
hbm = private_hbm
