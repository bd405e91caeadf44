"""Traffic that users of this and of neighbouring projects reported as slow or wrong: each test's docstring has the
symptom. Graphs never exceed the buckets touched, nothing is compiled after a warm-up, and results are the CPU's.
"""

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import optimum_neuron_torch as ont


OPTIONS = {"executor": "aten", "lowering": "off"}
TINY = {
    "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 640, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip


def config(**settings) -> ont.NeuronConfig:
    overflow = settings.pop("overflow", None)
    return ont.NeuronConfig(buckets=ont.Buckets(overflow=overflow, **settings), options=OPTIONS)


def llama(**settings) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, **{**TINY, **settings})).eval()


def on_neuron(plain: torch.nn.Module, **buckets) -> torch.nn.Module:
    return ont.prepare(copy.deepcopy(plain), config(**buckets))


def prompt(length: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, 300, (rows, length), generator=torch.Generator().manual_seed(seed))


def generate(model: torch.nn.Module, ids: torch.Tensor, new: int = 3, **arguments) -> torch.Tensor:
    arguments = {"attention_mask": torch.ones_like(ids), "do_sample": False, **arguments}
    return model.generate(ids, max_new_tokens=new, **arguments).cpu()


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    found, expected = found.detach().cpu().double(), expected.detach().double()
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * max(1.0, expected.abs().max())


def graphs_of(model: torch.nn.Module, function: str | None = None) -> int:
    """Graphs of the model in this process, compiled or loaded; of one function where it is named."""
    report = ont.report(model)
    assert report.departures == [], "nothing may leave the buckets"
    assert report.graphs + report.cached <= len(report.buckets), "graphs never exceed the buckets touched"
    if function is None:
        return report.graphs + report.cached
    return sum(use.function == function for use in report.buckets)


@contextmanager
def nothing_new(model: torch.nn.Module) -> Iterator[None]:
    """Within the block no graph and no eager signature appears, and no bucket is touched for the first time."""
    before = ont.report(model)
    yield
    after = ont.report(model)
    for fact in ("graphs", "cached", "eager_signatures"):
        assert getattr(after, fact) == getattr(before, fact), fact
    assert len(after.buckets) == len(before.buckets) and after.departures == before.departures


# ---- compilations ---------------------------------------------------------------------------------------------------


def test_prompts_of_many_lengths():
    """A graph for each prompt length (https://github.com/huggingface/transformers/issues/29151,
    https://github.com/huggingface/parler-tts/pull/89): 20 lengths up to 512 touch as many graphs as prefill buckets.
    """
    plain = llama()
    model = on_neuron(plain, batch=[1], sequence=[64, 128, 256, 512], cache=[520])
    chance = random.Random(0)
    lengths = [chance.randint(2, 512) for _ in range(20)]
    touched = {min(size for size in (64, 128, 256, 512) if size >= length) for length in lengths}
    for length in lengths:
        ids = prompt(length, seed=length)
        assert torch.equal(generate(model, ids), generate(plain, ids))
    assert graphs_of(model, "prefill") == len(touched) and graphs_of(model) == len(touched) + 1
    with nothing_new(model):
        for size in touched:
            generate(model, prompt(size - 1, seed=1))


def test_more_new_tokens_at_the_second_call():
    """The second call, with more new tokens, compiled again, or the first one's length was the limit
    (https://github.com/huggingface/transformers/issues/46424, https://github.com/huggingface/transformers/issues/30351).
    """
    plain, ids = llama(), prompt(7)
    model = on_neuron(plain, batch=[1], sequence=[16], cache=[128])
    generate(model, ids, new=16)
    with nothing_new(model):
        for new in (64, 8, 100):
            assert torch.equal(generate(model, ids, new), generate(plain, ids, new))


def test_chunked_prefill_twice():
    """The second call with prefill_chunk_size compiled again
    (https://github.com/huggingface/transformers/issues/46421).
    """
    plain, ids = llama(), prompt(23)
    model = on_neuron(plain, batch=[1], sequence=[32], cache=[64])
    assert torch.equal(generate(model, ids, prefill_chunk_size=4), generate(plain, ids))
    with nothing_new(model):
        generate(model, ids, prefill_chunk_size=4)


@pytest.mark.parametrize("ragged", [False, True], ids=["one row", "left-padded"])
def test_a_sliding_window_of_16_and_64_new_tokens(ragged):
    """A graph per token, since the window's length was a Python number
    (https://github.com/huggingface/transformers/issues/44609, https://github.com/tenstorrent/tt-xla/pull/3688).
    """
    torch.manual_seed(0)
    plain = MistralForCausalLM(MistralConfig(num_key_value_heads=1, sliding_window=16, **TINY)).eval()
    model = on_neuron(plain, batch=[2], sequence=[16], cache=[128])
    ids = prompt(9, rows=2)
    mask = torch.ones_like(ids)
    mask[0, : 4 * ragged] = 0
    found = generate(model, ids, 64, attention_mask=mask)
    assert torch.equal(found, generate(plain, ids, 64, attention_mask=mask))
    assert graphs_of(model, "decode") == 1 and graphs_of(model) == 2


def test_scoring_step_by_step_on_a_growing_cache():
    """A cache that grows at every step compiles at every step
    (https://github.com/huggingface/transformers/issues/37908).
    """
    plain, ids = llama(), prompt(40)
    model = on_neuron(plain, batch=[1], sequence=[16], cache=[64])
    with torch.no_grad():
        expected = plain(ids).logits
        found, cache = [], None
        for start in range(0, 40, 4):
            output = model(ids[:, start : start + 4], cache=cache, use_cache=True)
            found.append(output.logits.cpu())
            cache = output.cache
    assert_close(torch.cat(found, 1), expected)
    assert graphs_of(model) == 2  # the first four tokens, and every further four


def test_the_cache_is_larger_than_needed():
    """Zeros at the end of a static cache were attended to (https://github.com/huggingface/transformers/pull/30414)."""
    plain, ids = llama(), prompt(7)
    model = on_neuron(plain, batch=[1], sequence=[16], cache=[128])
    assert torch.equal(generate(model, ids, 25), generate(plain, ids, 25))


@pytest.mark.parametrize("high", [317, None])
def test_a_capacity_that_is_no_power_of_two(high):
    """The largest bucket was below the capacity, and what lay between compiled in silence
    (https://github.com/vllm-project/vllm/pull/16726).
    """
    plain = llama()
    model = on_neuron(plain, batch=[1], sequence=[16], cache=ont.Growth(64, high))
    for new in (20, 90, 250, 309):  # 7 + 309 tokens, of which the last is not stored
        ids = prompt(7, seed=new)
        assert torch.equal(generate(model, ids, new), generate(plain, ids, new))
    caches = [64, 128, 317] if high else [64, 128, 512]
    assert sorted({use.bucket["cache"] for use in ont.report(model).buckets}) == sorted(
        {*caches, high or 512, 64, 128}
    )
    with nothing_new(model):
        generate(model, prompt(7), 309)


# ---- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overflow", "sizes"), [("split", [4]), ("grow", [4]), ("grow", [2, 4])])
def test_batches_around_a_bucket_of_four(overflow, sizes):
    """ "Unable to pad input_ids ... dimension 0" for a batch that is not the compiled one
    (https://github.com/huggingface/optimum-neuron/issues/189,
    https://github.com/aws-neuron/aws-neuron-sdk/issues/613): batches of 1 to 7 in a stream.
    """
    torch.manual_seed(0)
    plain = BertForSequenceClassification(BertConfig(num_labels=3, **TINY)).eval()
    model = on_neuron(plain, batch=sizes, sequence=[16], overflow=overflow)
    with torch.no_grad():
        for rows in (1, 2, 5, 3, 7, 4, 6):
            ids = prompt(11, rows, seed=rows)
            assert_close(model(ids, attention_mask=torch.ones_like(ids)).logits, plain(ids).logits)
    assert graphs_of(model) == len(sizes) + (overflow == "grow")


def test_generation_for_batches_around_a_bucket_of_four():
    """The same stream through generate(), which does not run in parts: it grows, or refuses with the ways out."""
    plain = llama()
    model = on_neuron(plain, batch=[4], sequence=[16], cache=[32], overflow="grow")
    for rows in (1, 2, 5, 3, 7, 4, 6):
        ids = prompt(11, rows, seed=rows)
        assert torch.equal(generate(model, ids), generate(plain, ids))
    assert {use.bucket["batch"] for use in ont.report(model).buckets} == {4, 8}
    model = on_neuron(plain, batch=[4], sequence=[16], cache=[32], overflow="split")
    with pytest.raises(ValueError, match=r"batch 5 .*largest bucket 4 .*overflow='grow'"):
        generate(model, prompt(11, 5))
    assert torch.equal(generate(model, prompt(11, 3)), generate(plain, prompt(11, 3))), "and the next call is right"


def test_the_stored_graph_of_the_right_batch_is_taken(tmp_path, monkeypatch):
    """A server loaded what was compiled for another batch
    (https://github.com/huggingface/text-generation-inference/issues/3248).
    """
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    plain = llama()
    for rows in (1, 4):
        ont.warmup(on_neuron(plain, batch=[rows], sequence=[16], cache=[32]), progress=False)
    for rows in (4, 1):
        model = on_neuron(plain, batch=[rows], sequence=[16], cache=[32])
        ids = prompt(9, rows)
        assert torch.equal(generate(model, ids), generate(plain, ids))
        report = ont.report(model)
        assert report.graphs == 0 and report.cached == 2
        assert {use.bucket["batch"] for use in report.buckets} == {rows}


@pytest.mark.parametrize(
    ("buckets", "sizes"),
    [
        ({"sequence": [64]}, {64}),
        ({"sequence": [16, 48]}, {16, 48}),
        ({"sequence": ont.Growth(16, None)}, {16, 32, 64}),
        ({"sequence": [16], "overflow": "grow"}, {16, 32, 64}),
    ],
    ids=["fixed", "list", "growing", "a list that grows"],
)
def test_policies(buckets, sizes):
    """Pad to one maximum, to a list, or to buckets that grow: all were asked for
    (https://github.com/huggingface/optimum-habana/issues/423, https://github.com/huggingface/optimum-habana/pull/417,
    https://github.com/huggingface/optimum-habana/pull/392).
    """
    plain = llama()
    model = on_neuron(plain, batch=[1], cache=[128], **buckets)
    for length in (3, 16, 20, 40, 33):
        ids = prompt(length)
        assert torch.equal(generate(model, ids), generate(plain, ids))
    assert {use.bucket["block"] for use in ont.report(model).buckets if use.function == "prefill"} == sizes


# ---- results under padding ------------------------------------------------------------------------------------------


def test_a_row_that_is_almost_all_padding_is_finite():
    """Rows that attend to nothing gave NaN in half precision, and empty texts
    (https://github.com/unslothai/unsloth/pull/9848).
    """
    plain = llama().bfloat16()
    model = on_neuron(plain, batch=[4], sequence=[64], cache=[128])
    ids = prompt(50, rows=3)
    mask = torch.ones_like(ids)
    mask[1, :45] = 0
    arguments = {"attention_mask": mask, "return_dict_in_generate": True, "output_logits": True}
    output = model.generate(ids, max_new_tokens=4, do_sample=False, **arguments)
    assert output.sequences.shape == (3, 54)
    assert all(step.isfinite().all() for step in output.logits)
    with torch.no_grad():
        assert model(ids, attention_mask=mask).logits.isfinite().all()


def test_no_length_of_left_padding_changes_the_answer():
    """The answer flipped at padded lengths of 1 modulo 32
    (https://github.com/huggingface/transformers/issues/47651): 1 to 64 pads in front of seven tokens.
    """
    plain, ids = llama(), prompt(7)
    model = on_neuron(plain, batch=[1], sequence=[80], cache=[96])
    with torch.no_grad():
        expected = plain(ids).logits[:, -1]
    for pads in range(1, 65):
        padded = torch.nn.functional.pad(ids, (pads, 0))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (pads, 0))
        arguments = {"attention_mask": mask, "return_dict_in_generate": True, "output_logits": True}
        output = model.generate(padded, max_new_tokens=1, do_sample=False, **arguments)
        assert_close(output.logits[0], expected)
    assert graphs_of(model) == 1


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=["float32", "bfloat16"]
)
def test_batch_size_and_padding_change_logits_by_rounding_only(dtype, tolerance):
    """Logits differ with the batch size and the padding
    (https://github.com/huggingface/transformers/issues/26869, https://github.com/huggingface/transformers/issues/29029,
    https://github.com/huggingface/transformers/issues/29419): in float32 they do not, in bfloat16 by its rounding.
    """
    plain, ids = llama().to(dtype), prompt(11)
    with torch.no_grad():
        expected = copy.deepcopy(plain).float()(ids).logits
        for buckets in ({"batch": [1], "sequence": [11]}, {"batch": [8], "sequence": [64]}):
            model = on_neuron(plain, cache=[96], **buckets)
            assert_close(model(ids, use_cache=False).logits, expected, tolerance)


def test_alibi_is_not_moved_by_padding():
    """Bloom's outputs changed with padding (https://github.com/huggingface/transformers/issues/26380)."""
    torch.manual_seed(0)
    plain = BloomForCausalLM(BloomConfig(vocab_size=320, hidden_size=32, n_layer=1, n_head=2, pad_token_id=0)).eval()
    with pytest.warns(UserWarning, match="no effect"):
        model = on_neuron(plain, batch=[2], sequence=[80], cache=[96])
    ids = prompt(7)
    with torch.no_grad():
        expected = plain(ids).logits[:, -1]
    for pads in (0, 8, 64):
        padded = torch.nn.functional.pad(ids, (pads, 0))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (pads, 0))
        arguments = {"attention_mask": mask, "return_dict_in_generate": True, "output_logits": True}
        assert_close(model.generate(padded, max_new_tokens=1, do_sample=False, **arguments).logits[0], expected)


def test_no_pad_token_appears_in_the_answer():
    """Stray pad tokens, "!!!!", in the output (https://github.com/huggingface/optimum-habana/issues/1378): the pad
    token is 0, and wherever the CPU's answer has none ours has none.
    """
    plain, ids = llama(), prompt(7, rows=3)
    with torch.no_grad():
        plain.lm_head.weight[0] = 0  # never the best token
        plain.lm_head.weight[1:].abs_()
    model = on_neuron(plain, batch=[4], sequence=[16], cache=[64])
    found = generate(model, ids, 30)
    assert torch.equal(found, generate(plain, ids, 30))
    assert found.shape == (3, 37) and not (found == 0).any()


def test_uneven_prompts_in_a_batch_are_answered_as_alone():
    """Decoders padded on the wrong side for batches above one
    (https://github.com/huggingface/optimum-habana/pull/282).
    """
    plain = llama()
    model = on_neuron(plain, batch=[2], sequence=[16], cache=[32])
    short, long = prompt(4, seed=1), prompt(9, seed=2)
    both = torch.cat([torch.nn.functional.pad(short, (5, 0)), long])
    mask = torch.ones_like(both)
    mask[0, :5] = 0
    found = generate(model, both, 8, attention_mask=mask)
    assert torch.equal(found[0, 5:], generate(plain, short, 8)[0])
    assert torch.equal(found[1], generate(plain, long, 8)[0])


def test_seven_tokens_and_121_pads_of_bert():
    """Outputs of a padded BERT differ from PyTorch's
    (https://github.com/aws-neuron/aws-neuron-sdk/issues/376, https://github.com/aws-neuron/aws-neuron-sdk/issues/765,
    https://github.com/aws-neuron/aws-neuron-sdk/issues/244).
    """
    torch.manual_seed(0)
    plain, ids = BertForSequenceClassification(BertConfig(num_labels=3, **TINY)).eval(), prompt(7)
    model = on_neuron(plain, batch=[1], sequence=[128])
    padded, mask = (torch.nn.functional.pad(x, (0, 121)) for x in (ids, torch.ones_like(ids)))
    with torch.no_grad():
        expected = plain(ids).logits
        for arguments in ({"input_ids": ids}, {"input_ids": padded, "attention_mask": mask}):
            found = model(**arguments).logits.cpu()
            assert_close(found, expected)
            assert torch.nn.functional.cosine_similarity(found, expected).item() == pytest.approx(1, abs=1e-6)
    assert graphs_of(model) == 1


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_mask_with_holes(kind):
    """Fused attention took every mask for one of contiguous tokens
    (https://github.com/microsoft/onnxruntime/issues/18945).
    """
    torch.manual_seed(0)
    plain = llama() if kind == "decoder" else BertForSequenceClassification(BertConfig(num_labels=3, **TINY)).eval()
    model = on_neuron(plain, batch=[4], sequence=[16], cache=[32])
    ids = prompt(11, rows=3)
    mask = (torch.rand(3, 11, generator=torch.Generator().manual_seed(1)) > 0.4).long()
    mask[:, 0] = mask[:, -1] = 1
    assert 0 < mask.float().mean() < 1
    with torch.no_grad():
        found, expected = model(ids, attention_mask=mask).logits, plain(ids, attention_mask=mask).logits
    real = mask.bool() if kind == "decoder" else torch.ones(3, dtype=torch.bool)
    assert_close(found.cpu()[real], expected[real])
    if kind == "decoder":
        found = generate(model, ids, 5, attention_mask=mask)
        assert torch.equal(found, generate(plain, ids, 5, attention_mask=mask))
