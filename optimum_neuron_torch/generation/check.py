"""The self check of bucketed generation: a padded prefill, block and decode against plain forward, on the host.

It is the only defence against models that would be wrong in silence (a causal mask kept in a buffer, a window that
exists only because the stock cache drops old keys). A shallow twin with random weights is enough: what can go wrong is
structure.
"""

import inspect
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from ..buckets.twin import shallow_twin
from ..config import Buckets, NeuronConfig
from ..report import Ledger
from .bucketed import BucketedGeneration
from .cache import BucketCache
from .encoder_decoder import EncoderDecoderGeneration, bucketed_generation


TOLERANCE = 1e-5
# Prompt, continuation block, one token: past a window of WINDOW tokens, and none of them a bucket size.
LENGTHS = (11, 3, 1)
WINDOW = 6
PADS = 4
# Encoder positions.
SOURCE = 13


def find_mismatch(bucketed: BucketedGeneration) -> str | None:
    """What differs between bucketed and plain forward of a twin of the model, or None.

    An encoder-decoder that pads of its encoder change is told to keep the encoder's true length.
    """
    reason = _mismatch(bucketed)
    if reason is not None and isinstance(bucketed, EncoderDecoderGeneration) and bucketed.pads_source:
        bucketed.pads_source = False
        unpadded = _mismatch(bucketed)
        if unpadded is None:
            bucketed.ledger.depart("exact_shapes", "decoder", f"encoder positions are not padded: {reason}")
        return unpadded
    return reason


def _mismatch(bucketed: BucketedGeneration) -> str | None:
    try:
        twin = shallow_twin(bucketed.model)
        _narrow_windows(twin)
        worst = _largest_difference(twin, bucketed)
    except Exception as error:
        return f"the self check could not run ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]})"
    difference, scale, where = worst
    if not difference <= TOLERANCE * max(1.0, scale):
        return f"the self check found a difference of {difference:.1e} in {where} (logits up to {scale:.1f})"
    return None


def _narrow_windows(twin: torch.nn.Module) -> None:
    """Sliding windows of WINDOW tokens, so that a short run passes them."""
    for module in (twin.config, twin.config.get_text_config(decoder=True), *twin.modules()):
        for name in ("sliding_window", "attention_chunk_size"):
            if isinstance(getattr(module, name, None), int):
                setattr(module, name, WINDOW)


def _largest_difference(twin: torch.nn.Module, checked: BucketedGeneration) -> tuple[float, float, str]:
    """(difference, largest logit, step) of the step that is furthest off."""
    config = NeuronConfig(
        compile=False,
        attn_implementation=None,
        buckets=Buckets(batch=[4], sequence=[16], encoder_sequence=[24], cache=[48]),
    )
    bucketed = bucketed_generation(twin, config, Ledger(f"check of {type(twin).__name__}"))
    takes_positions = f"{bucketed.prefix}position_ids" in inspect.signature(type(twin).forward).parameters
    total = sum(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, twin.config.get_text_config(decoder=True).vocab_size, (3, total), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :PADS] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    given = _encoded(bucketed, checked.pads_source, generator) if bucketed.cross else {}
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


def _named(bucketed: BucketedGeneration, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{bucketed.prefix}{name}": tensor for name, tensor in inputs.items()}


def _encoded(bucketed: EncoderDecoderGeneration, pads: bool, generator: torch.Generator) -> dict[str, Any]:
    """What an encoder gives, made up: its own forward has a check of its own."""
    size = bucketed.encoder.module.config.hidden_size
    hidden = torch.randn(3, SOURCE, size, generator=generator)
    bucketed.pads_source = pads
    given = {"encoder_outputs": BaseModelOutput(last_hidden_state=hidden)}
    if pads:
        given["attention_mask"] = torch.ones(3, SOURCE, dtype=torch.long)
        given["attention_mask"][0, SOURCE // 2 :] = 0
    return given
