"""What generate() can be asked for, on a tiny decoder in buckets: tokens, scores and texts are the CPU's."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    WatermarkingConfig,
)

import optimum_neuron_torch as ont
from tests.generation.test_decoders import GROUPED, assert_close, pair


class StopsAt(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= 17, device=input_ids.device)


class DislikesRepetition(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores - 3 * torch.nn.functional.one_hot(input_ids[:, -1], scores.shape[-1])


def own_loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
    """A decoding method of the caller's."""
    for _ in range(4):
        seen = kwargs["cache"].get_seq_length()
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=1 if seen else None, **kwargs)
        output = model(**inputs, return_dict=True)
        token = logits_processor(input_ids, output.logits[:, -1].float()).argmax(-1, keepdim=True)
        input_ids = torch.cat([input_ids, token.to(input_ids.device)], -1)
        kwargs = model._update_model_kwargs_for_generation(output, kwargs)
    return input_ids


ENDS = list(range(20, 60))
SAMPLED = {
    "temperature, top k, top p": {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "min p": {"min_p": 0.05},
    "typical": {"typical_p": 0.8},
    "eta": {"eta_cutoff": 1e-3},
    "epsilon": {"epsilon_cutoff": 1e-3},
    "top h": {"top_h": 0.4},
    "renormalised": {"remove_invalid_values": True, "renormalize_logits": True},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=2.5)},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "several": {"num_return_sequences": 5},
}
STRATEGIES = {name: {"do_sample": True, **arguments} for name, arguments in SAMPLED.items()} | {
    "repetition": {"repetition_penalty": 1.5, "encoder_repetition_penalty": 1.4},
    "n-grams": {"no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5], [6, 7], [80]]},
    "biased sequences": {"sequence_bias": {(10,): 5.0, (11, 12): -4.0}},
    "min_length": {"min_length": 16, "eos_token_id": ENDS},
    "min_new_tokens": {"min_new_tokens": 6, "eos_token_id": ENDS},
    "rows that end": {"eos_token_id": ENDS},
    "max_length": {"max_length": 19, "max_new_tokens": None},
    "one token": {"max_new_tokens": 1},
    "forced": {"forced_bos_token_id": 7, "forced_eos_token_id": 3},
    "suppressed": {"suppress_tokens": [50, 60, 70], "begin_suppress_tokens": [20]},
    "decaying": {"exponential_decay_length_penalty": (3, 1.3), "eos_token_id": ENDS},
    "allowed": {"prefix_allowed_tokens_fn": lambda batch, ids: list(range(20, 40))},
    "beams that stop early": {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True, "eos_token_id": ENDS},
    "beams that never stop": {"num_beams": 3, "early_stopping": "never", "eos_token_id": ENDS},
    "criterion": {"stopping_criteria": StoppingCriteriaList([StopsAt()])},
    "processor": {"logits_processor": LogitsProcessorList([DislikesRepetition()])},
    "custom_generate": {"custom_generate": own_loop},
    "prefill in chunks": {"prefill_chunk_size": 4},
}


@pytest.fixture(scope="module")
def both():
    return pair("Llama", GROUPED, compile=False)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tokens_equal_the_cpus(both, ids, mask, strategy):
    results = []
    for model in both:
        torch.manual_seed(0)
        arguments = {"do_sample": False, "max_new_tokens": 10, **STRATEGIES[strategy]}
        results.append(model.generate(ids, attention_mask=mask, **arguments))
    assert torch.equal(*results)
    assert [row["kind"] for row in ont.report(both[1]).departures] == []


@pytest.mark.parametrize("beams", [1, 2])
def test_scores(both, ids, mask, beams):
    asked = {"output_scores": True, "return_dict_in_generate": True, "num_beams": beams}
    expected, found = (m.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, **asked) for m in both)
    assert torch.equal(found.sequences, expected.sequences)
    assert_close(found.scores, expected.scores)
    if beams > 1:
        assert_close([found.sequences_scores], [expected.sequences_scores])
        assert torch.equal(found.beam_indices, expected.beam_indices)


def test_negative_prompts(both, ids):
    arguments = {"guidance_scale": 1.4, "negative_prompt_ids": ids[:1, 3:7], "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(*(model.generate(ids[:1], **arguments) for model in both))


def test_assistants(both, ids):
    arguments = {"max_new_tokens": 10, "do_sample": False}
    expected = both[0].generate(ids[:1], **arguments)
    for assistant in pair("Llama", GROUPED | {"num_hidden_layers": 1}, compile=False):
        assert torch.equal(both[1].generate(ids[:1], assistant_model=assistant, **arguments), expected)
    assert torch.equal(both[1].generate(ids[:1], prompt_lookup_num_tokens=3, **arguments), expected)


def test_stop_strings(both, ids, mask):
    words = {
        "<unk>": 0,
        **{f"w{index}": index for index in range(1, 319)},
        "abcdef": 319,
    }  # Transformers probes with it
    rules = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, unk_token="<unk>", pad_token="<unk>")
    expected = both[0].generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    stop = tokenizer.decode(expected[0, -6:-5])
    arguments = {"stop_strings": [stop], "tokenizer": tokenizer, "max_new_tokens": 12, "do_sample": False}
    results = [model.generate(ids[:1], attention_mask=mask[:1], **arguments) for model in both]
    assert torch.equal(*results) and results[0].shape[1] < expected.shape[1]
