"""From Transformers' mask functions to what the attention op takes: key ranges where each piece of a mask is known.

A mask function is a closure that says whether one query sees one key. Those that Transformers makes itself are told
what they are when they are made (`telling`), since Dynamo gives no closures to look into; whatever nobody told is an
unknown mask, which stays the boolean tensor that it always was.

The mask function of attention "nki" gives that boolean tensor in all cases, and what is known of it as an attribute of
the tensor. Model code hands masks on as they are, to the attention function; where it slices, adds or inverts one, the
result is a tensor without the attribute, so that ranges can never be cut wrongly. In a graph nothing reads the boolean
tensor then, and compilers leave it out.

Shape legend: B batch, Q queries, K keys.
"""

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple

import torch

from ..buckets.holes import is_whole, mark_whole, rows_are_whole


NAME = "nki"
# The attentions of Transformers that get their masks from `nki_mask`.
TAKE_RANGES = (NAME, "flex_attention")
# The attribute of a mask that holds what is known of it.
SEEN = "_neuron_seen"
_PIECE = "_neuron_piece"
UNTOLD = "a mask of the caller's own"


class Piece(NamedTuple):
    """One factor of a mask: its kind, and what that takes."""

    kind: str
    parameters: tuple[Any, ...] = ()


class Seen(NamedTuple):
    """What queries see: keys in `ranges_B1Q2`, in `padding_B11K` and, with `is_causal`, not behind the query itself.

    None: no limit. With `unknown`, which says why, the boolean mask is all there is. `version` is that of the mask, so
    that one which was written to is known.
    """

    ranges_B1Q2: torch.Tensor | None = None
    padding_B11K: torch.Tensor | None = None
    is_causal: bool = False
    unknown: str | None = None
    version: int = 0


# ---- what a mask function is ----------------------------------------------------------------------------------------


def telling(kind: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    """`stock`, which makes mask functions, so that each says what it is; `stock` itself where it is not what its name
    was known for.
    """
    if not _agrees(kind, stock):
        return stock

    @wraps(stock)
    def make(*args: Any, **kwargs: Any) -> Any:
        function = stock(*args, **kwargs)
        if not kwargs:
            setattr(function, _PIECE, Piece(kind, args))
        return function

    return make


def _agrees(kind: str, stock: Callable[..., Any]) -> bool:
    """Whether mask functions of `stock` see what the ranges of its kind say, on a few positions."""
    size = 9
    position = torch.arange(size, device="cpu")
    row_B111 = torch.arange(2, device="cpu")[:, None, None, None]
    query, key = position[None, None, :, None], position[None, None, None, :]
    if kind == "and":
        pieces = [lambda b, h, q, k: k > q - 4, lambda b, h, q, k: k < b + 5]
        expected = (key > query - 4) & (key < row_B111 + 5)
    else:
        pieces = [3, torch.tensor([0, 2], device="cpu")][: 2 if kind == "chunk" else 1]
        start, end = _bounds(Piece(kind, tuple(pieces)), position, 0)
        expected = _between(start, end, key)
    try:
        found = stock(*pieces)(row_B111, row_B111[:1], query, key)
    except Exception:  # of another form than was known
        return False
    return torch.equal(found.expand(2, 1, size, size), expected.expand(2, 1, size, size))


def _between(start: torch.Tensor | None, end: torch.Tensor | None, key: torch.Tensor) -> torch.Tensor:
    seen = torch.ones_like(key, dtype=torch.bool)
    seen = seen if start is None else seen & (key >= start[:, None, :, None])
    return seen if end is None else seen & (key < end[:, None, :, None])


def pieces_of(mask_function: Callable[..., Any], library: ModuleType) -> tuple[list[Piece], str | None]:
    """The factors of a mask function of `library`, and None; or why they are not known."""
    pieces: list[Piece] = []
    waiting = [mask_function]
    while waiting:
        function = waiting.pop()
        piece = getattr(function, _PIECE, None)
        if function is getattr(library, "causal_mask_function", None):
            pieces.append(Piece("causal"))
        elif function is getattr(library, "bidirectional_mask_function", None):
            continue
        elif piece is None or not _is_complete(piece):
            return [], getattr(function, "__qualname__", UNTOLD).partition(".")[0]
        elif piece.kind == "and":
            waiting.extend(piece.parameters)
        else:
            pieces.append(piece)
    return pieces, None


def _is_complete(piece: Piece) -> bool:
    if piece.kind == "and":
        return True
    size, *further = piece.parameters
    pads_are_known = [isinstance(pads, torch.Tensor) and pads.dim() == 1 for pads in further]
    return isinstance(size, int) and pads_are_known == [True] * (piece.kind == "chunk")


# ---- ranges ---------------------------------------------------------------------------------------------------------


def mask_of_ranges(ranges_B1Q2: torch.Tensor, keys: int) -> torch.Tensor:
    """(B, 1, Q, K) boolean: True for the keys [start, end) of each query."""
    if ranges_B1Q2.dim() != 4 or ranges_B1Q2.shape[1] != 1 or ranges_B1Q2.shape[3] != 2:
        raise ValueError(f"key ranges have shape {tuple(ranges_B1Q2.shape)}, expected (B, 1, Q, 2)")
    position_K = torch.arange(keys, device=ranges_B1Q2.device)
    return (position_K >= ranges_B1Q2[..., :1]) & (position_K < ranges_B1Q2[..., 1:])


def _bounds(piece: Piece, query_Q: torch.Tensor, first_key: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """First key and key behind the last that queries at positions `query_Q` see, (1 or B, Q); None: no limit.

    Keys count from position `first_key`.
    """
    query_1Q = query_Q[None] - first_key
    if piece.kind == "causal":
        return None, query_1Q + 1
    if piece.kind == "window":
        return query_1Q - piece.parameters[0] + 1, None
    if piece.kind == "window on both sides":
        return query_1Q - piece.parameters[0], query_1Q + piece.parameters[0] + 1
    size, pads_B = piece.parameters  # "chunk": those of a row start behind its pads
    pads_B1 = pads_B[:, None] - first_key
    start_BQ = (query_1Q - pads_B1) // size * size + pads_B1
    return start_BQ, start_BQ + size


def seen(
    pieces: list[Piece],
    queries: int,
    keys: int,
    query_offset: int | torch.Tensor,
    key_offset: int,
    padding_BM: torch.Tensor | None,
    device: torch.device | str,
) -> Seen:
    """What the product of `pieces` and `padding_BM` (True: seen; M columns from position 0) lets queries see.

    Queries count from position `query_offset`, keys from `key_offset`. Padding is part of the ranges where its rows
    are known to have no holes.
    """
    if keys == 0:
        return Seen(unknown="a mask without keys")
    if not isinstance(key_offset, int) or (isinstance(query_offset, torch.Tensor) and query_offset.numel() != 1):
        return Seen(unknown="offsets that differ between rows")
    is_static = isinstance(query_offset, int)
    is_square = is_static and queries == keys and query_offset == key_offset
    is_causal = is_square and Piece("causal") in pieces
    span = max(query_offset + queries, key_offset + keys) - min(query_offset, key_offset) if is_static else None
    limiting = [
        piece
        for piece in pieces
        if not (is_causal and piece.kind == "causal") and not (span is not None and _is_idle(piece, span))
    ]
    query_Q = torch.arange(queries, device=device) + query_offset
    bounds = [_bounds(piece, query_Q, key_offset) for piece in limiting]
    padding_BK = None if padding_BM is None else _columns(padding_BM, key_offset, keys)
    if padding_BK is not None and is_whole(padding_BM):
        bounds.append(_bounds_of_rows(padding_BK))
        padding_BK = None
    ranges = _ranges(bounds, queries, keys, device) if bounds else None
    return Seen(ranges, None if padding_BK is None else padding_BK[:, None, None, :], is_causal)


def _is_idle(piece: Piece, span: int) -> bool:
    """Whether a window hides nothing of `span` positions."""
    return piece.kind.startswith("window") and piece.parameters[0] >= span


def _columns(mask_BM: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Columns [first, first + count); those that are missing are not seen."""
    missing = first + count - mask_BM.shape[1]
    mask_BM = torch.nn.functional.pad(mask_BM, (0, missing)) if missing > 0 else mask_BM
    return mask_BM[:, first : first + count].to(torch.bool)


def _bounds_of_rows(padding_BK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First key and key behind the last of rows without holes, (B, 1)."""
    keys = padding_BK.shape[1]
    position_K = torch.arange(keys, device=padding_BK.device)
    start_B1 = torch.where(padding_BK, position_K, keys).amin(-1, keepdim=True)
    return start_B1, torch.where(padding_BK, position_K + 1, 0).amax(-1, keepdim=True)


def _ranges(
    bounds: list[tuple[torch.Tensor | None, torch.Tensor | None]],
    queries: int,
    keys: int,
    device: torch.device | str,
) -> torch.Tensor:
    """(1 or B, 1, Q, 2) int32: where all `bounds` hold, within the keys; empty ranges end where they start."""
    start_BQ = torch.zeros(1, queries, dtype=torch.int64, device=device)
    end_BQ = torch.full((1, queries), keys, dtype=torch.int64, device=device)
    for start, end in bounds:
        start_BQ = start_BQ if start is None else torch.maximum(start_BQ, start)
        end_BQ = end_BQ if end is None else torch.minimum(end_BQ, end)
    start_BQ, end_BQ = torch.broadcast_tensors(start_BQ.clamp(max=keys), end_BQ.clamp(min=0))
    return torch.stack([start_BQ, torch.maximum(start_BQ, end_BQ)], -1).to(torch.int32)[:, None]


# ---- padding -------------------------------------------------------------------------------------------------------


def keeping_marks(stock: Callable[..., tuple]) -> Callable[..., tuple]:
    """Transformers' function that brings a call's 2-D mask to its device and dtype: what is known of it stays known,
    and where the values are at hand they are looked at.
    """

    @wraps(stock)
    def preprocess(config: Any, inputs_embeds: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> tuple:
        is_early, moved, *rest = stock(config, inputs_embeds, attention_mask, *args, **kwargs)
        if not is_early and isinstance(moved, torch.Tensor) and moved.dim() == 2 and _takes_ranges(config):
            if is_whole(attention_mask) or _shows_whole_rows(attention_mask):
                moved = mark_whole(moved)
        return is_early, moved, *rest

    return preprocess


def _takes_ranges(config: Any) -> bool:
    return getattr(config, "_attn_implementation", None) in TAKE_RANGES


def _shows_whole_rows(mask_BM: torch.Tensor) -> bool:
    """Whether values can be read without waiting for a device, and have no holes."""
    if torch.compiler.is_compiling() or mask_BM.device.type != "cpu" or type(mask_BM) is not torch.Tensor:
        return False
    return rows_are_whole(mask_BM)


# ---- the mask function ----------------------------------------------------------------------------------------------


def nki_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor:
    """The mask function registered for attention "nki": (B, 1, Q, K) boolean, True where a query sees a key, with what
    is known of it (`seen_in`).

    It is always made: leaving it out where the mask happens to be causal would make two graphs of one bucket.
    """
    from transformers import masking_utils

    mask_function = masking_utils.causal_mask_function if mask_function is None else mask_function
    mask = masking_utils.sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
        device=device, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )  # fmt: skip
    pieces, unknown = pieces_of(mask_function, masking_utils)
    if unknown is None and attention_mask is not None and attention_mask.dim() != 2:
        unknown = f"padding with {attention_mask.dim()} axes"
    if unknown is None:
        known = seen(pieces, q_length, kv_length, q_offset, kv_offset, attention_mask, device)
    else:
        known = Seen(unknown=unknown)
    return with_known(mask, known)


def with_known(mask: torch.Tensor, known: Seen) -> torch.Tensor:
    """The mask, of which attention functions know `known` from now on, until it is written to."""
    setattr(mask, SEEN, known._replace(version=_version(mask)))
    return mask


def seen_in_values(mask_BHQK: torch.Tensor) -> Seen:
    """What a mask's values say, on a mask that can be read: ranges where each row is one stretch for all heads."""
    queries, keys = mask_BHQK.shape[-2:]
    if mask_BHQK.shape[1] > 1:
        return Seen(unknown="a mask that differs between heads")
    mask_NK = mask_BHQK.reshape(-1, keys).to("cpu")
    if not rows_are_whole(mask_NK):
        return Seen(unknown="a mask with holes")
    if queries == keys and bool((mask_BHQK.to("cpu") == torch.ones(queries, keys, dtype=torch.bool).tril()).all()):
        return Seen(is_causal=True)
    start_N1, end_N1 = _bounds_of_rows(mask_NK)
    ranges = torch.stack([torch.minimum(start_N1, end_N1), end_N1], -1).reshape(-1, 1, queries, 2)
    return Seen(ranges.to(mask_BHQK.device, torch.int32))


def seen_in(mask: torch.Tensor) -> Seen:
    """What is known of a mask that came to an attention function."""
    known = getattr(mask, SEEN, None)
    if known is None:
        return Seen(unknown=UNTOLD)
    if _version(mask) != known.version and not torch.compiler.is_compiling():
        return Seen(unknown="a mask that was written to")
    return known


def _version(mask: torch.Tensor) -> int:
    """How often a tensor was written to, where that is counted."""
    return 0 if torch.compiler.is_compiling() or mask.is_inference() else mask._version
