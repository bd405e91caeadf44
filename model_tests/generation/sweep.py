"""Greedy decoding of one class, a single prompt and a left-padded batch, past its sliding window if it has one."""

from __future__ import annotations

import copy
import inspect
import time
from typing import Any

import torch
import transformers
from torch import nn

from model_tests.architectures.check import describe, stirred
from model_tests.generation.additions import ADDITIONS
from model_tests.generation.classes import ModelClass
from model_tests.generation.compare import compare
from model_tests.generation.outcome import Outcome
from model_tests.generation.tiny import WINDOW, tiny_config
from optimum_neuron_torch import Buckets, NeuronConfig, prepare


NEW_TOKENS = 24
BUCKETS = Buckets(batch=[1, 4], sequence=[16, 32], encoder_sequence=[16, 32], cache=[64])
# Executor of PyTorch's own kernels, without lowering to StableHLO: what is compared is the plugin's work, not the
# compiler's.
OPTIONS = {"executor": "aten", "lowering": "off"}


def sweep(entry: ModelClass) -> Outcome:
    """Compare the class with a tiny configuration."""
    start = time.perf_counter()
    transformers.logging.set_verbosity_error()
    try:
        host = make(entry)
    except Exception as error:
        return Outcome(unmade=describe(error))
    device = prepare(copy.deepcopy(host).to("neuron"), NeuronConfig(buckets=BUCKETS, options=OPTIONS))
    cells = {"single": compare(host, device, [single(host, 11), single(host, 14)])}
    if "attention_mask" in inspect.signature(type(host).forward).parameters:
        cells["batch"] = compare(host, device, [left_padded(host, 12, (5, 0, 1)), left_padded(host, 15, (0, 9, 4))])
    return Outcome(cells=cells, window=_window(host.config), seconds=round(time.perf_counter() - start, 1))


def make(entry: ModelClass) -> nn.Module:
    """A tiny random model of the class, which generates a fixed number of tokens."""
    torch.manual_seed(0)
    config = tiny_config(entry.config_class, **ADDITIONS.get(entry.model_type, {}))
    model = stirred(entry.model_class(config)).eval()
    generation = model.generation_config
    generation.eos_token_id, generation.pad_token_id = None, 0
    generation.forced_eos_token_id = generation.forced_bos_token_id = None
    return model


def single(model: nn.Module, length: int, **further: Any) -> dict[str, Any]:
    """The arguments of generate() for one prompt."""
    ids = token_ids(1, length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **ARGUMENTS, **further}


def left_padded(model: nn.Module, length: int, pads: tuple[int, ...], **further: Any) -> dict[str, Any]:
    """The arguments of generate() for a row for each of `pads`, with as many pads on the left."""
    ids = token_ids(len(pads), length)
    mask = torch.ones_like(ids)
    for row, count in enumerate(pads):
        mask[row, :count] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask, **ARGUMENTS, **further}


ARGUMENTS = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1}


def token_ids(batch: int, length: int) -> torch.Tensor:
    """Ids of which none is special."""
    return torch.randint(5, 90, (batch, length), generator=torch.Generator().manual_seed(17 * length + batch))


def _window(config: transformers.PretrainedConfig) -> int | None:
    text = config.get_text_config(decoder=True)
    values = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size", "sliding_window_size")]
    return next((value for value in values if isinstance(value, int) and value <= WINDOW), None)
