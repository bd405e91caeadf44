"""Solving with a triangular matrix, which torch-mlir does not know, by its inverse.

The inverse grows from the diagonal by blocks that double: [[A, 0], [B, C]] has the inverse [[A', 0], [-C'BA', C']].
That is one batched product per doubling, where substitution would be one operation per row.

Shape suffixes: N rows of the matrix, K right sides, M pairs of blocks, W twice the size of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _solve_triangular(
    matrix_NN: Tensor, right_NK: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    if not left:
        transposed = _solve_triangular(matrix_NN.mT, right_NK.mT, upper=not upper, unitriangular=unitriangular)
        return transposed.mT
    if upper:
        flipped = _solve_triangular(
            matrix_NN.flip(-1, -2), right_NK.flip(-2), upper=False, unitriangular=unitriangular
        )
        return flipped.flip(-2)
    return _lower_inverse(matrix_NN, unitriangular) @ right_NK


def _lower_inverse(matrix_NN: Tensor, unitriangular: bool) -> Tensor:
    size = matrix_NN.size(-1)
    padded = 1 << (size - 1).bit_length()
    # What is added has ones on its diagonal: it is its own inverse, and touches nothing.
    added = torch.cat([torch.zeros(size, dtype=matrix_NN.dtype), torch.ones(padded - size, dtype=matrix_NN.dtype)])
    matrix_NN = torch.nn.functional.pad(matrix_NN, (0, padded - size, 0, padded - size)) + torch.diag_embed(added)
    inverse = 1 / _diagonal_blocks(matrix_NN, 1)
    if unitriangular:
        inverse = torch.ones_like(inverse)
    block = 1
    while block < padded:
        below = _diagonal_blocks(matrix_NN, 2 * block)[..., block:, :block]
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        upper_row = torch.cat([first, torch.zeros_like(first)], -1)
        inverse = torch.cat([upper_row, torch.cat([-(second @ below @ first), second], -1)], -2)
        block *= 2
    return inverse[..., 0, :size, :size]


def _diagonal_blocks(matrix_NN: Tensor, width: int) -> Tensor:
    """The blocks of `width` on the diagonal, (..., M, W, W)."""
    count = matrix_NN.size(-1) // width
    blocks = matrix_NN.unflatten(-1, (count, width)).unflatten(-3, (count, width)).transpose(-3, -2)
    return blocks.flatten(-4, -3)[..., :: count + 1, :, :]


DECOMPOSITIONS = {torch.ops.aten.linalg_solve_triangular.default: _solve_triangular}
