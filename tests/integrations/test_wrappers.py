"""prepare() on what contains a Transformers model: PEFT, any module."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoModelForCausalLM

import optimum_neuron_torch as ont
from optimum_neuron_torch.integrations.modules import prepared_of


CONFIG = ont.NeuronConfig(options={"executor": "aten", "lowering": "off"})


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
