"""Generation of encoder-decoders: the encoder runs once in its own buckets, cross-attention keys are written by the
first decoder step, and every further step is one of a decoder.

Shape legend: B batch, E encoder positions, H hidden size; a trailing b means padded to the bucket.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput

from ..buckets.graphs import Graphs
from ..buckets.module import BucketedModule
from ..buckets.pad import dense, on_host, pad_axis, pad_rows
from ..buckets.sizes import AxisSizes
from ..config import NeuronConfig
from ..report import Ledger
from .bucketed import BucketedGeneration
from .cache import BucketCache
from .errors import NotBucketableError
from .layers.kinds import CROSS_ATTENTION


@dataclass
class Source:
    """What a cache keeps of the encoder: the tensors that the caller gave, and those on the device at their bucket."""

    hidden_BEH: torch.Tensor
    mask: torch.Tensor | None
    rows: int
    tensors: dict[str, torch.Tensor]
    sizes: dict[str, int]

    @cached_property
    def twins(self) -> torch.Tensor:
        """A number (B,) for each row, the same for equal ones."""
        rows = self.hidden_BEH.to("cpu").flatten(1)
        rows = rows if self.mask is None else torch.cat([rows, self.mask.to("cpu", rows.dtype).flatten(1)], 1)
        return torch.unique(rows, dim=0, return_inverse=True)[1]

    def serves(self, hidden_BEH: torch.Tensor, mask: torch.Tensor | None, rows: int) -> bool:
        return self.hidden_BEH is hidden_BEH and self.mask is mask and self.rows == rows


class EncoderDecoderGeneration(BucketedGeneration):
    """The compiled steps of one encoder-decoder.

    `encoder` is the bucketed forward of its encoder. `pads_source`: whether encoder positions are padded to a bucket
    for the decoder, hidden by the encoder's mask; where the encoder takes no tokens (audio, pictures) they keep their
    number.
    """

    prefix, first = "decoder_", "first"

    def __init__(
        self, model: torch.nn.Module, config: NeuronConfig, ledger: Ledger, graphs: Graphs | None = None
    ) -> None:
        super().__init__(model, config, ledger, graphs)
        self.cross = len(self.layers)
        self.layers += (CROSS_ATTENTION,) * self.cross
        encoder = model.get_encoder()
        if encoder is None:
            raise NotBucketableError(f"{type(model).__name__} has no encoder of its own")
        self.encoder = BucketedModule(
            encoder, config, ledger, self.graphs, sequence_axis="encoder_sequence", function="encode", home="cpu"
        )
        self.pads_source = self.encoder.takes_tokens

    def axes(self) -> dict[str, AxisSizes]:
        axes = super().axes()
        return {**axes, "encoder_sequence": self.encoder.axis_sizes["encoder_sequence"]} if self.pads_source else axes

    def encoder_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A call of the encoder in one form for all who make it: what asks for nothing is left out."""
        given = {name: value for name, value in arguments.items() if value is not None and value is not False}
        return {**given, "return_dict": True}

    def example(self, batch: int, length: int | None) -> dict[str, Any] | None:
        """Arguments of the encoder for `length` tokens, or of the one size of what it takes instead; None where that
        is not known.
        """
        if self.pads_source:
            ids = torch.zeros(batch, length, dtype=torch.long)
            return self.encoder_arguments({self.encoder.main_input: ids, "attention_mask": torch.ones_like(ids)})
        shape = self._features_shape()
        if shape is None:
            return None
        return self.encoder_arguments({self.encoder.main_input: torch.zeros(batch, *shape, dtype=self.model.dtype)})

    def _features_shape(self) -> tuple[int, int] | None:
        """(features, frames) of sound for an encoder that has as many positions as its convolutions leave of it."""
        encoder = self.encoder.module
        convolutions = [child for child in encoder.children() if isinstance(child, torch.nn.Conv1d)]
        positions = getattr(getattr(encoder, "config", None), "max_source_positions", None)
        if not convolutions or positions is None or self.encoder.main_input != "input_features":
            return None
        return convolutions[0].in_channels, positions * math.prod(child.stride[0] for child in convolutions)

    def _further_inputs(
        self, cache: BucketCache, arguments: dict[str, Any], batch: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        output = arguments.pop("encoder_outputs", None)
        if output is None:
            raise NotBucketableError(f"a decoder step without encoder_outputs (it has {sorted(arguments)})")
        self.encoder_output = type(output) if isinstance(output, ModelOutput) else BaseModelOutput
        hidden_BEH, mask = output[0], arguments.pop("attention_mask", None)
        for name in ("input_ids", "inputs_embeds", self.encoder.main_input):  # the encoder has read them
            arguments.pop(name, None)
        if hidden_BEH.shape[0] != batch:
            raise ValueError(
                f"encoder_outputs of {hidden_BEH.shape[0]} rows beside {batch} rows of decoder_input_ids: give each "
                "row its own"
            )
        rows = self.batches.fit(batch)
        if cache.source is None or not cache.source.serves(hidden_BEH, mask, rows):
            source = self._source(hidden_BEH, mask, rows)
            source.tensors |= self._further_outputs(output, rows, source.sizes["encoder_sequence"])
            cache.source = source
        return cache.source.tensors, cache.source.sizes

    def _further_outputs(self, output: Any, rows: int, size: int) -> dict[str, torch.Tensor]:
        """What else an encoder gives its decoder for each position: a mask at its own resolution."""
        if not isinstance(output, ModelOutput):
            return {}
        positions, device = output[0].shape[:2], self.model.device
        return {
            f"encoder_outputs.{name}": dense(pad_axis(pad_rows(on_host(value), rows), 1, size)).to(device)
            for name, value in output.items()
            if isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape == positions
        }

    def _source(self, given_BEH: torch.Tensor, given_mask: torch.Tensor | None, rows: int) -> Source:
        hidden_BEH = pad_rows(on_host(given_BEH), rows)
        length = hidden_BEH.shape[1]
        if self.pads_source:
            size = self.encoder.axis_sizes["encoder_sequence"].fit(length)
            mask = torch.ones(hidden_BEH.shape[:2], dtype=torch.long) if given_mask is None else on_host(given_mask)
            if mask.shape != (given_BEH.shape[0], length):
                raise NotBucketableError(
                    f"an encoder mask of shape {tuple(mask.shape)} for {length} positions has no bucket rule"
                )
            tensors = {
                "encoder_outputs": pad_axis(hidden_BEH, 1, size),
                "attention_mask": pad_axis(pad_rows(mask.long(), rows), 1, size),
            }
        else:
            size = length
            tensors = {"encoder_outputs": hidden_BEH}
            if given_mask is not None:
                tensors["attention_mask"] = pad_rows(on_host(given_mask), rows)
        device = self.model.device
        tensors = {name: dense(tensor).to(device) for name, tensor in tensors.items()}
        return Source(given_BEH, given_mask, rows, tensors, {"encoder_sequence": size})

    def _kept_by_gather(self, cache: BucketCache, index: torch.Tensor, bucket: dict[str, int]) -> int:
        # Beams of one input have the same encoder rows: those stay where they are.
        if bucket["from"] != bucket["batch"] or not torch.equal(cache.source.twins[index], cache.source.twins):
            return 0
        own = sum(len(kind.row_axes) for kind in self.layers[: -self.cross])
        return sum(cache.held[own:])

    def _source_length(self, cache: BucketCache) -> int:
        return cache.source.hidden_BEH.shape[1]

    def _output(
        self, logits: torch.Tensor, cache: BucketCache, arguments: dict[str, Any], further: dict[str, Any]
    ) -> Seq2SeqLMOutput:
        encoded = arguments["encoder_outputs"]
        for name in ("hidden_states", "attentions"):
            value = encoded.get(name) if isinstance(encoded, ModelOutput) else None
            if value is not None:
                further[f"encoder_{name}"] = value
        return Seq2SeqLMOutput(logits=logits, cache=cache, encoder_last_hidden_state=encoded[0], **further)


def bucketed_generation(
    model: torch.nn.Module, config: NeuronConfig, ledger: Ledger, graphs: Graphs | None = None
) -> BucketedGeneration:
    """Bucketed generation of any Transformers model. Raises NotBucketableError for one without a bucket rule."""
    kind = EncoderDecoderGeneration if model.config.is_encoder_decoder else BucketedGeneration
    return kind(model, config, ledger, graphs)


def on_host_throughout(output: ModelOutput) -> ModelOutput:
    """An encoder's output with all its tensors on the host."""
    return type(output)(**pytree.tree_map_only(torch.Tensor, on_host, dict(output)))
