"""The functions that are compiled for generation: module level, (model, spec, flat tensors) in, flat tensors out.

That form lets a compiled result be stored and loaded by another process. Nothing in them depends on a true length:
lengths arrive as tensors (`slots`, `offset`, `keep`, the 2-D mask).

Shape legend: B batch, Q block length, N kept positions, V vocabulary, M columns of the mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache
from transformers.utils import ModelOutput

from ..buckets.holes import mark_whole
from .layers.block import Block
from .layers.kinds import LayerKind
from .positions import PositionsFromTensors


@dataclass(frozen=True)
class StepSpec:
    """What is static about a step.

    rows: rows of the store. is_first: prefill (makes the store) or continuation (writes it in place). layers: the
    kinds of the cache's layers, of which the last `cross` are those of cross-attention. held: which of their tensors
    the store has; empty in a first step.
    inputs: names of the tensor arguments of the model's forward. constants: its other arguments.
    takes_keep: whether the model selects positions itself (`logits_to_keep`). encoder_output: the class of the
    encoder's output. outputs: fields of the model's output that are returned beside the logits. whole: names of the
    padding masks among `inputs` that have no holes.
    """

    rows: int
    is_first: bool
    layers: tuple[LayerKind, ...]
    held: tuple[bool, ...]
    inputs: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    takes_keep: bool
    cross: int = 0
    encoder_output: type[ModelOutput] | None = None
    outputs: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


def step(
    model: torch.nn.Module,
    spec: StepSpec,
    slots_Q: torch.Tensor,
    offset: torch.Tensor,
    keep_N: torch.Tensor,
    *tensors: torch.Tensor,
) -> list[Any]:
    """Run a block of tokens.

    `tensors`: one per `spec.inputs` (ids (B, Q), a 2-D mask (B, M), the encoder's last hidden state under the name
    `encoder_outputs`, ...), then the tensors of the store. Returns [logits_BNV], a list of tensors for each of
    `spec.outputs` and, where it makes the store, what the store holds: a tensor or None for each that `spec.layers`
    may have.
    """
    inputs = dict(zip(spec.inputs, tensors[: len(spec.inputs)], strict=True))
    inputs |= {name: mark_whole(inputs[name]) for name in spec.whole}
    layers = _layers(spec, Block(slots_Q, offset, spec.rows, spec.is_first), tensors[len(spec.inputs) :])
    arguments = {**inputs, **dict(spec.constants)}
    if spec.takes_keep:
        arguments["logits_to_keep"] = keep_N
    if "encoder_outputs" in arguments:
        arguments["encoder_outputs"] = _encoder_output(spec, arguments)
    with PositionsFromTensors(slots_Q.shape[0]):
        output = type(model).forward(model, **arguments, cache=_cache(spec, layers), use_cache=True, return_dict=True)
    logits_BNV = output.logits if spec.takes_keep else output.logits.index_select(1, keep_N)
    further = [list(getattr(output, name, None) or ()) for name in spec.outputs]
    if not spec.is_first:
        return [logits_BNV, *further]
    # Dense, as what gathering rows gives: other strides would be another graph of each later step.
    store = (tensor for layer in layers for tensor in layer.tensors())
    return [logits_BNV, *further, *(tensor if tensor is None else tensor.contiguous() for tensor in store)]


def _encoder_output(spec: StepSpec, arguments: dict[str, Any]) -> ModelOutput:
    """The encoder's output; its tensors beside the hidden state are taken out of `arguments`."""
    further = [name for name in arguments if name.startswith("encoder_outputs.")]
    fields = {name.partition(".")[2]: arguments.pop(name) for name in further}
    return spec.encoder_output(last_hidden_state=arguments["encoder_outputs"], **fields)


def _cache(spec: StepSpec, layers: list[CacheLayerMixin]) -> Cache:
    if not spec.cross:
        return Cache(layers=layers)
    return EncoderDecoderCache(Cache(layers=layers[: -spec.cross]), Cache(layers=layers[-spec.cross :]))


def _layers(spec: StepSpec, block: Block, state: Sequence[torch.Tensor]) -> list[CacheLayerMixin]:
    if spec.is_first:
        return [kind.make(block, ()) for kind in spec.layers]
    stored = spread(spec.held, state)
    return [kind.make(block, [next(stored) for _ in kind.row_axes]) for kind in spec.layers]


def spread(held: Sequence[bool], tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor | None]:
    """`tensors` in the places that are held, None in the others."""
    present = iter(tensors)
    return (next(present) if is_held else None for is_held in held)


def gather_rows(index: torch.Tensor, *state: torch.Tensor) -> list[torch.Tensor]:
    """Rows `index` (B') of every tensor of the store: beam reordering, selection, repetition."""
    return [tensor.index_select(0, index) for tensor in state]


def grow_store(rows: int, axes: tuple[int, ...], *state: torch.Tensor) -> list[torch.Tensor]:
    """Each tensor of `state` with `rows` rows along its axis in `axes`.

    The old dump row becomes an ordinary one, hidden by the mask until it is written.
    """
    return [
        torch.nn.functional.pad(tensor, (0, 0) * (tensor.dim() - 1 - axis) + (0, rows - tensor.shape[axis]))
        for tensor, axis in zip(state, axes, strict=True)
    ]
