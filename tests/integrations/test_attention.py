"""Which attention a prepared model gets."""

import contextlib
import copy
from collections import Counter

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    DeepseekV4Config,
    DeepseekV4ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

import optimum_neuron_torch as ont
from optimum_neuron_torch.buckets.notes import counting
from optimum_neuron_torch.report import StrictError
from tests.tiny_models import TINY


def test_a_model_that_does_more_for_sdpa_keeps_it():
    """Sparse attention is part of the mask only for attentions that the model's own code knows by name."""
    torch.manual_seed(0)
    config = DeepseekV32Config(
        vocab_size=99, hidden_size=32, intermediate_size=37, moe_intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32,
        index_topk=3, index_n_heads=2, index_head_dim=32, first_k_dense_replace=1, max_position_embeddings=64,
    )  # fmt: skip
    model = DeepseekV32ForCausalLM(config).eval()
    ids = torch.randint(5, 99, (2, 12))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with pytest.warns(UserWarning, match="'sdpa' is kept"):
            model = ont.prepare(model, ont.NeuronConfig(options={"executor": "aten", "lowering": "off"}))
        found = model(ids, use_cache=False).logits.cpu()
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


WIDE = {**TINY, "hidden_size": 288, "num_attention_heads": 1, "num_hidden_layers": 1}


@pytest.mark.parametrize("compile", ["model", False])
def test_what_no_kernel_takes_is_reported_and_can_be_forbidden(compile):
    """In a graph it is noted when that is traced, and again when it is loaded."""
    torch.manual_seed(0)
    plain, ids = BertModel(BertConfig(**WIDE)).eval(), torch.randint(5, 300, (1, 8))
    expected = plain(ids).last_hidden_state

    def prepared(**settings):
        settings = {"compile": compile, "verify": False, "nki": "simulate", **settings}
        return ont.prepare(copy.deepcopy(plain).to("neuron"), ont.NeuronConfig(**settings))

    for _ in range(2):
        model = prepared()
        with pytest.warns(UserWarning, match="no kernel takes it .head size 288 above 256."):
            torch.testing.assert_close(model(ids).last_hidden_state.cpu(), expected, rtol=1e-5, atol=1e-5)
        assert [departure["kind"] for departure in ont.report(model).departures].count("attention") == 1
        with pytest.raises(StrictError, match="head size 288"):
            prepared(strict=("attention",))(ids)


def test_a_model_whose_masks_are_of_another_form_keeps_its_attention():
    """Compressed attention adds its own columns to a mask of numbers; attention "nki" gets masks of truth values."""
    torch.manual_seed(0)
    config = DeepseekV4Config(
        vocab_size=99, hidden_size=32, moe_intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, head_dim=16, q_lora_rank=16, o_lora_rank=16, o_groups=2, n_routed_experts=4,
        num_experts_per_tok=2, sliding_window=8, index_n_heads=2, index_head_dim=16,
        index_topk=3, max_position_embeddings=64, layer_types=["compressed_sparse_attention"] * 2,
    )  # fmt: skip
    model = DeepseekV4ForCausalLM(config).eval()
    ids = torch.randint(5, 99, (2, 12))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        model = ont.prepare(model, ont.NeuronConfig(options={"executor": "aten", "lowering": "off"}))
        with pytest.warns(UserWarning, match="attention 'nki' changes logits"):
            found = model(ids, use_cache=False).logits.cpu()
    assert model.config._attn_implementation == "eager"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


SMALL = {"vocab_size": 64, "num_heads": 2, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "dropout_rate": 0.0}
LEARNED = {
    "bias of positions": (
        lambda: SwitchTransformersForConditionalGeneration(
            SwitchTransformersConfig(
                num_decoder_layers=1, num_experts=2, num_sparse_encoder_layers=0, num_sparse_decoder_layers=0,
                router_jitter_noise=0.0, decoder_start_token_id=0, **SMALL,
            )
        ),
        "relative_attention_bias",
    ),
    "sinks": (
        lambda: GptOssForCausalLM(
            GptOssConfig(
                vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=4,
            )
        ),
        "sinks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", ["torch", "kernels"])
@pytest.mark.parametrize("kind", LEARNED)
def test_what_attention_adds_to_scores_is_learned(kind, where):
    """Gradients of a bias of positions and of sinks, on padded rows, against Transformers' own attention."""
    make, parameter = LEARNED[kind]
    torch.manual_seed(0)
    model = make().eval()
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    def gradients(attention: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.set_attn_implementation(attention)
        model.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected_loss, expected = gradients("eager")
    with (
        counting(Counter()) as paths,
        ont.nki.simulation() if where == "kernels" else contextlib.nullcontext([]) as runs,
    ):
        loss, found = gradients("nki")
    assert all(path.startswith("nki") for path in paths)
    assert bool(runs) == (where == "kernels")
    assert any(parameter in name for name in found)
    assert found.keys() == expected.keys()
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_weights_are_those_of_the_attention_that_is_chosen(tiny_llama, ids, attention):
    """And of the one before "nki", which keeps none: reported."""
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama, attn_implementation=attention)
    model = ont.prepare(copy.deepcopy(plain), ont.NeuronConfig(compile=False, verify=False))
    asked = {"output_attentions": True, "use_cache": False}
    with torch.no_grad(), pytest.warns(UserWarning, match=f"'nki' does not keep: '{attention}' attends"):
        found, expected = model(ids, **asked).attentions, plain(ids, **asked).attentions
    assert len(found) == len(expected) == (2 if attention == "eager" else 0)
    departures = ont.report(model).departures
    assert len(departures) == 1 and ("set_attn_implementation('eager')" in str(departures)) == (attention != "eager")
    for one in (model, plain):
        one.set_attn_implementation("eager")
    with torch.no_grad():
        found, expected = model(ids, **asked).attentions, plain(ids, **asked).attentions
    assert len(found) == 2 and model.config._attn_implementation == "eager"
    assert ont.report(model).departures == departures
    torch.testing.assert_close([one.cpu() for one in found], list(expected), rtol=1e-5, atol=1e-5)
