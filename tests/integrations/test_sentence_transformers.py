"""SentenceTransformer and CrossEncoder through prepare(): results, graphs, eager signatures."""

import copy
import random

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

import optimum_neuron_torch as ont
from examples.packaged_models import minilm
from optimum_neuron_torch.integrations.modules import prepared_of
from tests.tiny_models import TINY


CONFIG = ont.NeuronConfig(
    buckets=ont.Buckets(batch=[8], sequence=[32, 128]), options={"executor": "aten", "lowering": "off"}
)


def texts(count):
    chance = random.Random(0)
    words = "a small brown cat plays the guitar while nobody listens to markets that fall and rise".split()
    return [" ".join(chance.choices(words, k=chance.randint(1, 60))) for _ in range(count)]


def tiny_model(model_class, directory, **settings):
    """A tiny BERT with MiniLM's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(0)
    model_class(BertConfig(**{**TINY, "vocab_size": len(tokenizer)}, **settings)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def prepared(model_class, directory):
    plain, model = (model_class(directory, device=device) for device in ("cpu", "neuron"))
    assert ont.prepare(model, CONFIG) is model
    ont.warmup(model, progress=False)
    return model, plain


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    directory = tiny_model(BertModel, tmp_path_factory.mktemp("tiny"))
    transformer = Transformer(directory)
    chain = [transformer, Pooling(transformer.get_embedding_dimension()), Dense(48, 20), Normalize()]
    SentenceTransformer(modules=chain, device="cpu").save(directory + "-sentence")
    return prepared(SentenceTransformer, directory + "-sentence")


@pytest.mark.slow
def test_minilm():
    test_a_hundred_texts_add_neither_graphs_nor_eager_signatures(prepared(SentenceTransformer, str(minilm())))


def test_a_hundred_texts_add_neither_graphs_nor_eager_signatures(encoders):
    model, plain = encoders
    before = ont.report(model)
    found, expected = (m.encode(texts(100), batch_size=8, normalize_embeddings=True) for m in (model, plain))
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    after = ont.report(model)
    assert after.departures == [] and {use.function for use in after.buckets} == {"encode"}
    assert after.graphs + after.cached == before.graphs + before.cached == 2
    assert after.eager_signatures == before.eager_signatures


def test_results_of_all_kinds(encoders):
    model, plain = encoders
    for arguments in ({"convert_to_tensor": True}, {"output_value": "token_embeddings"}, {"output_value": None}):
        found, expected = (m.encode(texts(9), batch_size=8, **arguments) for m in (model, plain))
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            x, y = (each["sentence_embedding"] if isinstance(each, dict) else each for each in (x, y))
            assert x.device.type == "neuron" and x.shape == y.shape
            torch.testing.assert_close(x.cpu(), y, rtol=0, atol=1e-5 * max(1.0, y.abs().max().item()))
    one, other = (m.encode("a cat", truncate_dim=16) for m in (model, plain))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    features = plain.preprocess(texts(3))
    assert model(copy.deepcopy(features))["sentence_embedding"].device.type == "neuron"


def test_it_can_be_taken_back(encoders):
    model = copy.deepcopy(encoders[0])
    assert prepared_of(model) is not None and prepared_of(encoders[0]) is not prepared_of(model)
    ont.unprepare(model)
    assert prepared_of(model) is None and "encode" not in vars(model)
    with pytest.raises(ValueError, match="not prepared"):
        ont.report(model)


def test_cross_encoders(tmp_path):
    model, plain = prepared(CrossEncoder, tiny_model(BertForSequenceClassification, tmp_path, num_labels=1))
    before = ont.report(model)
    pairs = list(zip(texts(20), reversed(texts(20)), strict=True))
    found, expected = (m.predict(pairs, batch_size=8) for m in (model, plain))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    ranked, others = (m.rank("a cat", texts(5)) for m in (model, plain))
    assert [each["corpus_id"] for each in ranked] == [each["corpus_id"] for each in others]
    after = ont.report(model)
    assert after.departures == [] and after.graphs + after.cached == before.graphs + before.cached == 2
    assert after.eager_signatures == before.eager_signatures
