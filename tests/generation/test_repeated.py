"""Decode steps that are run again without looking the model up: only where nothing can have changed in between."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, LogitsProcessor, TextStreamer
from transformers.generation import LogitsProcessorList, MinLengthLogitsProcessor, PrefixConstrainedLogitsProcessor
from transformers.generation.streamers import BaseStreamer

import optimum_neuron_torch as ont
from optimum_neuron_torch.generation.repeated import RepeatedStep
from optimum_neuron_torch.integrations.library_code import is_library_code, is_library_value


@pytest.fixture
def plain(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama)


@pytest.fixture
def model(tiny_llama):
    config = ont.NeuronConfig(
        buckets=ont.Buckets(batch=[1, 4, 16], sequence=[16], cache=[32, 64]),
        options={"executor": "aten", "lowering": "off"},
        verify=False,
    )
    return AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=config)


@pytest.fixture
def repeated(monkeypatch):
    """One entry per step that was run again."""
    steps, stock = [], RepeatedStep.__call__

    def counted(self, cache, arguments):
        steps.append(cache.length)
        return stock(self, cache, arguments)

    monkeypatch.setattr(RepeatedStep, "__call__", counted)
    return steps


def generate(model, ids, mask, **arguments):
    torch.manual_seed(0)
    arguments = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "eos_token_id": None, **arguments}
    return model.generate(
        ids, attention_mask=mask, return_dict_in_generate=True, output_logits=True, pad_token_id=0, **arguments
    )


def assert_equal(found, expected):
    assert torch.equal(found.sequences, expected.sequences)
    for one, other in zip(found.logits, expected.logits, strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_steps_are_repeated_and_equal_the_cpus(plain, model, repeated, ids, mask, rows, mode):
    with mode():
        found = generate(model, ids[:rows], mask[:rows])
    assert_equal(found, generate(plain, ids[:rows], mask[:rows]))
    assert len(repeated) == 7  # prefill and the first two steps are looked up


@pytest.mark.parametrize(
    "strategy",
    [
        {"do_sample": True},
        {"num_beams": 3},
        {"prompt_lookup_num_tokens": 3, "repetition_penalty": 1.2},
        {"max_new_tokens": 40, "min_new_tokens": 40},
    ],
    ids=["sampling", "beams", "prompt lookup", "a store that was chosen larger"],
)
def test_strategies_equal_the_cpus(plain, model, ids, mask, strategy):
    rows = 1 if "prompt_lookup_num_tokens" in strategy else 3
    assert_equal(
        generate(model, ids[:rows], mask[:rows], **strategy), generate(plain, ids[:rows], mask[:rows], **strategy)
    )


def test_a_returned_cache_goes_on(plain, model, repeated, ids):
    found = generate(model, ids, torch.ones_like(ids))
    expected = generate(plain, ids, torch.ones_like(ids))
    for cut in (0, -4):
        longer = torch.cat([found.sequences[:, : cut or None], ids[:, :3]], 1)
        if cut:
            found.cache.crop(cut - 1)
            expected.cache.crop(cut - 1)
        twin = copy.deepcopy(found.cache)
        arguments = {"mask": torch.ones_like(longer), "max_new_tokens": 6, "min_new_tokens": 6}
        again = generate(model, longer, cache=twin, **arguments)
        assert_equal(again, generate(plain, longer, cache=copy.deepcopy(expected.cache), **arguments))
    assert len(repeated) == 7 + 2 * 3


class Swapping(LogitsProcessor):
    """Exchanges the model's last norm for another one at the fifth token."""

    def __init__(self, model):
        self.model, self.calls = model, 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        if self.calls == 5:
            norm = self.model.model.norm
            self.model.model.norm = torch.nn.LayerNorm(norm.weight.shape[0]).to(norm.weight.device)
        return scores


class SwappingStreamer(BaseStreamer):
    def __init__(self, model):
        self.swap = Swapping(model)

    def put(self, value):
        self.swap(None, None)

    def end(self):
        pass


def test_a_processor_that_changes_the_model_is_noticed(plain, model, repeated, ids, mask):
    found, expected = (
        generate(each, ids, mask, logits_processor=LogitsProcessorList([Swapping(each)])) for each in (model, plain)
    )
    assert_equal(found, expected)
    assert not repeated


def test_a_streamer_that_changes_the_model_is_noticed(plain, model, repeated, ids, mask):
    found, expected = (generate(each, ids[:1], mask[:1], streamer=SwappingStreamer(each)) for each in (model, plain))
    assert_equal(found, expected)
    assert not repeated


def test_a_change_between_two_calls_is_noticed(plain, model, repeated, ids, mask):
    for each in (model, plain):
        generate(each, ids, mask)
        each.model.norm = torch.nn.LayerNorm(each.config.hidden_size).to(each.device)
    assert_equal(generate(model, ids, mask), generate(plain, ids, mask))
    assert len(repeated) == 14


def test_calls_outside_generate_are_looked_up(model, repeated, ids):
    with torch.no_grad():
        cache = model(ids).cache
        for step in range(4):
            model(ids[:, step : step + 1], cache=cache)
    assert not repeated


def test_what_runs_no_code_of_the_users(model, tmp_path):
    processors = LogitsProcessorList([MinLengthLogitsProcessor(3, 2)])
    streamer = TextStreamer(None)
    values = (None, 1, "a", torch.ones(1), {"a": [1]}, GenerationConfig(), processors, streamer, DynamicCache())
    assert all(map(is_library_value, values))
    replaced = TextStreamer(None)
    replaced.put = lambda value: None
    users = (
        replaced,
        LogitsProcessorList([PrefixConstrainedLogitsProcessor(lambda row, ids: [3, 4], 1)]),
        print,
        lambda ids: ids,
        Swapping(model),
        LogitsProcessorList([Swapping(model)]),
        [SwappingStreamer(model)],
    )
    assert not any(map(is_library_value, (*users, model, {"assistant": model})))


def test_a_function_inside_a_processor_of_the_library(plain, model, repeated, ids, mask):
    def changing(each):
        calls = []

        def allowed(row, tokens):
            calls.append(row)
            if len(calls) == 6 * ids.shape[0]:
                each.model.norm = torch.nn.LayerNorm(each.config.hidden_size).to(each.device)
            return list(range(each.config.vocab_size))

        return LogitsProcessorList([PrefixConstrainedLogitsProcessor(allowed, 1)])

    found, expected = (generate(each, ids, mask, logits_processor=changing(each)) for each in (model, plain))
    assert_equal(found, expected)
    assert not repeated


def test_models_with_code_of_the_users(model):
    assert is_library_code(model)
    handle = model.register_forward_hook(lambda *_: None)
    assert not is_library_code(model)
    handle.remove()
    model._sample = lambda *args, **kwargs: None
    assert not is_library_code(model)
    del model._sample
    own = type("Own", (type(model),), {"__module__": "elsewhere"})
    assert not is_library_code(own(model.config))
