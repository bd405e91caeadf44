"""The self check of bucketed generation: a padded prefill, block and decode against plain forward, on the host.

It is the only defence against models that would be wrong in silence (a causal mask kept in a buffer, a window that
exists only because the stock cache drops old keys). A shallow twin with random weights is enough: what can go wrong is
structure. What it found is kept beside the model's graphs.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
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


TOLERANCE = 1e-5
# Prompt, continuation block, one token: past a window of `shallow.WINDOW` tokens, and none of them a bucket size.
LENGTHS = (11, 7, 1)
PADS = 4
# Encoder positions.
SOURCE = 13


def check(
    bucketed: BucketedGeneration, recording: Callable[[], AbstractContextManager], *, trace: bool = False
) -> str | None:
    """What differs between bucketed and plain forward of a twin of the model, or None.

    It runs once for each model, and each version of what it runs. `trace`: also whether the steps can be traced, which
    takes seconds. Tells `bucketed` what it has to do without, and its ledger the paths of attention, which
    `recording()` counts.
    """
    manifest = Manifest(bucketed.model) if runtime.graph_directory() is not None else None
    key = _key(bucketed.model, trace)
    found = manifest.check(key) if manifest is not None else None
    if found is None:
        with recording() as paths:
            found = _find(bucketed, trace)
        found["attention"] = dict(paths)
        if manifest is not None:
            manifest.checked(key, found)
    bucketed.ledger.attention.update(found["attention"])
    for name, value in found["instead"].items():
        setattr(bucketed, name, value)
    if "pads_source" in found["instead"]:
        bucketed.ledger.depart("exact_shapes", "decoder", f"encoder positions are not padded: {found['first']}")
    return found["reason"]


def _key(model: torch.nn.Module, trace: bool) -> str:
    facts = (type(model).__module__, type(model).__qualname__, describe(model.config), trace, versions())
    return "generation " + hashlib.sha256(repr(facts).encode()).hexdigest()[:20]


def _find(bucketed: BucketedGeneration, trace: bool) -> dict[str, Any]:
    """`reason`: why there are no buckets, or None. `instead`: what the steps of the model have to do in place of what
    `bucketed` does, because of what was `first` found.
    """
    first = None
    for instead in _ways(bucketed):
        reason = _mismatch(bucketed.model, instead, trace)
        first = reason if first is None else first
        if reason is None:
            return {"reason": None, "instead": instead, "first": first}
    return {"reason": first, "instead": {}, "first": first}


def _ways(bucketed: BucketedGeneration) -> list[dict[str, Any]]:
    """Ways in which steps may run, by attributes of BucketedGeneration; the first is the one that all begin with.

    A model may leave its mask out where a block is one token, since nothing it stored itself has to be hidden then;
    or take no other block; or forget its recurrent state at a later block of several tokens.
    """
    ways = [{}, {"shortest": 4}, {"one_by_one": True}]
    if bucketed.is_recurrent:
        ways = [{}, {"parts": (1,)}, {"one_by_one": True}]
    if getattr(bucketed, "pads_source", False):
        ways += [{"pads_source": False, **way} for way in ways]
    return ways


def _mismatch(model: torch.nn.Module, instead: dict[str, Any], trace: bool) -> str | None:
    try:
        worst = _largest_difference(_twin(model), instead, trace)
    except Exception as error:
        return f"the self check could not run ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]})"
    difference, scale, where = worst
    if not difference <= TOLERANCE * max(1.0, scale):
        return f"the self check found a difference of {difference:.1e} in {where} (logits up to {scale:.1f})"
    return None


def _twin(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return shallow_twin(model)
    except Exception:
        if parameter_bytes(model) > LARGEST_COPY_BYTES:
            raise
        return host_copy(model)


class _TracedGraphs(Graphs):
    """Traces every step as `Graphs` does, and runs what was traced on the host."""

    def call(self, function: str, key: tuple, step: Callable, *args: Any) -> Any:
        return torch.compile(step, backend="eager", fullgraph=True, dynamic=False, isolate_recompiles=True)(*args)


def _largest_difference(twin: torch.nn.Module, instead: dict[str, Any], trace: bool) -> tuple[float, float, str]:
    """(difference, largest logit, step) of the step that is furthest off."""
    config = NeuronConfig(
        compile=False,
        attn_implementation=None,
        buckets=Buckets(batch=[4], sequence=[16], encoder_sequence=[24], cache=[48]),
    )
    ledger = Ledger(f"check of {type(twin).__name__}")
    bucketed = bucketed_generation(twin, config, ledger, (_TracedGraphs if trace else Graphs)(ledger, config))
    for name, value in instead.items():
        setattr(bucketed, name, value)
    takes_positions = bucketed.takes_positions
    total = sum(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, twin.config.get_text_config(decoder=True).vocab_size, (3, total), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :PADS] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    given = _encoded(bucketed, generator) if bucketed.cross else {}
    cache = BucketCache(bucketed, total)
    worst, start = (-1.0, 0.0, ""), 0
    for name, length in zip(("prefill", "block", "decode"), LENGTHS, strict=True):
        end = start + length
        inputs = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end]}
        extra = {"position_ids": positions[:, start:end]} if takes_positions else {}
        found = bucketed.forward(cache, {**_named(bucketed, inputs | extra), **given}).logits
        inputs = {"input_ids": ids[:, :end], "attention_mask": mask[:, :end]}
        extra = {"position_ids": positions[:, :end]} if takes_positions else {}
        with torch.no_grad():
            plain = type(twin).forward(twin, **_named(bucketed, inputs | extra), **given, use_cache=False)
        real = mask[:, start:end].bool()
        expected = plain.logits[:, start:end][real]
        difference = (found[real] - expected).abs().max().item()
        if not difference <= worst[0]:
            worst = (difference, expected.abs().max().item(), name)
        start = end
    return worst


class MadeUpOutput(BaseModelOutput):
    """An encoder's output of which only the hidden state is known: what else decoders look for is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def _named(bucketed: BucketedGeneration, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{bucketed.prefix}{name}": tensor for name, tensor in inputs.items()}


@torch.no_grad()
def _encoded(bucketed: EncoderDecoderGeneration, generator: torch.Generator) -> dict[str, Any]:
    """What the encoder gives; made up where it takes no tokens: its own forward has a check of its own."""
    encoder = bucketed.encoder.module
    mask = torch.ones(3, SOURCE, dtype=torch.long)
    if not bucketed.encoder.takes_tokens:
        size = getattr(encoder, "config", bucketed.model.config).hidden_size
        return {"encoder_outputs": MadeUpOutput(torch.randn(3, SOURCE, size, generator=generator))}
    mask[0, SOURCE // 2 :] = 0
    ids = torch.randint(5, 5 + SOURCE, mask.shape, generator=generator)
    return {"encoder_outputs": encoder(input_ids=ids, attention_mask=mask, return_dict=True), "attention_mask": mask}
