"""Below the generate() loop: every call is padded to a (batch, block, cache) bucket and runs one compiled step.

The loop above works on host tensors of exact shape; only tensors of bucket shape cross to the device, so no length
ever reaches it.

Shape legend: B batch, Q block length, N kept positions, V vocabulary, M columns of the mask; a trailing b means padded
to the bucket.
"""

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from ..buckets.blocks import CROSSINGS
from ..buckets.graphs import UNTRACEABLE, Graphs
from ..buckets.holes import takes_ranges, whole_masks
from ..buckets.pad import dense, on_host, pad_axis, pad_rows, repeat_last
from ..buckets.shell import borrowed, shell_of
from ..buckets.sizes import AxisSizes, axis_sizes
from ..buckets.undisturbed import current_stretch
from ..config import NeuronConfig
from ..report import Ledger
from .cache import BucketCache
from .errors import NotBucketableError
from .layers.crossing import CacheCrossing
from .layers.kinds import LayerKind, UnknownLayerError, layer_kinds
from .outputs import FIELDS, Cut, asked_of, fields_of, join_parts, windows_of
from .placing import PER_TOKEN, SHORT_BLOCKS, part_of, placed, placed_per_token, recurrent_parts
from .repeated import RepeatedStep
from .steps import StepSpec, gather_rows, grow_store, step


CROSSINGS[Cache] = CacheCrossing()


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
        self.takes_ranges = takes_ranges(model)
        self.takes_keep = "logits_to_keep" in inspect.signature(type(model).forward).parameters
        self.is_recurrent = any(kind.is_recurrent for kind in self.layers)
        self.has_rows = any(kind.has_rows for kind in self.layers)
        self.takes_positions = f"{self.prefix}position_ids" in inspect.signature(type(model).forward).parameters
        self.parts = (1,)  # sizes in which recurrent layers read on
        self.untraceable: str | None = None  # why steps of this model cannot be compiled, once that was met

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
        again = cache.again
        if again is not None and again.serves(cache, arguments):
            return self._run_again(again, cache, arguments)
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self._forward(cache, arguments)
        except NotBucketableError as error:
            error.has_begun = cache.state is not None
            raise

    def _forward(self, cache: BucketCache, arguments: dict[str, Any]) -> CausalLMOutputWithPast:
        if cache.is_torn:
            raise ValueError(
                "this cache was left by a call that failed in the middle, with recurrent states that may have read "
                "its tokens already: start again with a new cache"
            )
        cache.fill()
        length = self.main_input(arguments).shape[1]
        if self.one_by_one and length > 1:
            return self._in_parts(cache, arguments, [1] * length)
        if self.is_recurrent:
            parts = recurrent_parts(length, self.parts, cache.state is None)
            if len(parts) > 1:
                return self._in_parts(cache, arguments, parts)
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
            # Later steps have few queries, for which a mask of the keys alone costs as little as ranges.
            whole_masks(inputs.tensors.items(), self.ledger.attention) if is_first and self.takes_ranges else (),
        )
        tensors = [dense(x).to(self.model.device) for x in (*inputs.positions, *inputs.tensors.values())]
        length = inputs.cut.length
        function = self.first if is_first else "decode" if length == 1 else "block"
        cache.is_torn = self.is_recurrent and not is_first
        with borrowed(self.shell, self.model) as shell:
            output = self._call(function, inputs.bucket, step, shell, spec, *tensors, *cache.tensors)
        logits, further, made = output[0], output[1 : 1 + len(inputs.outputs)], output[1 + len(inputs.outputs) :]
        batch = inputs.cut.batch
        logits = logits.to("cpu")[:batch, : inputs.kept]
        fields = {name: inputs.cut.apply(name, tensors) for name, tensors in zip(inputs.outputs, further, strict=True)}
        # Only now is the block in the cache: where anything before failed, the next call starts from what was.
        if is_first:
            cache.state = made
        elif function == "decode":
            self._expect_more(cache, arguments, inputs, (function, inputs.bucket, shell, spec, tensors))
        self.ledger.used(function, inputs.bucket, batch * length, inputs.bucket["batch"] * inputs.bucket["block"])
        cache.length, cache.rows_in_batch, cache.is_torn = cache.length + length, batch, False
        return self._output(logits, cache, arguments, fields)

    def _expect_more(self, cache: BucketCache, arguments: dict[str, Any], inputs: StepInputs, ran: tuple) -> None:
        """Keep a decode step that ran twice on one store, for the tokens that follow in the same generate()."""
        is_second, cache.decoded = cache.decoded is cache.state, cache.state
        cache.again = None
        ids, mask = f"{self.prefix}input_ids", f"{self.prefix}attention_mask"
        function, bucket, shell, spec, tensors = ran
        is_plain = bucket["block"] == 1 and mask in inputs.tensors and inputs.tensors[mask].shape[1] == cache.rows
        if inputs.outputs or not is_second or not is_plain or current_stretch() is None or self.is_recurrent:
            return
        compiled = self.graphs.known(function, tuple(bucket.items()), shell, spec, *tensors, *cache.tensors)
        if compiled is not None:
            cache.again = RepeatedStep(
                partial(self.graphs.again, compiled, shell, spec),
                cache,
                arguments,
                device=tensors,
                names=tuple(inputs.tensors),
                ids=ids,
                mask=mask,
                per_token=(ids, *(f"{self.prefix}{name}" for name in PER_TOKEN)),
                use=(function, bucket, inputs.cut.batch, inputs.kept),
            )

    def _run_again(self, again: RepeatedStep, cache: BucketCache, arguments: dict[str, Any]) -> ModelOutput:
        function, bucket, batch, kept = again.use
        if torch.is_inference_mode_enabled() or torch.is_grad_enabled():
            with torch.inference_mode(False), torch.no_grad():
                logits = again(cache, arguments).to("cpu")
        else:
            logits = again(cache, arguments).to("cpu")
        cache.length += 1
        self.ledger.used(function, bucket, batch, bucket["batch"])
        return self._output(logits[:batch, :kept], cache, arguments, {})

    def _output(
        self, logits: torch.Tensor, cache: BucketCache, arguments: dict[str, Any], further: dict[str, Any]
    ) -> ModelOutput:
        return CausalLMOutputWithPast(logits=logits, cache=cache, **further)

    def _call(self, function: str, bucket: dict[str, int], compiled: Any, *args: Any) -> list[torch.Tensor]:
        try:
            return self.graphs.call(function, tuple(bucket.items()), compiled, *args)
        except UNTRACEABLE as error:
            reason = (str(error).splitlines() or [""])[0]
            self.untraceable = f"its {function} step does not compile as one graph ({reason})"
            raise NotBucketableError(self.untraceable) from error

    def main_input(self, arguments: dict[str, Any]) -> torch.Tensor:
        """The decoder's ids (B, Q), or their embeddings (B, Q, H).

        Raises NotBucketableError for a call that has neither.
        """
        for name in ("input_ids", "inputs_embeds"):
            if arguments.get(f"{self.prefix}{name}") is not None:
                return arguments[f"{self.prefix}{name}"]
        raise NotBucketableError(
            f"a call without {self.prefix}input_ids (it has {sorted(arguments)}) has no bucket rule"
        )

    def gather(self, cache: BucketCache, index: torch.Tensor) -> None:
        """Make the store's rows `index` (B') of its rows, padded to a batch bucket."""
        with torch.inference_mode(False), torch.no_grad():
            rows = index.shape[0]
            bucket = {"from": cache.tensors[0].shape[0], "batch": self.batches.fit(rows), "cache": cache.rows}
            index = index.to("cpu", torch.int64, copy=True)  # beam search gives int32, other callers int64
            padded = dense(pad_rows(index, bucket["batch"])).to(self.model.device)
            kept = self._kept_by_gather(cache, index, bucket)
            moving = cache.tensors[: len(cache.tensors) - kept]
            if kept == 0:
                bucket |= cache.source_sizes
            gathered = self._call("gather", bucket, gather_rows, padded, *moving)
            cache.put([*gathered, *cache.tensors[len(moving) :]])
            self.ledger.used("gather", bucket, rows, bucket["batch"])
            cache.rows_in_batch = rows

    def _kept_by_gather(self, cache: BucketCache, index: torch.Tensor, bucket: dict[str, int]) -> int:
        """How many of the store's last tensors are the same after rows `index` were taken."""
        return 0

    def _in_parts(self, cache: BucketCache, arguments: dict[str, Any], lengths: list[int]) -> CausalLMOutputWithPast:
        """Run a block as several of `lengths`, which are buckets themselves."""
        kept, mask = arguments.get("logits_to_keep", 0), arguments.get(f"{self.prefix}attention_mask")
        past, state, outputs, start = cache.length, cache.state, [], 0
        try:
            for length in lengths:
                end = start + length
                part = {name: part_of(name, value, start, end, self.prefix) for name, value in arguments.items()}
                if mask is not None:
                    part[f"{self.prefix}attention_mask"] = mask[:, : past + end]
                outputs.append(self._run(cache, {**part, "logits_to_keep": 0}))
                start = end
        except BaseException:  # the parts that ran are taken back, where that can be
            cache.length = past
            if state is None:
                cache.state, cache.is_torn = None, False
            else:
                cache.is_torn |= self.is_recurrent and start > 0
            raise
        positions = on_host(kept).long() if isinstance(kept, torch.Tensor) else slice(-kept if kept else None, None)
        fields = [
            field
            for field in fields_of(asked_of(arguments, self.model.config), self.prefix, bool(self.cross))
            if field in outputs[0]
        ]
        further = {field: join_parts(field, [output[field] for output in outputs]) for field in fields}
        logits = torch.cat([output.logits for output in outputs], 1)
        return self._output(logits[:, positions], cache, arguments, further)

    # ---- padding ----------------------------------------------------------------------------------------------------

    def _pad(self, cache: BucketCache, arguments: dict[str, Any]) -> StepInputs:
        arguments = {name: value for name, value in arguments.items() if not _is_nothing(value)}
        for name in ("use_cache", "return_dict", "cache"):
            arguments.pop(name, None)
        name, main = self._take_main(arguments)
        mask = f"{self.prefix}attention_mask"
        mask_BM = arguments.pop(mask, None)
        batch, length = main.shape[:2]
        extras = self._take_per_token(cache, arguments, length)
        kept = arguments.pop("logits_to_keep", 0)
        further, sizes = self._further_inputs(cache, arguments, batch)
        outputs = fields_of(asked_of(arguments, self.model.config), self.prefix, bool(self.cross))
        constants = self._constants(arguments)
        past, is_first = cache.length, cache.state is None
        self.make_room(cache, past + length)
        rows = self.batches.fit(batch)
        block = length if self.is_recurrent and not is_first else self.block_bucket(length, is_first)
        keep_N = self._kept_positions(kept, length, block)
        kept = length if isinstance(kept, int) and kept == 0 else kept if isinstance(kept, int) else kept.shape[0]
        lead = block - length if self.is_recurrent else 0  # pads in front of the block; none behind it then
        slots_Q = torch.full((block,), cache.rows - 1)
        slots_Q[lead : lead + length] = torch.arange(past, past + length)
        tensors = {
            name: placed(pad_rows(main, rows), lead, block),
            mask: self._pad_mask(cache, mask_BM, length, rows, block, lead),
        }
        for own, tensor in extras.items():
            tensors[own] = placed_per_token(own, tensor, batch, length, rows, lead, block)
        bucket = {"batch": rows, "block": block, "cache": cache.rows, "keep": keep_N.shape[0], **sizes}
        positions = (slots_Q, torch.tensor(past), keep_N + lead)
        cut = Cut(batch, lead, length, past, is_first, self.windows, self._source_length(cache))
        return StepInputs(cut, min(kept, length), positions, tensors | further, constants, bucket, outputs)

    def _take_main(self, arguments: dict[str, Any]) -> tuple[str, torch.Tensor]:
        """The name and the host tensor of the decoder's ids or embeddings, taken out of `arguments`.

        Raises ValueError for both, for ids that are no integers, and for no token.
        """
        main = self.main_input(arguments)
        ids, embeds = f"{self.prefix}input_ids", f"{self.prefix}inputs_embeds"
        if ids in arguments and embeds in arguments:
            raise ValueError(f"{ids} and {embeds} were given: a call takes one of them")
        name = ids if ids in arguments else embeds
        del arguments[name]
        if name == ids and main.is_floating_point():
            raise ValueError(f"{ids} of dtype {main.dtype}: token ids are integers; pass embeddings as {embeds}")
        if 0 in main.shape[:2]:
            raise ValueError(
                f"{name} of shape {tuple(main.shape)} holds no token: give at least one row of one token (a start "
                "token where there is no text)"
            )
        main = on_host(main)
        return name, main if name == embeds else main.long()  # ids of 32 bits would be graphs of their own

    def _take_per_token(self, cache: BucketCache, arguments: dict[str, Any], length: int) -> dict[str, torch.Tensor]:
        """The host tensors of the inputs with one entry per token, taken out of `arguments`."""
        names = [name for name in (f"{self.prefix}{own}" for own in PER_TOKEN) if name in arguments]
        taken = {name: on_host(arguments.pop(name)) for name in names}
        for name, tensor in taken.items():
            if tensor.is_floating_point():
                raise NotBucketableError(f"{name} of dtype {tensor.dtype} has no bucket rule: it takes integers")
        if self.is_recurrent and self.takes_positions and not taken:
            # The model would count the pads in front of its first block.
            taken["position_ids"] = torch.arange(cache.length, cache.length + length)[None]
        return {name: tensor.long() for name, tensor in taken.items()}

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
        mask_BM = torch.ones(batch, past + length, dtype=torch.long) if mask_BM is None else on_host(mask_BM)
        mask_BM = (mask_BM != 0 if mask_BM.is_floating_point() else mask_BM).long()  # a fraction is seen, as upstream
        if not self.has_rows and mask_BM.dim() == 2 and mask_BM.shape[1] >= length:
            # A state is never looked back at: callers may give the mask of the block alone.
            return placed(pad_rows(mask_BM[:, -length:], rows), lead, block)
        if mask_BM.dim() != 2 or mask_BM.shape[1] != past + length:
            raise NotBucketableError(
                f"an attention mask of shape {tuple(mask_BM.shape)} for {past} + {length} tokens has no bucket rule"
            )
        mask_BM = pad_rows(mask_BM, rows)
        if cache.state is None:
            return placed(mask_BM, lead, block)
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
        if arguments.get("labels") is not None:
            raise NotBucketableError("labels have no bucket rule in generation")
        # A configuration may ask for what a call does not want.
        arguments = {name: value for name, value in arguments.items() if value is not False or name in FIELDS}
        rest = [name for name, value in arguments.items() if not isinstance(value, (bool, int, float, str))]
        if rest:
            raise NotBucketableError(f"arguments {sorted(rest)} have no bucket rule")
        return tuple(sorted(arguments.items()))

    def axes(self) -> dict[str, AxisSizes]:
        return {"batch": self.batches, "sequence": self.prompts, "cache": self.caches}


def _is_nothing(value: Any) -> bool:
    """None, or a dict of nothing, as the loop passes for pictures that a prompt does not have."""
    return value is None or (isinstance(value, dict) and all(map(_is_nothing, value.values())))
