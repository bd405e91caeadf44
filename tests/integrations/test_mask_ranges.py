"""Masks of models as key ranges: what every family of Transformers asks for, and what is known where masks go.

The table of families is in `mask_families.json`; `mask_families.py` makes it.
"""

import pytest
import torch
from transformers import masking_utils

from optimum_neuron_torch.buckets.blocks import run_block, taken_apart
from optimum_neuron_torch.buckets.holes import mark_whole
from optimum_neuron_torch.integrations import attention  # noqa: F401 - masks know how to enter blocks with it
from optimum_neuron_torch.nki.masks import nki_mask, seen_in


class Told(torch.nn.Module):
    """A block that gives what is known of its mask."""

    def forward(self, hidden, attention_mask=None):
        seen = seen_in(attention_mask)
        known = [tensor for tensor in (seen.ranges_B1Q2, seen.padding_B11K) if tensor is not None]
        return hidden, attention_mask, known, seen.is_causal, seen.unknown


PADDING = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6], dtype=torch.bool)
MASKS = {
    "ranges": {"mask_function": masking_utils.bidirectional_mask_function, "attention_mask": mark_whole(PADDING)},
    "ranges and causal": {"attention_mask": mark_whole(PADDING)},
    "padding": {"attention_mask": PADDING},
    "causal": {},
    "unknown": {"mask_function": lambda b, h, q, k: k != q + 1},
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_enter_blocks_with_what_is_known_of_them(kind):
    mask = nki_mask(batch_size=2, q_length=6, kv_length=6, **MASKS[kind])
    arguments = {"attention_mask": mask}
    spec, tensors = taken_apart((torch.zeros(2, 6, 4),), arguments, None)
    found, gained = torch.compile(run_block, backend="eager", fullgraph=True)(Told(), spec, *tensors)
    expected = Told()(torch.zeros(2, 6, 4), **arguments)
    assert found[3:] == expected[3:]
    assert gained == []
    for ours, theirs in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
