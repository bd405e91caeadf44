"""all-MiniLM-L6-v2 on neuron against plain Transformers on the CPU: embeddings, graphs, eager signatures."""

import random

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import optimum_neuron_torch as ont
from examples.packaged_models import minilm
from model_tests.parity import assert_close


BUCKETS = ont.Buckets(batch=[1, 4], sequence=[16, 64, 256])
MORE_BUCKETS = ont.Buckets(batch=[1, 4, 16], sequence=[16, 64, 128, 256])


@pytest.fixture(scope="module")
def plain():
    return AutoModel.from_pretrained(minilm())


def on_neuron(buckets: ont.Buckets):
    config = ont.NeuronConfig(buckets=buckets, options={"executor": "aten"})
    return AutoModel.from_pretrained(minilm(), device_map="neuron", neuron_config=config)


@pytest.fixture(scope="module")
def embedder():
    return on_neuron(BUCKETS)


def ragged_batches(sentences: int, largest: int) -> list[dict[str, torch.Tensor]]:
    """Batches of 1 to `largest` sentences of 1 to 250 tokens, short ones as frequent as long ones."""
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    chance = random.Random(0)
    vocabulary = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    texts = [" ".join(chance.choices(vocabulary, k=int(248 ** chance.random()))) for _ in range(sentences)]
    batches = []
    while texts:
        size = chance.randint(1, largest)
        batch, texts = texts[:size], texts[size:]
        batches.append(dict(tokenizer(batch, padding=True, truncation=True, max_length=250, return_tensors="pt")))
    # One token only: no special tokens around it.
    return [*batches, dict(tokenizer(["word"], add_special_tokens=False, return_tensors="pt"))]


def test_embeddings_of_60_sentences_equal_the_cpus(plain, embedder):
    assert_embeddings_are_equal(plain, embedder, ragged_batches(60, largest=4))


@pytest.mark.slow
def test_embeddings_of_200_sentences_equal_the_cpus(plain):
    assert_embeddings_are_equal(plain, on_neuron(MORE_BUCKETS), ragged_batches(200, largest=16))


def assert_embeddings_are_equal(plain, embedder, batches: list[dict[str, torch.Tensor]]) -> None:
    """And after warm-up no batch adds a graph or a signature."""
    ont.warmup(embedder)
    before = ont.report(embedder)
    for index, batch in enumerate(batches):
        on_device = {name: tensor.to("neuron") for name, tensor in batch.items()}
        with torch.no_grad() if index % 2 else torch.inference_mode():
            expected, found = plain(**batch), embedder(**on_device)
        assert found.last_hidden_state.shape == expected.last_hidden_state.shape
        assert found.last_hidden_state.is_contiguous() and found.last_hidden_state.device.type == "neuron"
        real = batch["attention_mask"].bool()
        assert_close(found.last_hidden_state.cpu()[real], expected.last_hidden_state[real])
        assert_close(found.pooler_output, expected.pooler_output)
    after = ont.report(embedder)
    assert after.graphs + after.cached == before.graphs + before.cached <= len(after.buckets)
    assert after.eager_signatures == before.eager_signatures
    assert after.departures == []


def test_it_finds_the_sentence_that_means_the_same(embedder):
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    sentences = ["A man is playing a guitar.", "Someone makes music on a string instrument.", "The stock market fell."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = embedder(**batch).last_hidden_state.cpu()
    vectors = torch.nn.functional.normalize((hidden * batch["attention_mask"][..., None]).sum(1))
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > 0.4 > 0.2 > far


def test_a_sentence_above_the_largest_bucket_is_refused_with_the_sizes(embedder):
    ids = torch.ones(1, 300, dtype=torch.long)
    with pytest.raises(ValueError, match=r"(?s)sequence 300 .*256.*overflow='grow'"), torch.no_grad():
        embedder(input_ids=ids)


def test_gradients_in_eval_mode(plain, embedder):
    batch = ragged_batches(3, largest=4)[0]
    gradients = []
    for model in (plain, embedder):
        model.zero_grad()
        model(**batch).pooler_output.sum().backward()
        gradients.append(model.pooler.dense.weight.grad.cpu())
    assert_close(gradients[1], gradients[0])
