"""Below the generate() loop: every call is padded to a (batch, block, cache) bucket and runs one compiled step.

The loop above works on host tensors of exact shape; only tensors of bucket shape cross to the device, so no length
ever reaches it.

Shape legend: B batch, Q block length, N kept positions, V vocabulary, M columns of the mask; a trailing b means padded
to the bucket.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from ..buckets.blocks import CROSSINGS
from ..buckets.graphs import Graphs
from ..buckets.pad import dense, pad_axis, pad_rows, repeat_last
from ..buckets.shell import borrowed, shell_of
from ..buckets.sizes import AxisSizes, axis_sizes
from ..config import NeuronConfig
from ..report import Ledger
from .cache import BucketCache
from .layers.crossing import CacheCrossing
from .layers.kinds import LayerKind, UnknownLayerError, layer_kinds
from .outputs import FIELDS, Cut, fields_of, join_parts, windows_of
from .steps import StepSpec, gather_rows, grow_store, step


# Continuation blocks (chat turns, assisted decoding) are short: these sizes come before the prompt buckets.
SHORT_BLOCKS = (1, 4, 16)
# Inputs of forward that have one entry per token and are padded like the ids.
PER_TOKEN = ("position_ids", "token_type_ids")
CROSSINGS[Cache] = CacheCrossing()


class NotBucketableError(NotImplementedError):
    """A model, or a call, that has no bucket rule; the message says which part. The stock path serves it."""


def check_supported(model: torch.nn.Module) -> tuple[LayerKind, ...]:
    """The cache layers of a model's decoder; raises NotBucketableError with the reason where there is no rule for
    it.
    """
    name = type(model).__name__
    if "cache" not in inspect.signature(type(model).forward).parameters or not model._supports_default_dynamic_cache():
        raise NotBucketableError(f"{name} keeps a state of its own kind instead of a Cache")
    if model.is_remote_code():
        raise NotBucketableError(f"{name} is remote code, whose use of the cache is not known")
    try:
        return layer_kinds(model.config.get_text_config(decoder=True))
    except UnknownLayerError as error:
        raise NotBucketableError(f"{name}: {error}") from error


@dataclass
class StepInputs:
    """The host tensors of one call, padded, and what is needed to cut the result.

    tensors: arguments of the model's forward, by name. positions: slots (Q,), offset (0-d), keep (N,).
    outputs: fields of the model's output that were asked for beside the logits.
    """

    cut: Cut
    kept: int
    positions: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    tensors: dict[str, torch.Tensor]
    constants: tuple[tuple[str, Any], ...]
    bucket: dict[str, int]
    outputs: tuple[str, ...]


class BucketedGeneration:
    """The compiled steps of one decoder-only model, and the rules that choose their buckets.

    Raises NotBucketableError (see `check_supported`).
    """

    # What stands before the names of the decoder's arguments, and what the first step is called.
    prefix, first = "", "prefill"
    cross = 0  # how many of `layers` are those of cross-attention
    encoder_output: type | None = None
    shortest = 1  # block that a step runs
    one_by_one = False  # whether it runs no block but that of one token

    def __init__(
        self, model: torch.nn.Module, config: NeuronConfig, ledger: Ledger, graphs: Graphs | None = None
    ) -> None:
        self.layers = check_supported(model)
        self.model, self.config, self.ledger = model, config, ledger
        self.graphs = Graphs(ledger, config) if graphs is None else graphs  # an empty one is falsy
        self.shell = shell_of(model)
        text_config = model.config.get_text_config(decoder=True)
        limit = getattr(text_config, "max_position_embeddings", None)
        self.batches = axis_sizes(config.buckets, "batch")
        self.prompts = axis_sizes(config.buckets, "sequence", limit)
        self.caches = axis_sizes(config.buckets, "cache", limit)
        self.windows = windows_of(text_config, self.layers)
        self.takes_keep = "logits_to_keep" in inspect.signature(type(model).forward).parameters
        self.is_recurrent = any(kind.is_recurrent for kind in self.layers)
        self.has_rows = any(kind.has_rows for kind in self.layers)

    # ---- choosing buckets -------------------------------------------------------------------------------------------

    def block_bucket(self, length: int, is_first: bool) -> int:
        """The block size that serves `length` tokens."""
        if not is_first or self.cross:  # a decoder with an encoder starts from one token, mostly
            short = next((size for size in SHORT_BLOCKS if size >= max(length, self.shortest)), None)
            if short is not None:
                return short
        return self.prompts.fit(length)

    def kept_bucket(self, kept: int, block: int) -> int:
        """How many positions' logits a step returns: 1, a short block, or all of the block."""
        return next((size for size in SHORT_BLOCKS if kept <= size <= block), block)

    def make_room(self, cache: BucketCache, needed: int) -> None:
        """Give the store rows for `needed` tokens: chosen from the call's limit at first, grown later."""
        if not self.has_rows or (cache.state is not None and needed < cache.rows):
            return
        rows = self.caches.fit(max(needed, cache.limit) + 1)  # one more: the dump row
        if cache.state is not None:
            axes = [axis for kind in self.layers for axis in kind.row_axes]
            growing = {i: axis for i, axis in enumerate(axes) if axis is not None and cache.state[i] is not None}
            bucket = {"batch": cache.tensors[0].shape[0], "cache": cache.rows, "grown": rows}
            grown = self._call(
                "grow", bucket, grow_store, rows, tuple(growing.values()), *(cache.state[i] for i in growing)
            )
            for index, tensor in zip(growing, grown, strict=True):
                cache.state[index] = tensor
            self.ledger.used("grow", bucket, 1, 1)
        cache.rows = rows

    # ---- running ----------------------------------------------------------------------------------------------------

    def forward(self, cache: BucketCache, arguments: dict[str, Any]) -> CausalLMOutputWithPast:
        """One call of the model under the loop: `arguments` at true shapes in, logits (B, N, V) on the host at true
        shapes out.

        Raises NotBucketableError for an argument without a bucket rule.
        """
        with torch.inference_mode(False), torch.no_grad():
            return self._forward(cache, arguments)

    def _forward(self, cache: BucketCache, arguments: dict[str, Any]) -> CausalLMOutputWithPast:
        cache.fill()
        ids = arguments.get(f"{self.prefix}input_ids")
        if self.one_by_one and ids is not None and ids.shape[1] > 1:
            return self._in_parts(cache, arguments, [1] * ids.shape[1])
        if self.is_recurrent and cache.state is not None:
            length = arguments["input_ids"].shape[1]
            if length not in SHORT_BLOCKS:
                return self._in_parts(cache, arguments, exact_parts(length))
        return self._run(cache, arguments)

    def _run(self, cache: BucketCache, arguments: dict[str, Any]) -> CausalLMOutputWithPast:
        is_first = cache.state is None
        inputs = self._pad(cache, arguments)
        spec = StepSpec(
            cache.rows,
            is_first,
            self.layers,
            cache.held,
            tuple(inputs.tensors),
            inputs.constants,
            self.takes_keep,
            self.cross,
            self.encoder_output,
            inputs.outputs,
        )
        tensors = [dense(x).to(self.model.device) for x in (*inputs.positions, *inputs.tensors.values())]
        length = arguments[f"{self.prefix}input_ids"].shape[1]
        function = self.first if is_first else "decode" if length == 1 else "block"
        with borrowed(self.shell, self.model) as shell:
            output = self._call(function, inputs.bucket, step, shell, spec, *tensors, *cache.tensors)
        logits, further, made = output[0], output[1 : 1 + len(inputs.outputs)], output[1 + len(inputs.outputs) :]
        if is_first:
            cache.state = made
        batch = inputs.cut.batch
        self.ledger.used(function, inputs.bucket, batch * length, inputs.bucket["batch"] * inputs.bucket["block"])
        cache.length, cache.rows_in_batch = cache.length + length, batch
        fields = {name: inputs.cut.apply(name, tensors) for name, tensors in zip(inputs.outputs, further, strict=True)}
        return self._output(logits.to("cpu")[:batch, : inputs.kept], cache, arguments, fields)

    def _output(
        self, logits: torch.Tensor, cache: BucketCache, arguments: dict[str, Any], further: dict[str, Any]
    ) -> ModelOutput:
        return CausalLMOutputWithPast(logits=logits, cache=cache, **further)

    def _call(self, function: str, bucket: dict[str, int], compiled: Any, *args: Any) -> list[torch.Tensor]:
        return self.graphs.call(function, tuple(bucket.items()), compiled, *args)

    def gather(self, cache: BucketCache, index: torch.Tensor) -> None:
        """Make the store's rows `index` (B') of its rows, padded to a batch bucket."""
        with torch.inference_mode(False), torch.no_grad():
            rows = index.shape[0]
            bucket = {"from": cache.tensors[0].shape[0], "batch": self.batches.fit(rows), "cache": cache.rows}
            index = index.to("cpu", torch.int64, copy=True)  # beam search gives int32, other callers int64
            padded = dense(pad_rows(index, bucket["batch"])).to(self.model.device)
            cache.put(self._call("gather", bucket, gather_rows, padded, *cache.tensors))
            self.ledger.used("gather", bucket, rows, bucket["batch"])
            cache.rows_in_batch = rows

    def _in_parts(self, cache: BucketCache, arguments: dict[str, Any], lengths: list[int]) -> CausalLMOutputWithPast:
        """Run a block as several of `lengths`, which are buckets themselves."""
        kept, mask = arguments.get("logits_to_keep", 0), arguments.get(f"{self.prefix}attention_mask")
        per_token = [f"{self.prefix}{name}" for name in ("input_ids", *PER_TOKEN)]
        per_token = [name for name in per_token if arguments.get(name) is not None]
        past, outputs, start = cache.length, [], 0
        for length in lengths:
            end = start + length
            part = arguments | {name: arguments[name][:, start:end] for name in per_token}
            if mask is not None:
                part[f"{self.prefix}attention_mask"] = mask[:, : past + end]
            outputs.append(self._run(cache, {**part, "logits_to_keep": 0}))
            start = end
        positions = on_host(kept).long() if isinstance(kept, torch.Tensor) else slice(-kept if kept else None, None)
        fields = [
            field for field in fields_of(_asked(arguments), self.prefix, bool(self.cross)) if field in outputs[0]
        ]
        further = {field: join_parts(field, [output[field] for output in outputs]) for field in fields}
        logits = torch.cat([output.logits for output in outputs], 1)
        return self._output(logits[:, positions], cache, arguments, further)

    # ---- padding ----------------------------------------------------------------------------------------------------

    def _pad(self, cache: BucketCache, arguments: dict[str, Any]) -> StepInputs:
        arguments = {name: value for name, value in arguments.items() if value is not None}
        for name in ("use_cache", "return_dict", "cache"):
            arguments.pop(name, None)
        ids, mask = f"{self.prefix}input_ids", f"{self.prefix}attention_mask"
        if ids not in arguments:
            raise NotBucketableError(f"a call without {ids} (it has {sorted(arguments)}) has no bucket rule yet")
        ids_BQ = on_host(arguments.pop(ids)).long()  # int32 ids would be graphs of their own
        mask_BM = arguments.pop(mask, None)
        per_token = [name for name in (f"{self.prefix}{name}" for name in PER_TOKEN) if name in arguments]
        extras = {name: on_host(arguments.pop(name)).long() for name in per_token}
        kept = arguments.pop("logits_to_keep", 0)
        batch, length = ids_BQ.shape
        further, sizes = self._further_inputs(cache, arguments, batch)
        outputs = fields_of(_asked(arguments), self.prefix, bool(self.cross))
        constants = self._constants(arguments)
        past, is_first = cache.length, cache.state is None
        self.make_room(cache, past + length)
        rows, block = self.batches.fit(batch), self.block_bucket(length, is_first)
        keep_N = self._kept_positions(kept, length, block)
        kept = length if isinstance(kept, int) and kept == 0 else kept if isinstance(kept, int) else kept.shape[0]
        lead = block - length if self.is_recurrent else 0  # pads in front of the block; none behind it then
        slots_Q = torch.full((block,), cache.rows - 1)
        slots_Q[lead : lead + length] = torch.arange(past, past + length)
        tensors = {
            ids: _placed(pad_rows(ids_BQ, rows), lead, block),
            mask: self._pad_mask(cache, mask_BM, length, rows, block, lead),
        }
        for name, tensor in extras.items():  # the loop's positions may have one row for all
            tensors[name] = _placed(pad_rows(tensor.expand(batch, length), rows), lead, block, fill="repeat")
        bucket = {"batch": rows, "block": block, "cache": cache.rows, "keep": keep_N.shape[0], **sizes}
        positions = (slots_Q, torch.tensor(past), keep_N + lead)
        cut = Cut(batch, lead, length, past, is_first, self.windows, self._source_length(cache))
        return StepInputs(cut, min(kept, length), positions, tensors | further, constants, bucket, outputs)

    def _further_inputs(
        self, cache: BucketCache, arguments: dict[str, Any], batch: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        """Inputs of the step beside those of the decoder, at their buckets, taken out of `arguments`; and the sizes of
        their axes.
        """
        return {}, {}

    def _source_length(self, cache: BucketCache) -> int:
        """How many encoder positions there are."""
        return 0

    def _pad_mask(
        self, cache: BucketCache, mask_BM: torch.Tensor | None, length: int, rows: int, block: int, lead: int
    ) -> torch.Tensor:
        """The 2-D mask over what attention sees: the block in a prefill, later the whole store."""
        past, batch = cache.length, rows if mask_BM is None else mask_BM.shape[0]
        mask_BM = torch.ones(batch, past + length, dtype=torch.long) if mask_BM is None else on_host(mask_BM).long()
        if mask_BM.dim() != 2 or mask_BM.shape[1] != past + length:
            raise NotBucketableError(
                f"an attention mask of shape {tuple(mask_BM.shape)} for {past} + {length} tokens has no bucket rule"
            )
        mask_BM = pad_rows(mask_BM, rows)
        if cache.state is None:
            return _placed(mask_BM, lead, block)
        if not self.has_rows:
            return mask_BM[:, -length:]
        if self.is_recurrent and length > 1:
            # Recurrent layers take the last columns for those of the block; attention takes the first ones.
            return torch.cat([pad_axis(mask_BM, 1, cache.rows), mask_BM[:, -length:]], 1)
        return pad_axis(mask_BM, 1, cache.rows)

    def _kept_positions(self, kept: int | torch.Tensor, length: int, block: int) -> torch.Tensor:
        """Positions whose logits are wanted; an int counts from the end, where the pads are, so it becomes positions
        (N,).
        """
        if isinstance(kept, torch.Tensor):
            positions = on_host(kept).long()
            positions = torch.where(positions < 0, positions + length, positions)
        else:
            positions = torch.arange(length - min(kept or length, length), length)
        return repeat_last(positions, 0, self.kept_bucket(positions.shape[0], block))

    def _constants(self, arguments: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        if "labels" in arguments:
            raise NotBucketableError("labels have no bucket rule in generation")
        arguments = {name: value for name, value in arguments.items() if value is not False}
        rest = [name for name, value in arguments.items() if not isinstance(value, (bool, int, float, str))]
        if rest:
            raise NotBucketableError(f"arguments {sorted(rest)} have no bucket rule")
        return tuple(sorted(arguments.items()))

    def axes(self) -> dict[str, AxisSizes]:
        return {"batch": self.batches, "sequence": self.prompts, "cache": self.caches}


def _asked(arguments: dict[str, Any]) -> list[str]:
    """The further outputs that were asked for."""
    return [name for name in FIELDS if arguments.get(name)]


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A normal (not inference) tensor on the host."""
    return tensor.to("cpu", copy=True) if tensor.is_inference() or tensor.device.type != "cpu" else tensor


def exact_parts(length: int) -> list[int]:
    """The sizes of the short blocks that make up `length` tokens without a pad."""
    parts = []
    for size in reversed(SHORT_BLOCKS):
        parts += [size] * (length // size)
        length %= size
    return parts


def _placed(x_BQ: torch.Tensor, lead: int, size: int, fill: int | str = 0) -> torch.Tensor:
    """`x_BQ` behind `lead` pads, in `size` columns. Pads are `fill`, or repeat the nearest entry."""
    length = x_BQ.shape[1]
    if length == size:
        return x_BQ
    if fill != "repeat":
        return torch.nn.functional.pad(x_BQ, (lead, size - lead - length), value=fill)
    nearest = torch.arange(-lead, size - lead).clamp(0, length - 1)
    return x_BQ[:, nearest]
