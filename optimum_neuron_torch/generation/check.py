"""The self check of bucketed generation: a padded prefill, block and decode against plain steps, on the host.

It is the only defence against models that would be wrong in silence (a causal mask kept in a buffer, a window that
exists only because the stock cache drops old keys). A shallow twin with random weights is enough: what can go wrong is
structure. What it found is kept beside the model's graphs.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from .. import runtime
from ..buckets.graphs import Graphs
from ..buckets.manifest import Manifest
from ..buckets.shallow import shallow_twin
from ..buckets.sources import versions
from ..buckets.state import describe
from ..buckets.twin import LARGEST_COPY_BYTES, host_copy, parameter_bytes
from ..config import Buckets, NeuronConfig
from ..report import Ledger
from .bucketed import BucketedGeneration
from .cache import BucketCache
from .encoder_decoder import EncoderDecoderGeneration, bucketed_generation
from .placing import SHORT_BLOCKS


TOLERANCE = 1e-5
# Prompt, continuation block, one token: past a window of `shallow.WINDOW` tokens, and none of them a bucket size.
LENGTHS = (11, 7, 1)
PADS = 4
# Encoder positions.
SOURCE = 13


def check(
    bucketed: BucketedGeneration,
    *,
    plain_attention: str | None = None,
    trace: bool = False,
) -> str | None:
    """What differs between bucketed and plain steps of a twin of the model, or None.

    It runs once for each model, and each version of what it runs. `plain_attention`: the attention of the plain side,
    where it is not the model's present one. `trace`: also whether the steps can be traced, which
    takes seconds. Tells `bucketed` what it has to do without.
    """
    manifest = Manifest(bucketed.model) if runtime.graph_directory() is not None else None
    key = _key(bucketed.model, plain_attention, trace)
    found = manifest.check(key) if manifest is not None else None
    if found is None:
        # Structure is what is checked: kernels would take their time on the host.
        with runtime.simulating(False):
            found = _find(bucketed, plain_attention, trace)
        if manifest is not None:
            manifest.checked(key, found)
    for name, value in found["instead"].items():
        setattr(bucketed, name, value)
    if "pads_source" in found["instead"]:
        bucketed.ledger.depart("exact_shapes", "decoder", f"encoder positions are not padded: {found['first']}")
    return found["reason"]


def _key(model: torch.nn.Module, *further: Any) -> str:
    facts = (type(model).__module__, type(model).__qualname__, describe(model.config), further, versions())
    return "generation " + hashlib.sha256(repr(facts).encode()).hexdigest()[:20]


def _find(bucketed: BucketedGeneration, plain_attention: str | None, trace: bool) -> dict[str, Any]:
    """`reason`: why there are no buckets, or None. `instead`: what the steps of the model have to do in place of what
    `bucketed` does, because of what was `first` found.
    """
    first = None
    for instead in _ways(bucketed):
        reason = _mismatch(bucketed.model, instead, plain_attention, trace)
        first = reason if first is None else first
        if reason is None:
            return {"reason": None, "instead": instead, "first": first}
    return {"reason": first, "instead": {}, "first": first}


def _ways(bucketed: BucketedGeneration) -> list[dict[str, Any]]:
    """Ways in which steps may run, by attributes of BucketedGeneration, the fastest first.

    A model may leave its mask out where a block is one token, since nothing it stored itself has to be hidden then;
    or take no other block; or forget its recurrent state at a later block of several tokens.
    """
    ways = [{}, {"shortest": 4}, {"one_by_one": True}]
    if bucketed.is_recurrent:
        ways = [{"parts": SHORT_BLOCKS}, {}, {"one_by_one": True}]
    if getattr(bucketed, "pads_source", False):
        ways += [{"pads_source": False, **way} for way in ways]
    return ways


def _mismatch(model: torch.nn.Module, instead: dict[str, Any], plain_attention: str | None, trace: bool) -> str | None:
    first = None
    for make_twin in _TWINS if parameter_bytes(model) <= LARGEST_COPY_BYTES else _TWINS[:1]:
        try:
            twin = make_twin(model)
            worst = max(
                _largest_difference(twin, instead, plain_attention, is_padded=is_padded, trace=trace)
                for is_padded in (True, False)
            )
        except Exception as error:
            first = error if first is None else first
            continue
        if not worst.difference <= TOLERANCE * max(1.0, worst.scale):
            return f"the self check found {worst}"
        return None
    return f"the self check could not run ({type(first).__name__}: {(str(first).splitlines() or [''])[0][:160]})"


# The second is for small models whose configuration tells too little to make the first.
_TWINS = (shallow_twin, host_copy)


@dataclass(frozen=True)
class Difference:
    """How far a step's logits are off, and how large they are."""

    difference: float
    scale: float
    step: str

    def __str__(self) -> str:
        return f"a difference of {self.difference:.1e} in {self.step} (logits up to {self.scale:.1f})"

    def __lt__(self, other: "Difference") -> bool:
        return not other.difference <= self.difference  # NaN is the largest


class _TracedGraphs(Graphs):
    """Traces every step as `Graphs` does, and runs what was traced on the host."""

    def call(self, function: str, key: tuple, step: Callable, *args: Any) -> Any:
        return torch.compile(step, backend="eager", fullgraph=True, dynamic=False, isolate_recompiles=True)(*args)


def _largest_difference(
    twin: torch.nn.Module, instead: dict[str, Any], plain_attention: str | None, *, is_padded: bool, trace: bool
) -> Difference:
    """The step that is furthest off: of an uneven batch with its mask, or of one row without a mask."""
    config = NeuronConfig(
        compile=False,
        attn_implementation=None,
        buckets=Buckets(batch=[4], sequence=[16], encoder_sequence=[24], cache=[48]),
    )
    ledger = Ledger(f"check of {type(twin).__name__}")
    bucketed = bucketed_generation(twin, config, ledger, (_TracedGraphs if trace else Graphs)(ledger, config))
    for name, value in instead.items():
        setattr(bucketed, name, value)
    total = sum(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    vocabulary = twin.config.get_text_config(decoder=True).vocab_size
    ids = torch.randint(5, vocabulary, (3 if is_padded else 1, total), generator=generator)
    mask = torch.ones_like(ids)
    if is_padded:
        mask[1, :PADS] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    given = _encoded(bucketed, len(ids), generator) if bucketed.cross else {}

    def inputs(start: int, end: int) -> dict[str, Any]:
        named = {"input_ids": ids[:, start:end]}
        if is_padded and (start == 0 or bucketed.has_rows):  # states are read on without a mask
            named["attention_mask"] = mask[:, :end]
        if bucketed.takes_positions:
            named["position_ids"] = positions[:, start:end]
        return {f"{bucketed.prefix}{name}": tensor for name, tensor in named.items()} | given

    expected = _plain_logits(twin, inputs, plain_attention)
    cache, start, steps = BucketCache(bucketed, total), 0, []
    for name, length in zip(("prefill", "block", "decode"), LENGTHS, strict=True):
        end = start + length
        found = bucketed.forward(cache, inputs(start, end)).logits
        real = mask[:, start:end].bool()
        difference = (found - expected[:, start:end])[real].abs().max().item()
        steps.append(Difference(difference, expected[:, start:end][real].abs().max().item(), name))
        start = end
    return max(steps)


@torch.no_grad()
def _plain_logits(
    twin: torch.nn.Module, inputs: Callable[[int, int], dict[str, Any]], attention: str | None
) -> torch.Tensor:
    """What generate() itself computes: the prompt, then single tokens, on a cache that drops keys before a window."""
    is_decoder = not twin.config.is_encoder_decoder
    cache = {"cache": DynamicCache(config=twin.config.get_text_config(decoder=True))} if is_decoder else {}
    ends = list(range(LENGTHS[0], sum(LENGTHS) + 1))
    logits = []
    with _attention(twin, attention):
        for start, end in zip([0, *ends], ends, strict=False):
            output = type(twin).forward(twin, **inputs(start, end), **cache, use_cache=True)
            cache = cache or {"cache": output.cache}  # it is filled in place
            logits.append(output.logits)
    return torch.cat(logits, 1)


@contextmanager
def _attention(model: torch.nn.Module, name: str | None) -> Iterator[None]:
    """Another attention implementation within the block; None leaves the model's own."""
    current = model.config._attn_implementation
    if name is not None:
        model.set_attn_implementation(name)
    try:
        yield
    finally:
        if name is not None:
            model.set_attn_implementation(current)


class MadeUpOutput(BaseModelOutput):
    """An encoder's output of which only the hidden state is known: what else decoders look for is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@torch.no_grad()
def _encoded(bucketed: EncoderDecoderGeneration, rows: int, generator: torch.Generator) -> dict[str, Any]:
    """What the encoder gives; made up where it takes no tokens: its own forward has a check of its own."""
    encoder = bucketed.encoder.module
    mask = torch.ones(rows, SOURCE, dtype=torch.long)
    if not bucketed.encoder.takes_tokens:
        size = getattr(encoder, "config", bucketed.model.config).hidden_size
        return {"encoder_outputs": MadeUpOutput(torch.randn(rows, SOURCE, size, generator=generator))}
    mask[0, SOURCE // 2 :] = 0
    ids = torch.randint(5, 5 + SOURCE, mask.shape, generator=generator)
    return {"encoder_outputs": encoder(input_ids=ids, attention_mask=mask, return_dict=True), "attention_mask": mask}
