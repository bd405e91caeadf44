"""The self check of bucketed generation: a padded prefill, block and decode against plain forward, on the host.

It is the only defence against models that would be wrong in silence (a causal mask kept in a buffer, a window that
exists only because the stock cache drops old keys). A shallow twin with random weights is enough: what can go wrong is
structure.
"""

import inspect

import torch

from ..buckets.twin import shallow_twin
from ..config import Buckets, NeuronConfig
from ..report import Ledger
from .bucketed import BucketedGeneration
from .cache import BucketCache


TOLERANCE = 1e-5
# Prompt, continuation block, one token: past a window of WINDOW tokens, and none of them a bucket size.
LENGTHS = (11, 3, 1)
WINDOW = 6
PADS = 4


def find_mismatch(model: torch.nn.Module) -> str | None:
    """What differs between bucketed and plain forward of a twin of `model`, or None."""
    try:
        twin = shallow_twin(model)
        _narrow_windows(twin)
        worst = _largest_difference(twin)
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


def _largest_difference(twin: torch.nn.Module) -> tuple[float, float, str]:
    """(difference, largest logit, step) of the step that is furthest off."""
    config = NeuronConfig(
        compile=False, attn_implementation=None, buckets=Buckets(batch=[4], sequence=[16], cache=[48])
    )
    bucketed = BucketedGeneration(twin, config, Ledger(f"check of {type(twin).__name__}"))
    takes_positions = "position_ids" in inspect.signature(type(twin).forward).parameters
    total = sum(LENGTHS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, twin.config.get_text_config(decoder=True).vocab_size, (3, total), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :PADS] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = BucketCache(bucketed, total)
    worst, start = (-1.0, 0.0, ""), 0
    for name, length in zip(("prefill", "block", "decode"), LENGTHS, strict=True):
        end = start + length
        extra = {"position_ids": positions[:, start:end]} if takes_positions else {}
        found = bucketed.forward(
            cache, {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], **extra}
        ).logits
        extra = {"position_ids": positions[:, :end]} if takes_positions else {}
        with torch.no_grad():
            plain = type(twin).forward(
                twin, input_ids=ids[:, :end], attention_mask=mask[:, :end], use_cache=False, **extra
            )
        real = mask[:, start:end].bool()
        expected = plain.logits[:, start:end][real]
        difference = (found[real] - expected).abs().max().item()
        if not difference <= worst[0]:
            worst = (difference, expected.abs().max().item(), name)
        start = end
    return worst
