"""Transformers pipelines end on neuron, prepared; never on the CPU without a word."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

import optimum_neuron_torch as ont


@pytest.fixture(scope="module")
def classifier(tiny_classifier):
    words = "[PAD] [UNK] the cat sat on mat a dog ran".split()
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        tiny_classifier
    )
    return tiny_classifier


TEXTS = ["the cat sat", "a dog ran on the mat", "cat"]
CONFIG = ont.NeuronConfig(
    buckets=ont.Buckets(batch=[4], sequence=[8]), options={"executor": "aten", "lowering": "off"}
)


def scores(pipe) -> list[float]:
    return [row["score"] for row in pipe(TEXTS, batch_size=3)]


@pytest.mark.parametrize(
    ("make", "device"),
    [
        (lambda path: transformers.pipeline("text-classification", path), "neuron:0"),
        (lambda path: transformers.pipeline("text-classification", path, device=1), "neuron:1"),
        (lambda path: transformers.pipeline("text-classification", path, device="neuron"), "neuron:0"),
        (lambda path: transformers.pipeline("text-classification", path, device_map="auto"), "neuron:0"),
        (lambda path: ont.pipeline("text-classification", path), "neuron:0"),
        (lambda path: ont.pipeline("text-classification", path, device_map="neuron:2"), "neuron:2"),
        (lambda path: ont.pipeline("text-classification", path, neuron_config=CONFIG), "neuron:0"),
    ],
)
def test_they_end_on_neuron_with_the_cpus_scores(classifier, make, device):
    pipe = make(classifier)
    assert str(pipe.model.device) == device and "_neuron_prepared" in vars(pipe.model)
    expected = scores(transformers.pipeline("text-classification", classifier, device="cpu"))
    assert scores(pipe) == pytest.approx(expected, abs=1e-5)
    assert ont.report(pipe).buckets


@pytest.mark.parametrize("device", ["cpu", -1, torch.device("cpu")])
def test_the_cpu_is_what_one_can_ask_for(classifier, device):
    pipe = transformers.pipeline("text-classification", classifier, device=device)
    assert pipe.model.device.type == "cpu" and "_neuron_prepared" not in vars(pipe.model)
    with pytest.raises(ValueError, match=r"no neuron device.*transformers.pipeline"):
        ont.pipeline("text-classification", classifier, device=device)


def test_a_model_that_is_there_already_stays(classifier):
    model = AutoModelForSequenceClassification.from_pretrained(classifier, device_map="neuron:1", neuron_config=CONFIG)
    tokenizer = transformers.AutoTokenizer.from_pretrained(classifier)
    pipe = ont.pipeline("text-classification", model, tokenizer=tokenizer)
    assert pipe.model is model and str(model.device) == "neuron:1"
    assert pipe.model.__dict__["_neuron_prepared"].config == CONFIG
