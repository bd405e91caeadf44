"""BucketCache: what the generate() loop holds in place of a cache. Its lengths are Python ints; the tensors live in
buckets.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, DynamicCache

from .steps import spread


if TYPE_CHECKING:
    from .bucketed import BucketedGeneration
    from .repeated import RepeatedStep


class BucketCache(Cache):
    """A handle on a store of keys and values at bucket size.

    It is neither dynamic nor static nor compileable in Transformers' sense: the loop then builds no 4-D mask, compiles
    nothing around the model's forward, and passes the 2-D mask on.

    Attributes: limit: rows the call will need at most; length: tokens stored; rows: rows of the store; state: its
    tensors, None where the model leaves one out; prompt: arguments of a call whose keys are stored when they are first
    needed, or None; source: what an encoder-decoder keeps of its encoder; again: the last decode step, while it may be
    repeated; decoded: the `state` of the last decode step.
    """

    is_compileable = False

    def __init__(self, owner: "BucketedGeneration", limit: int) -> None:
        super().__init__(layers=[])
        self.owner, self.limit = owner, limit
        self.length, self.rows, self.rows_in_batch = 0, 0, 0
        self.state: list[torch.Tensor | None] | None = None
        self.prompt: dict[str, Any] | None = None
        self.is_torn = False
        self.source: Any = None
        self.again: RepeatedStep | None = None
        self.decoded: list[torch.Tensor | None] | None = None

    def fill(self) -> None:
        """Store the keys of `prompt`."""
        if self.prompt is None:
            return
        prompt, length = self.prompt, self.length
        self.prompt, self.length = None, 0
        try:
            self.owner.forward(self, prompt)
        except BaseException:  # not stored, but not forgotten either
            self.prompt, self.length = prompt, length
            raise

    @property
    def held(self) -> tuple[bool, ...]:
        """Which of the layers' tensors the store has; empty before there is a store."""
        return tuple(tensor is not None for tensor in self.state or ())

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors of the store."""
        return [tensor for tensor in self.state or () if tensor is not None]

    @property
    def source_sizes(self) -> dict[str, int]:
        """The sizes of the encoder's axes."""
        return self.source.sizes if self.source is not None else {}

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Exchange the tensors of the store."""
        self.state, self.again = list(spread(self.held, tensors)), None

    @property
    def self_attention_cache(self) -> Cache:
        """What a decoder with an encoder stores of its own tokens, at true size on the host."""
        return self._read(0, self.length)

    @property
    def cross_attention_cache(self) -> Cache:
        """What it stores of the encoder's positions, at true size on the host."""
        return self._read(len(self), self.source.hidden_BEH.shape[1])

    def _read(self, first: int, length: int) -> Cache:
        if not self.owner.cross:
            raise AttributeError(f"the cache of {type(self.owner.model).__name__} has no encoder's side")
        self.fill()
        pairs = zip(self.state[::2], self.state[1::2], strict=True)
        pairs = list(pairs)[first : first + len(self)]
        return DynamicCache([[x.to("cpu")[: self.rows_in_batch, :, :length] for x in pair] for pair in pairs])

    def __repr__(self) -> str:
        return f"BucketCache(length={self.length}, rows={self.rows}, batch={self.rows_in_batch})"

    def __len__(self) -> int:
        return len(self.owner.layers) - self.owner.cross

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.length + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self.is_initialized

    # The base class answers these from `layers`, which this handle does not have: all(()) would read as "only linear
    # layers".
    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self)

    @property
    def is_linear(self) -> list[bool]:
        # Of recurrent layers too: the loop then passes what the cache has not read, as with other models.
        return [False] * len(self)

    @property
    def is_dummy(self) -> list[bool]:
        return [not kind.row_axes for kind in self.owner.layers]

    @property
    def is_croppable(self) -> bool:
        return not self.owner.is_recurrent

    @property
    def is_initialized(self) -> bool:
        return self.state is not None or self.prompt is not None

    @property
    def batch_size(self) -> int:
        return self.rows_in_batch or -1

    def activate_past_recording(self) -> None:
        """Nothing to record: rows past `length` are kept until they are overwritten."""

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens: a negative number of them, as in Transformers."""
        if tokens_to_remove > 0 or -tokens_to_remove > self.length:
            raise ValueError(
                f"crop({tokens_to_remove}): expected minus the number of tokens to remove, {self.length} are stored"
            )
        if tokens_to_remove and not self.is_croppable:
            raise ValueError("crop(): a recurrent state cannot be taken back to an earlier token")
        self.fill()
        self.length += tokens_to_remove

    def __deepcopy__(self, memo: dict) -> "BucketCache":
        """A copy of the store, for the same model: how a prompt's cache is used again for several answers."""
        memo[id(self)] = twin = copy.copy(self)
        if self.state is not None:
            self.owner.gather(twin, torch.arange(self.rows_in_batch))
        return twin

    def reset(self) -> None:
        self.length, self.state, self.prompt, self.source, self.again = 0, None, None, None, None

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(
            f"this cache belongs to the buckets of a prepared {type(self.owner.model).__name__} and holds nothing for "
            "another path: bring a cache of your own (cache=DynamicCache()), or call the prepared model"
        )

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.fill()
        if self.state is not None:
            self.owner.gather(self, beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.fill()
        self.owner.gather(self, indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.fill()
        self.owner.gather(self, torch.arange(self.rows_in_batch).repeat_interleave(repeats))
