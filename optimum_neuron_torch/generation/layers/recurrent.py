"""Convolution and recurrent states: of a fixed size, whatever was read.

Shape legend: B batch, D channels, Q block length, W columns of a convolution's state.
"""

import torch
from transformers.cache_utils import LinearAttentionLayer

from .block import Block


class RecurrentLayer(LinearAttentionLayer):
    """The states of a state-space, linear-attention or convolution layer.

    The block that starts a sequence is padded on the left, under its mask: pads behind its end would enter the state.
    Later blocks hold no pads, over which a state would decay.
    """

    def __init__(self, block: Block, *stored: torch.Tensor | None, states: int = 1) -> None:
        super().__init__(number_of_states=states)
        self.block = block
        for index in range(states if stored else 0):
            self._restore(index, *stored[2 * index : 2 * index + 2])

    def _restore(self, index: int, conv_BDW: torch.Tensor | None, recurrent: torch.Tensor | None) -> None:
        self.conv_states[index], self.recurrent_states[index] = conv_BDW, recurrent
        self.is_conv_states_initialized[index] = conv_BDW is not None
        self.is_recurrent_states_initialized[index] = recurrent is not None
        self.has_previous_state[index] = conv_BDW is not None or recurrent is not None
        if conv_BDW is not None:
            self.conv_kernel_size[index] = conv_BDW.shape[-1]

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, **kwargs) -> torch.Tensor:
        """Takes the block's inputs (B, D, Q) of the convolution; returns them behind what it has to see before them.

        Pads are made zeros, which is what a convolution sees before the start of a sequence.
        """
        if not self.has_previous_state[state_idx] and conv_states.shape[-1] == self.block.slots_Q.shape[0]:
            is_real_Q = self.block.slots_Q != self.block.dump_slot
            conv_states = conv_states * is_real_Q.to(conv_states.dtype)
        return super().update_conv_state(conv_states, state_idx, **kwargs)

    def states(self) -> list[torch.Tensor | None]:
        """The convolution's and the recurrent state of each pair of them."""
        indices = range(self.number_of_states)
        return [held[index] for index in indices for held in (self.conv_states, self.recurrent_states)]

    def tensors(self) -> list[torch.Tensor | None]:
        return self.states()
