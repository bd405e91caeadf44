"""What `nki.language` offers."""

from ..dtypes import (
    DType,
    bfloat16,
    bool_,
    float4_e2m1fn_x4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fn_x4,
    float8_e5m2,
    float8_e5m2_x4,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from ..memory import MemoryRegion
from ..objects import NKIObject
from ..operators import OPERATORS
from ..tensor import DynamicSlice as ds
from ..tensor import NkiTensor
from .creation import (
    empty_like,
    full,
    ndarray,
    ones,
    rand,
    random_seed,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from .grid import num_programs, program_id, program_ndim
from .limits import is_hbm, is_on_chip, is_psum, is_sbuf, tile_size
from .loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    no_reorder,
    sequential_range,
    static_range,
    while_loop,
)
from .math import dropout, where
from .moving import (
    broadcast_to,
    expand_dims,
    gather_flattened,
    load,
    load_transpose2d,
    matmul,
    store,
    transpose,
)
from .printing import device_print
from .reductions import all, max, mean, min, prod, rms_norm, softmax, sum, var


sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
private_hbm, shared_hbm = MemoryRegion.private_hbm, MemoryRegion.shared_hbm
hbm = private_hbm
# Kernels that count with `nl.range` mean Python's.
range = range
# The operators, under their names: `nl.add` and the like.
globals().update(OPERATORS)

# Each module of this package is named so that none hides a function.
_MODULES = ("creation", "grid", "limits", "loops", "math", "moving", "printing", "promotion", "reductions", "removed")
__all__ = [name for name in globals() if not name.startswith("_") and name not in (*_MODULES, "OPERATORS")]
