"""Keys and values of an encoder's output, for cross-attention.

Shape legend: B batch, K key/value heads, E encoder positions (at their bucket), D head size.
"""

import torch
from transformers.cache_utils import CacheLayerMixin

from .block import Block


class CrossAttentionLayer(CacheLayerMixin):
    """Keys and values (B, K, E, D) of all encoder positions, written once by the first step.

    Its length is a Python int: models ask whether there are keys already, and both answers are graphs of their own.
    """

    is_sliding = False

    def __init__(
        self, block: Block, keys_BKED: torch.Tensor | None = None, values_BKED: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.keys, self.values = keys_BKED, values_BKED
        self.is_initialized = keys_BKED is not None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values, self.is_initialized = key_states, value_states, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep what the first step computes. A later step that computes it again sees its own result."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() or query_length, 0

    def get_seq_length(self) -> int:
        return self.keys.shape[2] if self.is_initialized else 0

    def get_max_length(self) -> int:
        return -1

    def tensors(self) -> list[torch.Tensor | None]:
        return [self.keys, self.values]
