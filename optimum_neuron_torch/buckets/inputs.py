"""Which dimension of which input is which axis, and what a pad is there.

An input is known by its path in the call's arguments (`features.input_ids`), and by the last key of it. Where names
and positions leave a doubt, there are several candidates: the first one that runs at other sizes is taken.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..config import Buckets
from .pad import pad_axis, repeat_last


Dims = dict[str, tuple[str | None, ...]]
MOST_CANDIDATES = 8
# The ignored index of Transformers' losses, and a position beyond every sequence, which they ignore as well.
IGNORED, BEYOND = -100, 2**20
# Inputs with one entry per token.
TOKENS = _IDS, _EMBEDS = "input_ids", "inputs_embeds"
_SWAPPED = {("batch",): "sequence", ("sequence",): "batch"}
# Positions that are targets, one per row.
_TARGETS = ("start_positions", "end_positions")


@dataclass(frozen=True)
class Leaf:
    """One tensor among a call's arguments."""

    path: str
    name: str
    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass(frozen=True)
class Placed:
    """A candidate: the axis (or None) of each dimension of each input, and the axes' sizes in this call."""

    dims: Dims
    sizes: dict[str, int]

    @classmethod
    def of(cls, dims: Dims, leaves: list[Leaf]) -> "Placed | None":
        """None where two dimensions of one axis differ in size."""
        sizes: dict[str, int] = {}
        for leaf in leaves:
            for axis, size in zip(dims[leaf.path], leaf.shape, strict=True):
                if axis is not None and sizes.setdefault(axis, size) != size:
                    return None
        return cls(dims, {axis: sizes[axis] for axis in sorted(sizes, key=lambda axis: axis != "batch")})


class InputAxes:
    """Finds the axes of one module's inputs."""

    def __init__(
        self, buckets: Buckets, *, main_input: str | None, tokens_axis: str = "sequence", has_decoder: bool = False
    ) -> None:
        self.declared, self.other_axes = buckets.dims, buckets.other_axes
        self.main_input, self.tokens_axis, self.has_decoder = main_input, tokens_axis, has_decoder

    def tokens(self, leaves: list[Leaf]) -> Leaf | None:
        """The input with one entry per token: ids, or embeddings in their place."""
        for name in (_IDS, _EMBEDS):
            for leaf in leaves:
                if leaf.name == name and len(leaf.shape) in ((2, 3) if name == _IDS else (3, 4)):
                    return leaf
        return None

    def candidates(self, leaves: list[Leaf], lengths_are_axes: bool) -> Iterator[Placed]:
        """Ways to read the inputs' dimensions, the likeliest first. `lengths_are_axes`: pads of tokens can be hidden
        from the model. Nothing where no input has a batch.
        """
        batch = self._batch(leaves)
        if batch is None:
            return
        lengths = self._lengths(leaves) if lengths_are_axes else {}
        dims = {leaf.path: self._place(leaf, batch, lengths) for leaf in leaves}
        doubtful = [leaf.path for leaf in leaves if any(dims[leaf.path]) and not self._is_certain(leaf)]
        readings = [dims]
        # One dimension alone may as well be the other axis where batch and length are equal.
        readings += [{**dims, path: (other,)} for path in doubtful if (other := _SWAPPED.get(dims[path])) is not None]
        readings += [{**dims, path: (None,) * len(dims[path])} for path in doubtful]
        if len(doubtful) > 1:
            readings.append({**dims, **{path: (None,) * len(dims[path]) for path in doubtful}})
        for reading in readings[:MOST_CANDIDATES]:
            placed = Placed.of(reading, leaves)
            if placed is not None and placed.sizes:
                yield placed

    def to_find(self, placed: Placed) -> list[str]:
        """The user's own axes that neither `dims` nor `placed` say the dimensions of."""
        declared = {axis for placed_dims in self.declared.values() for axis in placed_dims.values()}
        return [axis for axis in self.other_axes if axis not in declared and axis not in placed.sizes]

    def open_dimensions(self, placed: Placed, leaves: list[Leaf], axis: str) -> Iterator[Placed]:
        """`placed` with `axis` at each group of equally long dimensions that have no axis yet."""
        lengths: dict[int, list[tuple[str, int]]] = {}
        for leaf in leaves:
            for dim, size in enumerate(leaf.shape):
                if placed.dims[leaf.path][dim] is None and size > 1:
                    lengths.setdefault(size, []).append((leaf.path, dim))
        for size, places in lengths.items():
            dims = dict(placed.dims)
            for path, dim in places:
                dims[path] = (*dims[path][:dim], axis, *dims[path][dim + 1 :])
            yield Placed(dims, {**placed.sizes, axis: size})

    # ---- reading one call -------------------------------------------------------------------------------------------

    def _declared_dims(self, leaf: Leaf) -> Mapping[int, str]:
        return self.declared.get(leaf.path) or self.declared.get(leaf.name) or {}

    def _batch(self, leaves: list[Leaf]) -> int | None:
        for leaf in leaves:
            for dim, axis in self._declared_dims(leaf).items():
                if axis == "batch" and dim < len(leaf.shape):
                    return leaf.shape[dim]
        main = next((leaf for leaf in leaves if leaf.path == self.main_input), None)
        leaf = self.tokens(leaves) or main or next((leaf for leaf in leaves if leaf.shape), None)
        return leaf.shape[0] if leaf is not None and leaf.shape else None

    def _lengths(self, leaves: list[Leaf]) -> dict[str, int]:
        """Lengths of the texts in a call, by axis."""
        lengths = {}
        tokens = self.tokens(leaves)
        if tokens is not None:
            lengths[self.tokens_axis] = tokens.shape[-1 if tokens.name == _IDS else -2]
        for leaf in leaves:
            if leaf.name == "encoder_hidden_states" and len(leaf.shape) == 3:
                lengths.setdefault("encoder_sequence", leaf.shape[1])
            if leaf.name in ("decoder_input_ids", "decoder_inputs_embeds") or (
                self.has_decoder and leaf.name == "labels" and len(leaf.shape) == 2
            ):
                lengths.setdefault("sequence", leaf.shape[1])
        return lengths

    def _place(self, leaf: Leaf, batch: int, lengths: dict[str, int]) -> tuple[str | None, ...]:
        dims: list[str | None] = [None] * len(leaf.shape)
        for dim, axis in self._declared_dims(leaf).items():
            if dim < len(dims):
                dims[dim] = axis
        if any(dims):
            if dims[0] is None and "batch" not in dims and leaf.shape[0] == batch:
                dims[0] = "batch"
            return tuple(dims)
        if not dims:
            return ()
        axis = self._length_axis(leaf, lengths)
        length = lengths.get(axis)
        counts_tokens = len(dims) == 1 and leaf.shape[0] == length and _is_position(leaf.name)
        if leaf.shape[0] == batch and not counts_tokens:
            dims[0] = "batch"
        elif leaf.shape[0] == length and len(dims) == 1:
            dims[0] = axis
        for dim in range(1, len(dims)):
            if length is not None and leaf.shape[dim] == length:
                dims[dim] = axis
                if "mask" not in leaf.name:
                    break
        return tuple(dims)

    def _length_axis(self, leaf: Leaf, lengths: dict[str, int]) -> str:
        if leaf.name.startswith("encoder_") or leaf.path.startswith("encoder_outputs"):
            return "encoder_sequence"
        is_decoders = self.has_decoder and (leaf.name.startswith("decoder_") or "label" in leaf.name)
        return "sequence" if is_decoders else self.tokens_axis

    def _is_certain(self, leaf: Leaf) -> bool:
        return bool(self._declared_dims(leaf)) or leaf.path == self.main_input or leaf.name in (_IDS, _EMBEDS)


def _is_position(name: str) -> bool:
    return "position" in name and name not in _TARGETS


# ---- pads -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pads:
    """What is put behind the end of an input along an axis."""

    pad_token: int = 0

    def pad(self, leaf: Leaf, dims: tuple[str | None, ...], bucket: Mapping[str, int]) -> torch.Tensor:
        """The leaf's tensor at bucket size."""
        tensor = leaf.tensor
        for dim, axis in enumerate(dims):
            if axis is not None and tensor.shape[dim] != bucket[axis]:
                tensor = self._along(leaf.name, tensor, axis)(tensor, dim, bucket[axis])
        return tensor

    def _along(self, name: str, tensor: torch.Tensor, axis: str) -> Any:
        is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
        if is_integer and "label" in name:
            return partial(pad_axis, value=IGNORED)
        if axis == "batch":
            # Copies of a real row: a fully masked row gives NaN in some kernels.
            return partial(pad_axis, value=BEYOND) if name in _TARGETS else repeat_last
        if _is_position(name):
            return repeat_last
        if "mask" in name and tensor.is_floating_point() and tensor.dim() > 2:  # added to scores
            return partial(pad_axis, value=torch.finfo(tensor.dtype).min)
        is_ids = is_integer and name.endswith(_IDS)
        return partial(pad_axis, value=self.pad_token if is_ids else 0)
