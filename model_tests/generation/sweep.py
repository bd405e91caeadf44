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
from model_tests.generation.prompts import GREEDY, prompts
from model_tests.generation.tiny import WINDOW, tiny_config
from optimum_neuron_torch import Buckets, NeuronConfig, prepare


BUCKETS = Buckets(batch=[4], sequence=[16, 32], encoder_sequence=[16, 32], cache=[64])
MOST_PARAMETERS = 1 << 22
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
    masked = "attention_mask" in inspect.signature(type(host).forward).parameters

    def calls(*rows: tuple[int, tuple[int, ...]]) -> list[dict[str, Any]]:
        return [{**prompts(host, length, pads, masked=masked), **GREEDY} for length, pads in rows]

    cells = {"single": compare(host, device, calls((11, (0,)), (14, (0,))))}
    if masked:
        cells["batch"] = compare(host, device, calls((12, (5, 0, 1)), (15, (0, 9, 4))))
    return Outcome(cells=cells, window=_window(host.config), seconds=round(time.perf_counter() - start, 1))


def make(entry: ModelClass) -> nn.Module:
    """A tiny random model of the class. It generates as many tokens as it is asked for: none ends a text."""
    torch.manual_seed(0)
    config = tiny_config(entry.config_class, **ADDITIONS.get(entry.model_type, {}))
    if entry.kind == "causal" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True  # else classes that are encoders as well see what comes later
    model = stirred(entry.model_class(config)).eval()
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
        raise ValueError(f"{entry.class_name} is not small with the sizes that its configuration has names for")
    if not model.can_generate():
        return model
    generation = model.generation_config
    generation.eos_token_id, generation.pad_token_id = None, 0
    if generation.decoder_start_token_id is None:
        generation.decoder_start_token_id = 1
    # Some configurations ask for none.
    generation.use_cache = model.config.use_cache = True
    generation.forced_eos_token_id = generation.forced_bos_token_id = None
    return model


def _window(config: transformers.PretrainedConfig) -> int | None:
    text = config.get_text_config(decoder=True)
    values = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size", "sliding_window_size")]
    return next((value for value in values if isinstance(value, int) and value <= WINDOW), None)
