"""From Transformers' mask functions to what the attention op takes.

Shape legend: B batch, Q queries, K keys.
"""

from typing import Any

import torch


def mask_of_ranges(ranges_B1Q2: torch.Tensor, keys: int) -> torch.Tensor:
    """(B, 1, Q, K) boolean: True for the keys [start, end) of each query."""
    if ranges_B1Q2.dim() != 4 or ranges_B1Q2.shape[1] != 1 or ranges_B1Q2.shape[3] != 2:
        raise ValueError(f"key ranges have shape {tuple(ranges_B1Q2.shape)}, expected (B, 1, Q, 2)")
    position_K = torch.arange(keys, device=ranges_B1Q2.device)
    return (position_K >= ranges_B1Q2[..., :1]) & (position_K < ranges_B1Q2[..., 1:])


def nki_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """The mask function registered for attention "nki": (B, 1, Q, K) boolean, True where a query sees a key.

    It is always made: leaving it out where the mask happens to be causal would make two graphs of one bucket.
    """
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
