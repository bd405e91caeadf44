"""Whisper's own generate() in buckets against the CPU's: short form, long form, warm-up."""

import copy

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

import optimum_neuron_torch as ont


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=1821, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=50, init_std=0.3,
        max_target_positions=64, decoder_start_token_id=300, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        suppress_tokens=None, begin_suppress_tokens=None, median_filter_width=3,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    generation = model.generation_config
    generation.lang_to_id = {"<|en|>": 301, "<|de|>": 302}
    generation.task_to_id = {"transcribe": 303, "translate": 304}
    generation.is_multilingual, generation.no_timestamps_token_id = True, 319
    generation.max_initial_timestamp_index, generation.prev_sot_token_id = 50, 305
    generation.alignment_heads, generation.max_length = [[0, 0], [1, 1]], None
    return model


@pytest.fixture(scope="module")
def model(plain):
    buckets = ont.Buckets(batch=[1, 4, 16], sequence=[16, 32], cache=[64])
    # Steps as they are, not compiled: what differs between the cases is the loop.
    config = ont.NeuronConfig(buckets=buckets, compile=False)
    with pytest.warns(UserWarning, match="no effect"):
        return ont.prepare(copy.deepcopy(plain).to("neuron"), config)


CASES = {
    "language and task": {"language": "de", "task": "translate"},
    "languages found": {},
    "timestamps": {"return_timestamps": True},
    "prompt": {"language": "en", "prompt_ids": torch.tensor([305, 7, 8, 9])},
    "beams": {"language": "en", "num_beams": 3},
    "samples": {"language": "en", "num_return_sequences": 2, "do_sample": True, "temperature": 0.7},
    "token timestamps": {"language": "en", "return_token_timestamps": True},
    "fallback": {
        "language": "en", "temperature": (0.0, 0.4), "logprob_threshold": -1.0, "compression_ratio_threshold": 1.2,
        "no_speech_threshold": 0.6, "return_timestamps": True,
    },
}  # fmt: skip


def generate(model, features, device, **arguments):
    torch.manual_seed(0)
    arguments = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    found = model.generate(features.to(device), max_new_tokens=10, **arguments)
    return found if isinstance(found, dict) else {"sequences": found}


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("case", CASES)
def test_short_form(plain, model, case, device):
    features = torch.randn(3, 16, 100, generator=torch.Generator().manual_seed(1))
    expected, found = (generate(m, features, d, **CASES[case]) for m, d in ((plain, "cpu"), (model, device)))
    assert found.keys() == expected.keys() and found["sequences"].device.type == device
    for name in expected:
        if isinstance(expected[name], torch.Tensor):
            torch.testing.assert_close(found[name].cpu(), expected[name])
    assert {row["kind"] for row in ont.report(model).departures} == {"attention"}


def test_long_form_with_a_batch_that_shrinks(plain, model):
    features = torch.randn(2, 16, 330, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 330, dtype=torch.long)
    mask[1, 210:] = 0
    arguments = {"attention_mask": mask, "language": "en", "return_timestamps": True, "condition_on_prev_tokens": True}
    expected = generate(plain, features, "cpu", **arguments)["sequences"]
    assert torch.equal(generate(model, features, "neuron", **arguments)["sequences"].cpu(), expected)


def test_the_returned_cache_is_transformers_own(plain, model):
    features = torch.randn(3, 16, 100, generator=torch.Generator().manual_seed(1))
    arguments = {"language": "en", "return_dict_in_generate": True, "output_scores": True}
    expected, found = (generate(m, features, "cpu", **arguments) for m in (plain, model))
    assert type(found["cache"]) is type(expected["cache"])
    for side in ("self_attention_cache", "cross_attention_cache"):
        for ours, theirs in zip(
            getattr(found["cache"], side).layers, getattr(expected["cache"], side).layers, strict=True
        ):
            torch.testing.assert_close(ours.keys, theirs.keys, rtol=0, atol=1e-5 * theirs.keys.abs().max().item())


def test_after_warm_up_there_are_no_new_graphs(plain):
    config = ont.NeuronConfig(
        buckets=ont.Buckets(batch=[4], sequence=[16], cache=[64]), options={"executor": "aten", "lowering": "off"}
    )
    with pytest.warns(UserWarning, match="no effect"):
        model = ont.prepare(copy.deepcopy(plain).to("neuron"), config)
    # Of one language: its decoder starts from one token.
    model.generation_config.is_multilingual = False
    del model.generation_config.lang_to_id, model.generation_config.task_to_id
    del model.generation_config.no_timestamps_token_id
    ont.warmup(model, progress=False)
    before = ont.report(model)
    features = torch.randn(3, 16, 100, generator=torch.Generator().manual_seed(1))
    found = model.generate(features, max_new_tokens=6)
    after = ont.report(model)
    assert found.shape[0] == 3
    assert after.graphs + after.cached == before.graphs + before.cached == 4
