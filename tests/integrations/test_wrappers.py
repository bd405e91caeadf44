"""prepare() on what contains a Transformers model: SentenceTransformer, PEFT, any module."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM

import optimum_neuron_torch as ont
from examples.packaged_models import minilm
from optimum_neuron_torch.integrations.modules import prepared_of


CONFIG = ont.NeuronConfig(options={"executor": "aten", "lowering": "off"})


def test_sentence_transformers_run_in_buckets():
    texts = ["a cat", "the quick brown fox jumps over the lazy dog " * 6, "x"]
    plain = SentenceTransformer(str(minilm()), device="cpu")
    model = SentenceTransformer(str(minilm()), device="neuron")
    assert ont.prepare(model, CONFIG) is model and prepared_of(model) is None
    found, expected = (torch.from_numpy(some.encode(texts)) for some in (model, plain))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    report = ont.report(model)
    assert report.departures == [] and {use.function for use in report.buckets} == {"encode"}
    ont.unprepare(model)
    with pytest.raises(ValueError, match="not prepared"):
        ont.report(model)


def test_adapters_around_a_model(tiny_llama, ids, mask):
    lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_llama), lora).eval()
    plain = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_llama), lora).eval()
    plain.load_state_dict(model.state_dict())
    ont.prepare(model, CONFIG)
    arguments = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(model.generate(**arguments), plain.generate(**arguments))
    assert {use.function for use in ont.report(model).buckets} == {"prefill", "decode"}


def test_a_model_deep_inside(tiny_bert, ids):
    inner = AutoModel.from_pretrained(tiny_bert)
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(inner)))
    ont.prepare(model, CONFIG)
    assert prepared_of(inner) is not None and prepared_of(model) is None
