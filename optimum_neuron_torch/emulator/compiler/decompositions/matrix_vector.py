"""`addmv`, which torch-mlir does not know: PyTorch's own decomposition, that its core table leaves out."""

from __future__ import annotations

import torch
from torch._decomp import get_decompositions


DECOMPOSITIONS = get_decompositions([torch.ops.aten.addmv])
