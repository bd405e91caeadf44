"""generate() in buckets against stock generate() on the CPU, on tiny models."""

import copy
import threading

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    TextStreamer,
)

import optimum_neuron_torch as ont
from optimum_neuron_torch.generation.cache import BucketCache
from tests.tiny_models import TINY, save


STRATEGIES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beams": {"num_beams": 3, "do_sample": False},
    "two of four beams": {"num_beams": 4, "num_return_sequences": 2, "do_sample": False},
    "three samples": {"do_sample": True, "num_return_sequences": 3},
    "penalties": {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4},
    "max_length": {"do_sample": False, "max_length": 18, "max_new_tokens": None},
}


def options(**buckets) -> ont.NeuronConfig:
    sizes = {"batch": [1, 4, 16], "sequence": [16, 32], "cache": [64], **buckets}
    return ont.NeuronConfig(buckets=ont.Buckets(**sizes), options={"executor": "aten", "lowering": "off"})


@pytest.fixture(scope="module")
def plain(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama)


@pytest.fixture(scope="module")
def model(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=options())


def generate(model, ids, mask, device="cpu", **arguments):
    torch.manual_seed(0)
    arguments = {"max_new_tokens": 8, **arguments}
    return model.generate(ids.to(device), attention_mask=mask.to(device), **arguments)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tokens_equal_the_cpus(plain, model, ids, mask, strategy, device):
    found = generate(model, ids, mask, device, **STRATEGIES[strategy])
    assert found.device.type == device
    assert torch.equal(found.cpu(), generate(plain, ids, mask, **STRATEGIES[strategy]))


FAMILIES = {
    "sliding window": (MistralForCausalLM, lambda: MistralConfig(num_key_value_heads=2, sliding_window=8, **TINY)),
    "softcap, two layer types": (
        Gemma2ForCausalLM,
        lambda: Gemma2Config(num_key_value_heads=2, head_dim=12, sliding_window=8, query_pre_attn_scalar=12, **TINY),
    ),
    "learned positions": (
        GPT2LMHeadModel,
        lambda: GPT2Config(vocab_size=320, n_embd=48, n_layer=2, n_head=4, n_positions=256, eos_token_id=2),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(tmp_path, ids, mask, family):
    model_class, config = FAMILIES[family]
    path = save(model_class, config(), tmp_path)
    plain = model_class.from_pretrained(path)
    model = model_class.from_pretrained(path, device_map="neuron", neuron_config=options())
    arguments = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    assert torch.equal(generate(model, ids, mask, **arguments), generate(plain, ids, mask, **arguments))
    report = ont.report(model)
    assert report.departures == [] and report.attention.keys() == {"nki (torch)"}
    assert [use.function for use in report.buckets] == ["decode", "prefill"]


def test_a_model_that_buckets_would_make_wrong_takes_the_stock_path(tmp_path, ids, mask):
    config = GPTNeoConfig(
        vocab_size=320, hidden_size=48, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=8, max_position_embeddings=256, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    path = save(GPTNeoForCausalLM, config, tmp_path)
    plain = GPTNeoForCausalLM.from_pretrained(path)
    with pytest.warns(UserWarning, match="no effect"):
        model = GPTNeoForCausalLM.from_pretrained(path, device_map="neuron", neuron_config=options())
    arguments = {"do_sample": False, "pad_token_id": 0}
    with pytest.warns(UserWarning, match="self check"):
        found = generate(model, ids, mask, **arguments)
    assert torch.equal(found, generate(plain, ids, mask, **arguments))
    assert {row["kind"] for row in ont.report(model).departures} == {"attention", "stock_path"}
    with pytest.raises(ValueError, match="self check"):
        ont.prepare(model, options(), verify=True)


def test_growing_past_a_cache_bucket_keeps_the_tokens(plain, tiny_llama, ids, mask):
    config = options(cache=[16, 32], overflow="grow")
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=config)
    first = generate(model, ids, mask, do_sample=False, max_new_tokens=3, return_dict_in_generate=True)
    assert isinstance(first.cache, BucketCache) and first.cache.rows == 16
    longer = torch.cat([mask, torch.ones(3, 3, dtype=mask.dtype)], 1)
    arguments = {"do_sample": False, "max_new_tokens": 30}
    found = generate(model, first.sequences, longer, cache=first.cache, **arguments)
    assert torch.equal(found, generate(plain, first.sequences, longer, **arguments))
    assert any(use.function == "grow" for use in ont.report(model).buckets)


def test_scores_logits_and_streamer_see_true_shapes(plain, model, ids, mask):
    class Lengths(TextStreamer):
        def __init__(self):
            self.shapes, self.ended = [], False

        def put(self, value):
            self.shapes.append(tuple(value.shape))

        def end(self):
            self.ended = True

    arguments = {"do_sample": False, "output_logits": True, "output_scores": True, "return_dict_in_generate": True}
    streams = Lengths(), Lengths()
    one = ids[1:2], mask[1:2]
    found = generate(model, *one, streamer=streams[0], **arguments)
    expected = generate(plain, *one, streamer=streams[1], **arguments)
    assert streams[0].shapes == streams[1].shapes and streams[0].ended
    for ours, theirs in zip(found.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_direct_calls_return_true_shapes_on_the_device(plain, model, ids, mask):
    with torch.no_grad():
        expected = plain(ids, attention_mask=mask).logits
        output = model(ids.to("neuron"), attention_mask=mask.to("neuron"))
        assert output.logits.shape == expected.shape and output.logits.device.type == "neuron"
        output.logits.view(-1, 320)
        torch.testing.assert_close(output.logits.cpu()[mask.bool()], expected[mask.bool()], rtol=1e-5, atol=1e-5)
        token = expected[:, -1:].argmax(-1)
        longer = torch.cat([mask, torch.ones(3, 1, dtype=mask.dtype)], 1)
        again = model(token, attention_mask=longer, cache=output.cache).logits
        whole = plain(torch.cat([ids, token], 1), attention_mask=longer).logits
        torch.testing.assert_close(again, whole[:, -1:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "dynamic"}, "cache_implementation='dynamic'"),
    ],
)
def test_what_buckets_do_not_serve_takes_the_stock_path_and_says_why(plain, tiny_llama, ids, mask, arguments, reason):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=options())
    arguments = {"do_sample": False, "max_new_tokens": 3, **arguments}
    with pytest.warns(UserWarning, match=reason):
        found = generate(model, ids, mask, **arguments)
    expected = generate(plain, ids, mask, **arguments)
    found, expected = (x if isinstance(x, torch.Tensor) else x.sequences for x in (found, expected))
    assert torch.equal(found.cpu(), expected)
    with ont.strict("stock_path"), pytest.raises(RuntimeError, match=f"strict 'stock_path'.*{reason}"):
        generate(model, ids, mask, **arguments)


def test_after_an_interrupted_call_the_next_one_is_right(plain, model, ids, mask):
    class Raises(TextStreamer):
        def __init__(self, error):
            self.error, self.left = error, 3

        def put(self, value):
            self.left -= 1
            if self.left == 0:
                raise self.error

        def end(self):
            pass

    for error in (KeyboardInterrupt(), OSError("pipe closed")):
        with pytest.raises(type(error)):
            generate(model, ids[1:2], mask[1:2], streamer=Raises(error), do_sample=False)
        found = generate(model, ids, mask, do_sample=False)
        assert torch.equal(found, generate(plain, ids, mask, do_sample=False))


def test_two_threads_share_a_model(plain, model, ids, mask):
    inputs = [(ids, mask), (ids[:1, 5:], mask[:1, 5:])]
    results = [None, None]

    def work(index: int) -> None:
        results[index] = [
            model.generate(inputs[index][0], attention_mask=inputs[index][1], max_new_tokens=9, do_sample=False)
            for _ in range(4)
        ]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (some_ids, some_mask), found in zip(inputs, results, strict=True):
        expected = plain.generate(some_ids, attention_mask=some_mask, max_new_tokens=9, do_sample=False)
        assert all(torch.equal(each, expected) for each in found)


def test_no_length_reaches_the_device_after_warmup(tiny_llama):
    config = options(batch=[1, 2], sequence=[16, 32])
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=config)
    steps = ont.warmup(model, progress=False)
    assert len(steps) == 4
    before = ont.report(model)
    for length in (2, 9, 17, 31):
        for rows in (1, 2):
            for device in ("cpu", "neuron"):
                some = torch.randint(5, 300, (rows, length))
                for strategy in ("greedy", "sampling"):
                    generate(model, some, torch.ones_like(some), device, **STRATEGIES[strategy])
                generate(model, some, torch.ones_like(some), device, num_beams=2 // rows, do_sample=False)
                generate(model, some.int(), torch.ones_like(some, dtype=torch.bool), device, do_sample=False)
    after = ont.report(model)
    assert (after.graphs, after.cached, after.eager_signatures) == (
        before.graphs,
        before.cached,
        before.eager_signatures,
    )


def test_an_overflow_of_a_list_is_refused_with_the_sizes(model):
    long = torch.randint(5, 300, (1, 40))
    with pytest.raises(ValueError, match=r"sequence 40 .*largest bucket 32 of \[16, 32\].*overflow='grow'"):
        model.generate(long, max_new_tokens=2)
    with pytest.raises(ValueError, match=r"cache 72 .*64"):
        model.generate(long[:, :12], max_new_tokens=60)


def prompt_cache(model, ids, mask, **arguments):
    """Continues one prompt's cache twice, by hand and by generate()."""
    output = model(ids, attention_mask=mask, use_cache=True, **arguments)
    token = output.logits[:, -1:].argmax(-1).cpu()
    longer = torch.cat([mask, mask[:, -1:]], 1)
    shared = [copy.deepcopy(output.cache) for _ in range(2)]
    again = model(token, attention_mask=longer, cache=output.cache).logits.argmax(-1).cpu()
    whole = torch.cat([ids, token], 1)
    return [again, *(generate(model, whole, longer, cache=cache, do_sample=False) for cache in shared)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("arguments", [{}, {"output_hidden_states": True}], ids=str)
def test_the_cache_of_a_direct_call_serves_later_calls(plain, model, ids, mask, mode, arguments):
    with mode():
        found = prompt_cache(model, ids, mask, **arguments)
    with torch.no_grad():
        expected = prompt_cache(plain, ids, mask, **arguments)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("return_dict", [True, False])
def test_direct_calls_return_what_the_model_returns(plain, model, ids, mode, return_dict):
    with mode():
        found, expected = (x(ids, output_hidden_states=True, return_dict=return_dict) for x in (model, plain))
    assert type(found) is type(expected) and len(found) == len(expected)
    if return_dict:
        assert list(found) == list(expected)
        assert found.logits.requires_grad == expected.logits.requires_grad
    states = (x.hidden_states if return_dict else x[2] for x in (found, expected))
    for ours, theirs in zip(*states, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


def test_a_cache_is_of_one_model(model, tiny_llama, ids):
    other = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=options())
    with torch.no_grad():
        cache = model(ids).cache
        with pytest.raises(ValueError, match="another prepared LlamaForCausalLM"):
            other(ids[:, :1], cache=cache)
        with pytest.raises(ValueError, match="cache=DynamicCache"):
            ont.unprepare(other)(ids[:, :1].to("neuron"), cache=cache)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize(
    "arguments",
    [
        lambda plain: {"prompt_lookup_num_tokens": 3},
        lambda plain: {"assistant_model": copy.deepcopy(plain)},
        lambda plain: {"assistant_model": copy.deepcopy(plain), "do_sample": True},
    ],
    ids=["prompt lookup", "assistant", "assistant, sampling"],
)
def test_assisted_decoding(plain, model, ids, device, arguments):
    prompt = ids[:1, :4].repeat(1, 3)
    arguments = {"do_sample": False, **arguments(plain)}
    found, expected = (
        generate(x, prompt, torch.ones_like(prompt), where, **arguments)
        for x, where in ((model, device), (plain, "cpu"))
    )
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_prompts_of_embeddings(plain, model, ids, mask, device):
    embeddings = plain.get_input_embeddings()(ids).detach()
    arguments = {"max_new_tokens": 6, "do_sample": False}
    found = model.generate(inputs_embeds=embeddings.to(device), attention_mask=mask.to(device), **arguments)
    assert torch.equal(found.cpu(), plain.generate(inputs_embeds=embeddings, attention_mask=mask, **arguments))


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_autocast(plain, model, ids, mask, dtype):
    results = []
    for device, some in (("neuron", model), ("cpu", plain)):
        with torch.autocast(device, dtype), torch.no_grad():
            results.append(some(ids, attention_mask=mask).logits.float()[mask.bool()])
    torch.testing.assert_close(*results, rtol=0.05, atol=0.05)
    exact = generate(model, ids, mask, do_sample=False)
    assert torch.equal(exact, generate(plain, ids, mask, do_sample=False))


@pytest.mark.parametrize(
    "compile_it", [lambda m: m.compile(), lambda m: setattr(m, "forward", torch.compile(m.forward))]
)
def test_a_forward_the_user_compiled_is_the_one_that_runs(plain, tiny_llama, ids, mask, compile_it):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=options())
    compile_it(model)
    with pytest.warns(UserWarning, match="compiled by the caller"):
        found = generate(model, ids, mask, do_sample=False, max_new_tokens=2)
    assert torch.equal(found, generate(plain, ids, mask, do_sample=False, max_new_tokens=2))
