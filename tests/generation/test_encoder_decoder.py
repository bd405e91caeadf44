"""generate() of encoder-decoders in buckets against stock generate() on the CPU, on tiny models."""

import copy

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

import optimum_neuron_torch as ont


BART = {
    "vocab_size": 320, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "init_std": 0.3,
}  # fmt: skip
FAMILIES = {
    "T5": (
        T5ForConditionalGeneration,
        lambda: T5Config(
            vocab_size=320, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0,
            pad_token_id=0, eos_token_id=2,
        ),
    ),
    "BART": (BartForConditionalGeneration, lambda: BartConfig(**BART)),
    "Marian": (MarianMTModel, lambda: MarianConfig(**BART)),
    "Pegasus": (PegasusForConditionalGeneration, lambda: PegasusConfig(**BART)),
}  # fmt: skip


def options(**buckets) -> ont.NeuronConfig:
    sizes = {"batch": [1, 4, 16], "sequence": [16, 32], "encoder_sequence": [16, 32], "cache": [64], **buckets}
    return ont.NeuronConfig(buckets=ont.Buckets(**sizes), options={"executor": "aten", "lowering": "off"})


@pytest.fixture(scope="module", params=["T5", *(pytest.param(n, marks=pytest.mark.slow) for n in list(FAMILIES)[1:])])
def pair(request):
    """(plain on the CPU, prepared on neuron), of the same weights."""
    model_class, config = FAMILIES[request.param]
    torch.manual_seed(0)
    plain = model_class(config()).eval()
    with pytest.warns(UserWarning, match="no effect"):
        model = ont.prepare(copy.deepcopy(plain).to("neuron"), options())
    return plain, model


@pytest.fixture
def ids() -> torch.Tensor:
    ids = torch.randint(5, 300, (3, 11), generator=torch.Generator().manual_seed(0))
    ids[0, 7:] = 0
    return ids


STRATEGIES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "two of three beams": {"num_beams": 3, "num_return_sequences": 2, "do_sample": False},
    "beam sampling": {"num_beams": 2, "do_sample": True},
    "penalties": {
        "do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2,
        "min_new_tokens": 4, "forced_eos_token_id": 2,
    },
}  # fmt: skip


def generate(model, ids, device="cpu", **arguments):
    torch.manual_seed(0)
    inputs = {"input_ids": ids.to(device), "attention_mask": (ids != 0).long().to(device)}
    return model.generate(
        **inputs, **{"max_new_tokens": 8, "return_dict_in_generate": True, "output_logits": True, **arguments}
    )


def assert_same(found, expected) -> None:
    assert torch.equal(found.sequences.cpu(), expected.sequences)
    assert len(found.logits) == len(expected.logits)
    for ours, theirs in zip(found.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tokens_and_logits_equal_the_cpus(pair, ids, strategy, device):
    plain, model = pair
    found = generate(model, ids, device, **STRATEGIES[strategy])
    assert found.sequences.device.type == device
    assert_same(found, generate(plain, ids, **STRATEGIES[strategy]))
    assert {row["kind"] for row in ont.report(model).departures} == {"attention"}


def test_decoding_is_one_graph_per_bucket(pair, ids):
    plain, model = pair
    fresh = copy.deepcopy(model)
    for length in (11, 9, 16):
        prompt = ids[:, :length] if length < 12 else torch.cat([ids, ids[:, :5]], 1)
        assert_same(generate(fresh, prompt, max_new_tokens=40), generate(plain, prompt, max_new_tokens=40))
    report = ont.report(fresh)
    assert [use.function for use in report.buckets] == ["decode", "encode", "first"]
    assert {row["kind"] for row in report.departures} == {"attention"}
    assert report.graphs + report.cached == 3


@pytest.mark.parametrize("beams", [1, 2])
def test_attentions_and_hidden_states_have_true_sizes(ids, beams):
    torch.manual_seed(0)
    plain = BartForConditionalGeneration(BartConfig(**BART, attn_implementation="eager")).eval()
    config = ont.NeuronConfig(buckets=options().buckets, attn_implementation=None, compile=False)
    model = ont.prepare(copy.deepcopy(plain).to("neuron"), config)
    ids[0, 7:] = 9  # positions that the mask hides have other values
    arguments = {"output_attentions": True, "output_hidden_states": True, "num_beams": beams, "do_sample": False}
    found, expected = (generate(m, ids, **arguments) for m in (model, plain))
    assert_same(found, expected)
    assert ont.report(model).departures == []
    decoders = ("decoder_attentions", "cross_attentions", "decoder_hidden_states")
    for name in (*decoders, "encoder_attentions", "encoder_hidden_states"):
        ours, theirs = (torch.utils._pytree.tree_leaves(getattr(output, name)) for output in (found, expected))
        assert [x.shape for x in ours] == [x.shape for x in theirs]
        for x, y in zip(ours, theirs, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-5 * y.abs().max().item())


def test_direct_calls_return_a_cache_that_goes_on(ids):
    torch.manual_seed(0)
    plain = BartForConditionalGeneration(BartConfig(**BART)).eval()
    with pytest.warns(UserWarning, match="no effect"):
        model = ont.prepare(
            copy.deepcopy(plain).to("neuron"), ont.NeuronConfig(buckets=options().buckets, compile=False)
        )
    results = []
    for called, device in ((plain, "cpu"), (model, "neuron")):
        inputs = {"input_ids": ids.to(device), "attention_mask": (ids != 0).long().to(device)}
        with torch.no_grad():
            first = called(**inputs, decoder_input_ids=ids[:, :5].to(device))
            then = called(**inputs, decoder_input_ids=ids[:, 5:6].to(device), cache=first.cache)
        assert set(first) == {"logits", "cache", "encoder_last_hidden_state"}
        assert then.cache.get_seq_length() == 6 and then.logits.device.type == device
        results.append((first.logits, first.encoder_last_hidden_state, then.logits))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())
