"""The functions that are compiled for generation: module level, (model, spec, flat tensors) in, flat tensors out.

That form lets a compiled result be stored and loaded by another process. Nothing in them depends on a true length:
lengths arrive as tensors (`slots`, `offset`, `keep`, the 2-D mask).

Shape legend: B batch, Q block length, N kept positions, V vocabulary, M columns of the mask.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache

from .layers import Block, FullLengthLayer


@dataclass(frozen=True)
class StepSpec:
    """What is static about a step.

    rows: rows of the store. is_first: prefill (makes the store) or continuation (writes it in place). layers: how many
    cache layers.
    extras: names of the further (B, Q) inputs, as position_ids. constants: other arguments of the model's forward.
    takes_keep: whether the model selects positions itself (`logits_to_keep`).
    """

    rows: int
    is_first: bool
    layers: int
    extras: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    takes_keep: bool


def step(model: torch.nn.Module, spec: StepSpec, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Run a block of tokens.

    Tensors: ids_BQ, mask_BM, slots_Q, offset, keep_N, one per `spec.extras`, then (continuation) keys and values of
    every layer, which are written in place. Returns [logits_BNV] and, for a prefill, keys and values of every layer.
    """
    ids_BQ, mask_BM, slots_Q, offset, keep_N = tensors[:5]
    extras = tensors[5 : 5 + len(spec.extras)]
    state = tensors[5 + len(spec.extras) :]
    block = Block(slots_Q, offset, spec.rows, spec.is_first)
    layers = [FullLengthLayer(block, *state[2 * i : 2 * i + 2]) for i in range(spec.layers)]
    arguments = {**dict(zip(spec.extras, extras, strict=True)), **dict(spec.constants)}
    if spec.takes_keep:
        arguments["logits_to_keep"] = keep_N
    output = type(model).forward(
        model,
        input_ids=ids_BQ,
        attention_mask=mask_BM,
        cache=Cache(layers=layers),
        use_cache=True,
        return_dict=True,
        **arguments,
    )
    logits_BNV = output.logits if spec.takes_keep else output.logits.index_select(1, keep_N)
    if not spec.is_first:
        return [logits_BNV]
    return [logits_BNV, *(tensor for layer in layers for tensor in layer.tensors())]


def gather_rows(index: torch.Tensor, *state: torch.Tensor) -> list[torch.Tensor]:
    """Rows `index` (B') of every tensor of the store: beam reordering, selection, repetition."""
    return [tensor.index_select(0, index) for tensor in state]


def grow_store(rows: int, *state: torch.Tensor) -> list[torch.Tensor]:
    """The store with `rows` rows. The old dump row becomes an ordinary one, hidden by the mask until it is written."""
    return [torch.nn.functional.pad(tensor, (0, 0, 0, rows - tensor.shape[2])) for tensor in state]
