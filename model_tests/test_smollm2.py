"""SmolLM2-135M-Instruct on neuron against plain Transformers on the CPU: tokens, graphs, padding."""

import contextlib

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import optimum_neuron_torch as ont
from examples.packaged_models import smollm2
from model_tests.parity import assert_bfloat16


NEW_TOKENS = 32
WORDS = (
    "the quick brown fox jumps over a lazy dog while seven old clocks strike noon in the quiet harbour town ".split()
)
# Content lengths in tokens, shuffled, spread evenly over their logarithm.
LENGTHS = [3, 140, 12, 34, 7, 300, 5, 70, 20, 4, 200, 9, 48, 15, 110, 6, 28, 90, 3, 250, 11, 58, 24, 170]
SEQUENCES = [48, 64, 96, 128, 192, 256, 384]
# Three beams of three rows are nine.
BUCKETS = ont.Buckets(batch=[1, 4, 9], sequence=SEQUENCES, cache=[416])
STRATEGIES = {
    "greedy": {},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_k": 50},
    "beams": {"num_beams": 3},
}


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(smollm2())
    tokenizer.padding_side = "left"
    return tokenizer


@pytest.fixture(scope="module")
def plain():
    return AutoModelForCausalLM.from_pretrained(smollm2())


@pytest.fixture(scope="module")
def chat():
    config = ont.NeuronConfig(buckets=BUCKETS, options={"executor": "aten"})
    return AutoModelForCausalLM.from_pretrained(smollm2(), device_map="neuron", neuron_config=config)


def prompt_of(tokenizer, length: int) -> str:
    """A user turn of `length` tokens in the chat template."""
    words = " ".join(WORDS[(index * 7 + length) % len(WORDS)] for index in range(length))
    content = tokenizer.decode(tokenizer(words)["input_ids"][:length])
    turn = [{"role": "user", "content": content}]
    return tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)


def batches_of(tokenizer, lengths: list[int], size: int) -> list[dict[str, torch.Tensor]]:
    texts = [prompt_of(tokenizer, length) for length in lengths]
    groups = [texts[start : start + size] for start in range(0, len(texts), size)]
    return [dict(tokenizer(group, return_tensors="pt", padding=True, add_special_tokens=False)) for group in groups]


def generate(model, batch: dict[str, torch.Tensor], device: str = "cpu", **options) -> torch.Tensor:
    torch.manual_seed(0)
    inputs = {name: tensor.to(device) for name, tensor in batch.items()}
    output = model.generate(**inputs, max_new_tokens=NEW_TOKENS, **{"do_sample": False, **options})
    assert output.device.type == device
    return output.cpu()


# Beams take graphs of another batch; those of small models are compared in tests/generation.
@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("strategy", ["greedy", "sampling", pytest.param("beams", marks=pytest.mark.slow)])
def test_tokens_equal_the_cpus(plain, chat, tokenizer, strategy, device):
    (batch,) = batches_of(tokenizer, [5], 1)
    options = STRATEGIES[strategy]
    assert torch.equal(generate(chat, batch, device, **options), generate(plain, batch, **options))


def test_it_knows_the_capital_of_france(chat, tokenizer):
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt")
    output = chat.generate(**inputs, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text == "The capital of France is Paris."


def test_bfloat16_logits_stay_as_close_as_the_cpus(plain, tokenizer):
    batch = batches_of(tokenizer, [3, 12, 25], 3)[0]
    cpu = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.bfloat16)
    config = ont.NeuronConfig(buckets=BUCKETS, options={"executor": "aten"})
    neuron = AutoModelForCausalLM.from_pretrained(
        smollm2(), dtype=torch.bfloat16, device_map="neuron", neuron_config=config
    )
    first = {"max_new_tokens": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    exact, ours, theirs = (model.generate(**batch, **first).logits[0].float() for model in (plain, neuron, cpu))
    assert_bfloat16(ours, theirs, exact)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_warmup_24_prompts_add_nothing(plain, chat, tokenizer):
    """Each prompt alone and in uneven batches, by each strategy: the CPU's tokens, no new graph, no new signature."""
    ont.warmup(chat)
    before = ont.report(chat)
    singles, threes = batches_of(tokenizer, LENGTHS, 1), batches_of(tokenizer, LENGTHS, 3)
    for batch in singles + threes:
        expected = generate(plain, batch)
        for device in ("cpu", "neuron"):
            assert torch.equal(generate(chat, batch, device), expected), batch["input_ids"].shape
    for batch in singles + threes:
        for strategy in ("sampling", "beams"):
            options = STRATEGIES[strategy]
            assert torch.equal(generate(chat, batch, **options), generate(plain, batch, **options)), strategy
    for mode in (torch.no_grad, torch.inference_mode, contextlib.nullcontext):
        with mode():
            generate(chat, singles[0])
    after = ont.report(chat)
    assert after.graphs + after.cached == before.graphs + before.cached
    assert after.eager_signatures == before.eager_signatures
    assert after.departures == []

    prefills = [use for use in after.buckets if use.function == "prefill"]
    assert len({use.bucket["block"] for use in prefills}) >= 4
    lengths = [batch["input_ids"].shape[1] for batch in singles]
    bucketed = sum(next(size for size in SEQUENCES if size >= length) for length in lengths)
    assert bucketed <= 0.5 * len(lengths) * max(lengths), (bucketed, len(lengths) * max(lengths))
