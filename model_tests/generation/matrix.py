"""The matrix: families by strategies of generate(), and encoders by their outputs; one prompt, and a padded batch."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from model_tests.generation.classes import ModelClass
from model_tests.generation.compare import compare, compare_forward
from model_tests.generation.outcome import Outcome
from model_tests.generation.prompts import GREEDY, prompts
from model_tests.generation.sweep import OPTIONS, make
from optimum_neuron_torch import Buckets, NeuronConfig, prepare


NEW_TOKENS = {"max_new_tokens": 16, "min_new_tokens": 16}
STRATEGIES: dict[str, Mapping[str, Any]] = {
    "greedy": {},
    "sample": {"do_sample": True, "temperature": 0.9, "top_k": 40, "top_p": 0.95},
    "beam": {"num_beams": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "bad_words_ids": [[7], [11, 12]]},
}
FORMS: dict[str, tuple[int, tuple[int, ...]]] = {"single": (11, (0,)), "batch": (13, (5, 0, 2))}
# Three rows, and their three beams each, in one bucket: fewer graphs.
BUCKETS = Buckets(batch=[1, 9], sequence=[16, 32], encoder_sequence=[16, 32], cache=[64])


@dataclass(frozen=True)
class Family:
    """A class by which a family is known; `executor` runs its graphs."""

    entry: ModelClass
    executor: str = OPTIONS["executor"]

    @property
    def config(self) -> NeuronConfig:
        return NeuronConfig(buckets=BUCKETS, options={**OPTIONS, "executor": self.executor})


def _families(kind: str, classes: Mapping[str, tuple[str, str]], executor: str = OPTIONS["executor"]) -> dict:
    return {name: Family(ModelClass(kind, *entry), executor) for name, entry in classes.items()}


DECODERS = {
    "GPT-2": ("gpt2", "GPT2LMHeadModel"),
    "GPT-NeoX": ("gpt_neox", "GPTNeoXForCausalLM"),
    "OPT": ("opt", "OPTForCausalLM"),
    "Bloom": ("bloom", "BloomForCausalLM"),
    "Falcon": ("falcon", "FalconForCausalLM"),
    "MPT": ("mpt", "MptForCausalLM"),
    "Llama": ("llama", "LlamaForCausalLM"),
    "Llama 4": ("llama4_text", "Llama4ForCausalLM"),
    "Mistral": ("mistral", "MistralForCausalLM"),
    "Mixtral": ("mixtral", "MixtralForCausalLM"),
    "Qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "Qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "Qwen3-MoE": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "Qwen3-Next": ("qwen3_next", "Qwen3NextForCausalLM"),
    "Gemma 2": ("gemma2", "Gemma2ForCausalLM"),
    "Gemma 3": ("gemma3_text", "Gemma3ForCausalLM"),
    "Phi": ("phi", "PhiForCausalLM"),
    "Phi-3": ("phi3", "Phi3ForCausalLM"),
    "Granite": ("granite", "GraniteForCausalLM"),
    "SmolLM3": ("smollm3", "SmolLM3ForCausalLM"),
    "OLMo 2": ("olmo2", "Olmo2ForCausalLM"),
    "Cohere 2": ("cohere2", "Cohere2ForCausalLM"),
    "gpt-oss": ("gpt_oss", "GptOssForCausalLM"),
    "DeepSeek-V3": ("deepseek_v3", "DeepseekV3ForCausalLM"),
    "Mamba 2": ("mamba2", "Mamba2ForCausalLM"),
}
INDUCTOR = ("GPT-2", "Llama", "Mistral", "Gemma 2", "Qwen3")
ENCODER_DECODERS = {
    "T5": ("t5", "T5ForConditionalGeneration"),
    "mT5": ("mt5", "MT5ForConditionalGeneration"),
    "UMT5": ("umt5", "UMT5ForConditionalGeneration"),
    "BART": ("bart", "BartForConditionalGeneration"),
    "mBART": ("mbart", "MBartForConditionalGeneration"),
    "Marian": ("marian", "MarianMTModel"),
    "Pegasus": ("pegasus", "PegasusForConditionalGeneration"),
    "M2M100": ("m2m_100", "M2M100ForConditionalGeneration"),
    "Blenderbot": ("blenderbot", "BlenderbotForConditionalGeneration"),
    "T5Gemma": ("t5gemma", "T5GemmaForConditionalGeneration"),
    "Whisper": ("whisper", "WhisperForConditionalGeneration"),
    "Speech2Text": ("speech_to_text", "Speech2TextForConditionalGeneration"),
}
ENCODERS = {
    "BERT": ("bert", "BertForMaskedLM"),
    "RoBERTa": ("roberta", "RobertaForMaskedLM"),
    "XLM-RoBERTa": ("xlm-roberta", "XLMRobertaForMaskedLM"),
    "CamemBERT": ("camembert", "CamembertForMaskedLM"),
    "DistilBERT": ("distilbert", "DistilBertForMaskedLM"),
    "ALBERT": ("albert", "AlbertForMaskedLM"),
    "ELECTRA": ("electra", "ElectraForMaskedLM"),
    "MPNet": ("mpnet", "MPNetForMaskedLM"),
    "DeBERTa": ("deberta", "DebertaForMaskedLM"),
    "DeBERTa-v2": ("deberta-v2", "DebertaV2ForMaskedLM"),
    "ModernBERT": ("modernbert", "ModernBertForMaskedLM"),
    "MobileBERT": ("mobilebert", "MobileBertForMaskedLM"),
    "ConvBERT": ("convbert", "ConvBertForMaskedLM"),
    "RoFormer": ("roformer", "RoFormerForMaskedLM"),
    "ESM": ("esm", "EsmForMaskedLM"),
}
SECTIONS: dict[str, dict[str, Family]] = {
    "decoders": _families("causal", DECODERS),
    "inductor": {
        f"{name} (inductor)": family
        for name, family in _families("causal", {name: DECODERS[name] for name in INDUCTOR}, "inductor").items()
    },
    "encoder_decoders": _families("seq2seq", ENCODER_DECODERS),
    "encoders": _families("encoder", ENCODERS),
}
TITLES = {
    "decoders": "Decoders",
    "inductor": "Decoders, executor `inductor`",
    "encoder_decoders": "Encoder-decoders",
    "encoders": "Encoders",
}


def cell_name(column: str, form: str) -> str:
    return f"{column}, {form}"


def matrix(family: Family) -> Outcome:
    """All cells of a family."""
    start = time.perf_counter()
    host = make(family.entry)
    device = prepare(copy.deepcopy(host).to("neuron"), family.config)
    cells = _forward_cells(host, device) if family.entry.kind == "encoder" else _generate_cells(host, device)
    return Outcome(cells=cells, seconds=round(time.perf_counter() - start, 1))


def _generate_cells(host: nn.Module, device: nn.Module) -> dict[str, Any]:
    cells = {}
    for strategy, arguments in STRATEGIES.items():
        for form, (length, pads) in FORMS.items():
            call = {**prompts(host, length, pads), **GREEDY, **NEW_TOKENS, **arguments}
            if strategy == "prompt lookup" and "input_ids" in call:
                call |= _repeated(call)
            cells[cell_name(strategy, form)] = compare(host, device, [call])
    return cells


def _repeated(call: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The prompt twice, so that there is something to look up."""
    return {name: torch.cat([call[name]] * 2, 1) for name in ("input_ids", "attention_mask")}


OUTPUTS = {"last hidden state": ("hidden_states",), "logits": ("logits",)}


def _forward_cells(host: nn.Module, device: nn.Module) -> dict[str, Any]:
    cells = {}
    for output in OUTPUTS:
        for form, (length, pads) in FORMS.items():
            call = {**prompts(host, length, pads), "output_hidden_states": output == "last hidden state"}
            cells[cell_name(output, form)] = compare_forward(host, device, call)
    return cells
