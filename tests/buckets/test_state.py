"""The state of a module: what changes a graph changes the digest, what does not leaves it; both at once and later."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from optimum_neuron_torch.buckets.state import ModuleState, describe
from tests.tiny_models import TINY


def make() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, eos_token_id=2, **TINY)).eval()


def _hook(module, args):
    return None


def _add_adapter(model):
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(target_modules=["q_proj"], r=2), model)


def _swap_storage(model, change):
    weight = model.model.layers[1].mlp.up_proj.weight
    weight.data = change(weight.data)


CHANGES = {
    "an entry of the configuration": lambda m: setattr(m.config, "rms_norm_eps", 1e-3),
    "a nested entry, edited in place": lambda m: m.config.rope_parameters.update(rope_theta=5.0),
    "the attention implementation": lambda m: m.set_attn_implementation("eager"),
    "another vocabulary": lambda m: m.resize_token_embeddings(325),
    "another dtype": lambda m: m.to(torch.bfloat16),
    "another dtype of one weight": lambda m: _swap_storage(m, torch.Tensor.bfloat16),
    "another size of one weight": lambda m: _swap_storage(m, lambda w: w[:5]),
    "another layout of one weight": lambda m: _swap_storage(m, lambda w: w.t().contiguous().t()),
    "an adapter": _add_adapter,
    "training mode": lambda m: m.train(),
    "training mode of one layer": lambda m: m.model.layers[1].train(),
    "an attribute of one layer": lambda m: setattr(m.model.layers[1].self_attn, "scaling", 0.5),
    "a new attribute": lambda m: setattr(m.model.layers[1], "extra", 1),
    "a hook": lambda m: m.model.layers[1].register_forward_pre_hook(_hook),
    "a layer less": lambda m: m.model.layers.__delitem__(1),
    "a layer replaced": lambda m: m.model.layers[1].__setattr__("mlp", torch.nn.Identity()),
    "a forward of its own": lambda m: setattr(m.model.norm, "forward", _hook),
    "one weight less to train": lambda m: m.model.norm.weight.requires_grad_(False),
    "weights tied": lambda m: setattr(m.model.layers[0].mlp.up_proj, "weight", m.model.layers[0].mlp.gate_proj.weight),
    "a buffer": lambda m: m.model.register_buffer("extra", torch.zeros(3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_a_graph_changes_the_state(change):
    model = make()
    state = ModuleState(model)
    before = state.digest()
    change(model)
    assert state.digest() != before
    assert state.digest() == ModuleState(model).digest()


def test_other_weights_and_other_objects_have_the_same_state():
    torch.manual_seed(1)
    model = make()
    state = ModuleState(model)
    before = state.digest()
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    model.load_state_dict(make().state_dict())
    model.generation_config.max_new_tokens = 7
    model.config.name_or_path = "somewhere/else"
    assert state.digest() == before == ModuleState(copy.deepcopy(model)).digest()


def test_a_change_taken_back_is_the_state_from_before():
    model = make()
    state = ModuleState(model)
    before = state.digest()
    model.config.rms_norm_eps, kept = 1e-3, model.config.rms_norm_eps
    assert state.digest() != before
    model.config.rms_norm_eps = kept
    assert state.digest() == before


@pytest.mark.parametrize("value", [object(), lambda: 1, torch.nn.ReLU(), {1, 2}, slice(3), {"a": [torch.zeros(2)]}])
def test_descriptions_hold_no_addresses(value):
    assert " at 0x" not in repr(describe(value))
