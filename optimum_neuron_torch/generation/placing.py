"""How a block of tokens is cut into steps and placed in its bucket, on the host.

Shape legend: B batch, Q block length, K kinds of positions.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..buckets.pad import pad_rows
from .errors import NotBucketableError


# Continuation blocks (chat turns, assisted decoding) are short: these sizes come before the prompt buckets.
SHORT_BLOCKS = (1, 4, 16)
# Longer prompts of recurrent layers are read in blocks of this: scans make graphs that grow with the prompt.
SCANNED_BLOCK = 512
# Inputs of forward that have one entry per token and are padded like the ids.
PER_TOKEN = ("position_ids", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")


def recurrent_parts(length: int, sizes: Sequence[int], is_first: bool) -> list[int]:
    """The blocks as which recurrent layers read `length` tokens. Only one that starts a sequence may hold pads.

    `sizes`: see `exact_parts`; layers that read on in single tokens alone take any first block whole.
    """
    reads_blocks = max(sizes) > 1
    if not is_first:
        return exact_parts(length, (*sizes, SCANNED_BLOCK) if reads_blocks else sizes)
    if not reads_blocks or length <= SCANNED_BLOCK:
        return [length]
    rest = length % SCANNED_BLOCK
    return [rest] * bool(rest) + [SCANNED_BLOCK] * (length // SCANNED_BLOCK)


def exact_parts(length: int, sizes: Sequence[int] = SHORT_BLOCKS) -> list[int]:
    """Blocks of `sizes` (ascending, from 1) that make up `length` tokens without a pad."""
    parts = []
    for size in reversed(sizes):
        parts += [size] * (length // size)
        length %= size
    return parts


def part_of(name: str, value: Any, start: int, end: int, prefix: str) -> Any:
    """What belongs to tokens [start, end) of an argument; `prefix` is that of the decoder's arguments."""
    own = name.removeprefix(prefix)
    if not isinstance(value, torch.Tensor) or not name.startswith(prefix):
        return value
    if own in PER_TOKEN or own == "input_ids":
        return value[..., start:end]
    return value[:, start:end] if own == "inputs_embeds" else value


def placed(x_BQ: torch.Tensor, lead: int, size: int, fill: int | str = 0) -> torch.Tensor:
    """`x_BQ` (B, Q, ...) behind `lead` pads, in `size` columns. Pads are `fill`, or repeat the nearest entry."""
    length = x_BQ.shape[1]
    if length == size:
        return x_BQ
    if fill != "repeat":
        behind = (0, 0) * (x_BQ.dim() - 2)
        return torch.nn.functional.pad(x_BQ, (*behind, lead, size - lead - length), value=fill)
    nearest = torch.arange(-lead, size - lead).clamp(0, length - 1)
    return x_BQ[:, nearest]


def placed_per_token(
    name: str, x: torch.Tensor, batch: int, length: int, rows: int, lead: int, block: int
) -> torch.Tensor:
    """An input of one entry per token, (B, Q) or, as positions of several kinds, (K, B, Q). It may have one row for
    all.

    Raises NotBucketableError for another shape.
    """
    if x.dim() not in (2, 3) or x.shape[-1] != length or x.shape[-2] not in (1, batch):
        raise NotBucketableError(f"{name} of shape {tuple(x.shape)} beside {batch} rows of {length} tokens")
    if x.dim() == 2:
        return placed(pad_rows(x.expand(batch, length), rows), lead, block, fill="repeat")
    kinds = [placed(pad_rows(kind.expand(batch, length), rows), lead, block, fill="repeat") for kind in x]
    return torch.stack(kinds)
