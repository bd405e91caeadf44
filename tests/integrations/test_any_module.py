"""Buckets of modules of any kind: nested inputs and outputs, axes of the user's own, losses, refusals."""

import copy

import pytest
import torch
import torch.utils._pytree as pytree
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    T5Config,
    T5EncoderModel,
)

import optimum_neuron_torch as ont
from tests.tiny_models import TINY


OPTIONS = {"executor": "aten", "lowering": "off"}


def prepared(module, buckets=None, **settings):
    """A copy that runs in buckets, uncompiled: what is tested is padding and cutting."""
    config = ont.NeuronConfig(buckets=buckets, compile=False, options=OPTIONS, **settings)
    return ont.prepare(copy.deepcopy(module), config)


def assert_same(found, expected):
    (found, found_tree), (expected, expected_tree) = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert found_tree == expected_tree
    for x, y in zip(found, expected, strict=True):
        if not isinstance(y, torch.Tensor):
            assert x == y and type(x) is type(y)
            continue
        assert x.shape == y.shape
        scale = max(1.0, y.abs().max().item())
        torch.testing.assert_close(x.detach().cpu(), y.detach(), rtol=0, atol=1e-5 * scale)


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.layer = torch.nn.Embedding(50, 4), torch.nn.Linear(4, 3)

    def forward(self, batch, extras, *rest, scale=1.0):
        mask = batch["attention_mask"]
        hidden = self.layer(self.tokens(batch["ids"])) * mask[..., None] * scale
        pooled = hidden.sum(1) / mask.sum(1, keepdim=True)
        return {
            "hidden": hidden,
            "pooled": [pooled + extras[0], (extras[1][0],)],
            "count": 3,
            "router": hidden.reshape(-1, 3),
            "rest": list(rest),
        }


class PerToken(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x).relu()


class LargestOfFrames(PerToken):
    def forward(self, x):
        return self.layer(x).amax(1) - x.amax(1, keepdim=True).sum(-1)


class Strided(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv1d(4, 5, 3, stride=2), torch.nn.Conv1d(5, 6, 2, stride=3)

    def forward(self, x):
        return self.second(self.first(x))


class TwoLengths(PerToken):
    def forward(self, x, y):
        return self.layer(x), self.layer(y)


def nested_call(batch, length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 + 1 :] = 0
    ids = torch.randint(0, 50, (batch, length))
    return ({"ids": ids, "attention_mask": mask}, [torch.rand(batch, 3), (torch.rand(7),)], torch.rand(batch, 2))


@pytest.mark.parametrize("sizes", [(3, 5), (5, 5), (2, 9), (3, 3), (7, 7)])
def test_nested_inputs_and_outputs(sizes):
    plain = Nested().eval()
    model = prepared(plain)
    arguments = nested_call(*sizes)
    assert_same(model(*arguments, scale=2.0), plain(*arguments, scale=2.0))
    report = ont.report(model)
    assert report.departures == [] and [use.bucket["batch"] for use in report.buckets] == [
        2 ** (sizes[0] - 1).bit_length()
    ]


FRAMES = ont.Buckets(frames=[16, 64])


@pytest.mark.parametrize(
    ("module", "shape"),
    [(PerToken, lambda b, s: (b, s, 4)), (Strided, lambda b, s: (b, 4, s))],
    ids=["per frame", "strides"],
)
def test_an_axis_that_is_found(module, shape):
    plain = module().eval()
    model = prepared(plain, FRAMES)
    for sizes in ((3, 11), (11, 11), (2, 60), (4, 17)):
        x = torch.randn(shape(*sizes))
        assert_same(model(x), plain(x))
    report = ont.report(model)
    assert {use.bucket["frames"] for use in report.buckets} == {16, 64} and report.departures == []
    with pytest.raises(ValueError, match=r"frames 65 .* 64 of \[16, 64\]"):
        model(torch.randn(shape(2, 65)))


def test_an_axis_that_cannot_be_found_is_named_by_the_user():
    plain = TwoLengths().eval()
    x, y = torch.randn(3, 5, 4), torch.randn(3, 9, 4)
    with pytest.raises(ValueError, match=r"'frames'.* cannot be found \(2 are open\).*dims="):
        prepared(plain, FRAMES)(x, y)
    model = prepared(plain, ont.Buckets(frames=[16], dims={"y": {1: "frames"}}))
    assert_same(model(x, y), plain(x, y))
    (use,) = ont.report(model).buckets
    assert use.bucket == {"batch": 4, "frames": 16}


def test_what_depends_on_the_pads_runs_at_its_own_size_along_that_axis():
    plain = LargestOfFrames().eval()
    model = prepared(plain, ont.Buckets(frames=[16], dims={"x": {1: "frames"}}))
    x = -torch.rand(3, 5, 4)
    with pytest.warns(UserWarning, match="frames is not padded: padding changes output 0"):
        assert_same(model(x), plain(x))
    assert [use.bucket for use in ont.report(model).buckets] == [{"batch": 4, "frames": 5}]
    with pytest.raises(ValueError, match="padding changes output 0"):
        prepared(plain, ont.Buckets(frames=[16], dims={"x": {1: "frames"}}), verify="raise")(x)


def test_the_batch_in_another_dimension():
    plain = torch.nn.MultiheadAttention(8, 2).eval()
    x = torch.randn(6, 3, 8)
    model = prepared(plain, ont.Buckets(dims={name: {1: "batch"} for name in ("query", "key", "value")}))
    assert_same(model(x, x, x), plain(x, x, x))
    assert [use.bucket for use in ont.report(model).buckets] == [{"batch": 4}]


def test_bad_axes():
    bert = BertModel(BertConfig(**TINY)).eval()
    with pytest.raises(ValueError, match=r"unknown bucket axes \['seqence'\].*'sequence'"):
        prepared(bert, ont.Buckets(seqence=[64]))
    with pytest.raises(ValueError, match="dims name the axes"):
        ont.Buckets(dims={"x": {1: "frames"}})
    with pytest.raises(ValueError, match="expected a dict"):
        ont.Buckets(frames=[4], dims={"x": "frames"})


def test_axes_and_dims_are_saved_and_loaded(tmp_path):
    buckets = ont.Buckets(batch=[2], frames=ont.Growth(4, 64), overflow="grow", dims={"x": {1: "frames"}})
    config = ont.NeuronConfig(buckets=buckets)
    config.save_pretrained(tmp_path)
    loaded = ont.NeuronConfig.from_pretrained(tmp_path)
    assert loaded == config and loaded.buckets.dims == {"x": {1: "frames"}}


@pytest.mark.parametrize("labels", [1, 3], ids=["regression", "classes"])
def test_losses_of_rows(labels, ids):
    plain = BertForSequenceClassification(BertConfig(**TINY, num_labels=labels)).eval()
    model = prepared(plain)
    targets = torch.rand(3) if labels == 1 else torch.tensor([0, 2, 1])
    with torch.no_grad():
        assert_same(model(ids, labels=targets), plain(ids, labels=targets))
    (use,) = ont.report(model).buckets
    assert use.bucket["sequence"] == 32 and use.bucket["batch"] == (3 if labels == 1 else 4)
    reasons = [
        departure["reason"] for departure in ont.report(model).departures if departure["kind"] == "exact_shapes"
    ]
    assert all("batch is not padded" in reason for reason in reasons) and len(reasons) == (labels == 1)


def test_losses_of_tokens_and_their_gradients(ids, mask):
    plain = BertForTokenClassification(BertConfig(**TINY, num_labels=5)).eval()
    model = prepared(plain)
    labels = (ids % 5).masked_fill(mask == 0, -100)
    found, expected = (m(ids, attention_mask=mask, labels=labels) for m in (model, plain))
    assert_same(found.loss, expected.loss)
    for loss in (found.loss, expected.loss):
        loss.backward()
    for x, y in zip(model.parameters(), plain.parameters(), strict=True):
        if y.grad is not None:
            torch.testing.assert_close(x.grad.cpu(), y.grad, rtol=1e-4, atol=1e-5)


def test_a_second_owner_finds_the_layout_on_disk(ids, tmp_path, monkeypatch):
    from optimum_neuron_torch.buckets import finder

    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    plain = BertModel(BertConfig(**TINY)).eval()
    assert_same(prepared(plain)(ids), plain(ids))

    def find(self):
        raise AssertionError("found out again")

    monkeypatch.setattr(finder.Finder, "find", find)
    assert_same(prepared(plain)(ids[:2, :7]), plain(ids[:2, :7]))


class CountsTokens(BertModel):
    """A model that padding changes, whatever its mask says."""

    def forward(self, input_ids=None, attention_mask=None, **further):
        output = super().forward(input_ids, attention_mask, **further)
        return {"hidden": output.last_hidden_state / input_ids.shape[1]}


def test_a_text_model_that_padding_changes_is_refused_at_once_on_request(ids):
    plain = CountsTokens(BertConfig(**TINY)).eval()
    with pytest.raises(ValueError, match="CountsTokens: padding changes output 0"):
        ont.prepare(copy.deepcopy(plain), ont.NeuronConfig(compile=False), verify=True)
    ont.prepare(BertModel(BertConfig(**TINY)), ont.NeuronConfig(compile=False), verify=True)
    with pytest.warns(UserWarning, match="sequence is not padded"):
        assert_same(prepared(plain)(ids), plain(ids))


class OtherwiseAboveForty(BertModel):
    """A model that takes another way above some length, as sparse attention does."""

    def forward(self, input_ids=None, attention_mask=None, **further):
        output = super().forward(input_ids, attention_mask, **further)
        return {"hidden": output.last_hidden_state * (2 if input_ids.shape[1] > 40 else 1)}


def test_a_model_that_computes_otherwise_above_some_length():
    plain = OtherwiseAboveForty(BertConfig(**TINY)).eval()
    model = prepared(plain)
    for length in (11, 36, 50):
        ids = torch.randint(5, 300, (2, length))
        with torch.no_grad():
            assert_same(model(ids), plain(ids))
    (departure,) = ont.report(model).departures
    assert "in bucket {'sequence': 64} padding changes output 0" in departure["reason"] and departure["calls"] == 2


def test_the_smallest_bucket_is_checked_with_texts_of_one_token(ids):
    """A row that is masked throughout is the mean of all positions: it would differ in every bucket."""
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2}
    plain = T5EncoderModel(T5Config(vocab_size=320, **sizes)).eval()
    model = prepared(plain, ont.Buckets(batch=[2], sequence=[16]), attn_implementation=None)
    ids, mask = ids[:2, :9], torch.ones(2, 9, dtype=torch.long)
    with torch.no_grad():
        assert_same(model(ids, attention_mask=mask), plain(ids, attention_mask=mask))
    assert ont.report(model).departures == []


def test_packed_sequences_are_told_by_positions_alone(tiny_llama):
    """Positions that start anew, without a mask: each sequence sees itself alone."""
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(
        tiny_llama, device_map="neuron", neuron_config=ont.NeuronConfig(options=OPTIONS)
    )
    ids, positions = torch.arange(5, 12)[None], torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad():
        expected = plain(ids[:, 3:], use_cache=False).logits
        with pytest.warns(UserWarning, match="packed sequences"):
            found = model(ids, position_ids=positions, use_cache=False).logits.cpu()
    torch.testing.assert_close(found[:, 3:], expected, rtol=1e-5, atol=1e-5)
