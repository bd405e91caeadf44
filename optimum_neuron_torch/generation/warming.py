"""What a generate() call of given buckets compiles: as a list, and done ahead of use."""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import StoppingCriteria

from ..buckets.sizes import AxisSizes
from .bucketed import BucketedGeneration
from .cache import BucketCache


# A module, and the function and bucket of one of its graphs.
Graph = tuple[torch.nn.Module, str, dict[str, int]]


def axes(generation: BucketedGeneration) -> dict[str, AxisSizes]:
    """The axes that name a warm-up of generate(). A decoder with an encoder starts from one token."""
    if not generation.cross:
        return generation.axes()
    if generation.example(1, 1) is None:  # sound or pictures of a size that is not known
        return {}
    return {name: sizes for name, sizes in generation.axes().items() if name != "sequence"}


def graphs(generation: BucketedGeneration, bucket: dict[str, int]) -> Iterator[Graph]:
    """The graphs that `warm` makes for a bucket of `axes`."""
    batch, rows = bucket["batch"], bucket["cache"] if generation.has_rows else 0
    sizes = {name: bucket[name] for name in ("encoder_sequence",) if name in bucket}
    if generation.cross:
        yield generation.encoder.shell, generation.encoder.function, {"batch": batch, **sizes}
        if not sizes:
            return  # how many positions an encoder of sound or pictures has is known when it has run
    first = generation.block_bucket(_prompt_length(generation, bucket), True)
    for function, block in ((generation.first, first), ("decode", 1)):
        yield generation.shell, function, {"batch": batch, "block": block, "cache": rows, "keep": 1, **sizes}
    if batch > 1:
        yield generation.shell, "gather", {"from": batch, "batch": batch, "cache": rows}


def warm(generation: BucketedGeneration, bucket: dict[str, int]) -> None:
    """Compile and run once what a generate() call of these buckets needs: the encoder, the first step, decode and the
    reordering of rows.
    """
    if generation.cross and generation.pads_source:
        _generate_two_tokens(generation, bucket)
        return
    batch = bucket["batch"]
    cache = BucketCache(generation, bucket["cache"] - 1)
    given = _encoded(generation, batch, bucket.get("encoder_sequence")) if generation.cross else {}
    # The loop counts positions for decoders alone.
    takes_positions = generation.takes_positions and not generation.cross
    for length in (_prompt_length(generation, bucket), 1):
        past = cache.length
        tokens = {
            "input_ids": torch.zeros(batch, length, dtype=torch.long),
            "attention_mask": torch.ones(batch, past + length, dtype=torch.long),
            "position_ids": torch.arange(past, past + length)[None] if takes_positions else None,
        }
        named = {f"{generation.prefix}{name}": value for name, value in tokens.items()}
        generation.forward(cache, {**named, **given, "logits_to_keep": 1 if generation.takes_keep else None})
    if batch > 1:
        generation.gather(cache, torch.arange(batch))


def _prompt_length(generation: BucketedGeneration, bucket: dict[str, int]) -> int:
    """Tokens of the first step: the bucket is full, but for the next token and the dump row."""
    return 1 if generation.cross else min(bucket["sequence"], bucket["cache"] - 2)


class _AfterTwoTokens(StoppingCriteria):
    """Ends generate() when the first step and decode have run."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        self.steps += 1
        return torch.full((input_ids.shape[0],), self.steps == 2, device=input_ids.device)


def _generate_two_tokens(generation: BucketedGeneration, bucket: dict[str, int]) -> None:
    """What the loop gives an encoder and its decoder differs between models, so the loop itself is run."""
    ids = torch.full((bucket["batch"], bucket["encoder_sequence"]), 1)
    output = generation.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=bucket["cache"] - 1,
        min_new_tokens=None,
        stopping_criteria=[_AfterTwoTokens()],
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        return_dict_in_generate=True,
    )
    if bucket["batch"] > 1:
        generation.gather(output.cache, torch.arange(bucket["batch"]))


def _encoded(generation: Any, batch: int, length: int | None) -> dict[str, Any]:
    """The encoder's output for `length` tokens, and their mask."""
    arguments = generation.example(batch, length)
    output = generation.encoder.forward(arguments)
    return {"encoder_outputs": output, "attention_mask": arguments.get("attention_mask")}
