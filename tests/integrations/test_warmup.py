"""warmup(): what it lists, what it refuses, and that it leaves the model as it was."""

import copy
import itertools

import pytest
import torch
from diffusers import UNet2DModel
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

import optimum_neuron_torch as ont
from optimum_neuron_torch import runtime
from optimum_neuron_torch.buckets.manifest import Manifest
from tests.tiny_models import save


CONFIG = ont.NeuronConfig(options={"executor": "aten", "lowering": "off"})


@pytest.fixture(scope="module")
def model(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=CONFIG)


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        (None, [(1, 32, 256), (1, 64, 256), (1, 128, 256), (1, 256, 256)]),
        (ont.Buckets(batch=[2], sequence=[16], cache=[32, 64]), [(2, 32, 256)]),
        (ont.Buckets(sequence=[300], cache=ont.Growth(256, None)), [(1, 512, 512)]),
    ],
    ids=str,
)
def test_what_it_would_compile(model, buckets, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))  # where nothing is known of the model
    steps = ont.warmup(model, buckets, dry_run=True)
    assert [tuple(step.bucket[axis] for axis in ("batch", "sequence", "cache")) for step in steps] == expected


def test_automatic_axes_are_what_the_model_has_met(tiny_bert, tmp_path, monkeypatch):
    """In any process: another object of the same model knows of them."""
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    for shape in ((3, 40), (1, 7)):
        model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG)
        with torch.no_grad():
            model(torch.ones(shape, dtype=torch.long))
    met = [{"batch": 1, "sequence": 32}, {"batch": 4, "sequence": 64}]
    assert [step.bucket for step in ont.warmup(model, dry_run=True)] == met
    batches = ont.NeuronConfig(buckets=ont.Buckets(batch=[2, 8]), options=CONFIG.options)
    listed = ont.prepare(model, batches)
    sizes = [tuple(step.bucket.values()) for step in ont.warmup(listed, dry_run=True)]
    assert sizes == [(2, 32), (2, 64), (8, 32), (8, 64)]  # smallest first


@pytest.mark.parametrize(
    ("buckets", "error", "message"),
    [
        ({"batch": [1]}, TypeError, "expected Buckets"),
        (ont.Buckets(seqence=[64]), ValueError, r"unknown bucket axes \['seqence'\]"),
    ],
)
def test_bad_input(model, buckets, error, message):
    with pytest.raises(error, match=message):
        ont.warmup(model, buckets)


def test_buckets_that_do_not_fit_together_are_nothing_to_do(model):
    with pytest.warns(UserWarning, match="no combination of buckets"):
        assert ont.warmup(model, ont.Buckets(sequence=[64], cache=[32])) == []


def test_pictures_have_no_known_size(tmp_path):
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
    )
    path = save(ViTForImageClassification, config, tmp_path)
    model = ViTForImageClassification.from_pretrained(path, device_map="neuron", neuron_config=CONFIG)
    with pytest.warns(UserWarning, match="pixel_values.*once per bucket"):
        assert ont.warmup(model) == []


def test_a_model_in_training_mode_is_warmed_and_stays_so(tiny_bert, ids):
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG).train()
    ont.warmup(model, ont.Buckets(batch=[4], sequence=[16]), progress=False)
    assert model.training
    assert [use.bucket for use in ont.report(model).buckets] == [{"batch": 4, "sequence": 32}]


NAMED = ont.Buckets(batch=[1, 2], sequence=[16, 32], cache=[64])
LISTED = ont.NeuronConfig(buckets=NAMED, options=CONFIG.options)


def loaded(path, config=LISTED, **arguments):
    return AutoModelForCausalLM.from_pretrained(path, device_map="neuron", neuron_config=config, **arguments)


def states(model, *arguments, **options) -> list[str]:
    return [step.state for step in ont.warmup(model, *arguments, **{"dry_run": True, **options})]


def test_a_dry_run_says_what_is_cached_and_touches_nothing(tiny_llama, tmp_path, monkeypatch):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    model = loaded(tiny_llama)
    before = ont.report()
    assert states(model) == ["missing"] * 4
    assert [step.seconds for step in ont.warmup(model, dry_run=True)] == [None] * 4
    after = ont.report()
    assert [getattr(after, what) - getattr(before, what) for what in ("graphs", "eager_signatures", "copies")] == [
        0
    ] * 3
    made = ont.warmup(model, ont.Buckets(batch=[1], sequence=[16, 32], cache=[64]), progress=False)
    assert [(step.state, step.bucket["sequence"]) for step in made] == [("compiled", 16), ("compiled", 32)]
    assert states(model) == ["ready", "ready", "missing", "missing"]

    again = loaded(tiny_llama)  # as another process would
    before = ont.report()
    steps = ont.warmup(again, dry_run=True)
    assert [step.state for step in steps] == ["cached", "cached", "missing", "missing"]
    assert all((step.seconds or 0) > 0 for step in steps[:2]) and steps[2].seconds is None
    assert (ont.report().cached, ont.report().graphs) == (before.cached, before.graphs)
    assert [step.state for step in ont.warmup(again, progress=False)] == ["loaded", "loaded", "compiled", "compiled"]
    assert [step.state for step in ont.warmup(again, progress=False)] == ["ready"] * 4


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda model: model.to(torch.bfloat16), id="dtype"),
        *(
            pytest.param(change, id=name, marks=pytest.mark.slow)
            for name, change in {
                "attention": lambda model: model.set_attn_implementation("eager"),
                "vocabulary": lambda model: model.resize_token_embeddings(400),
                "threads": lambda model: torch.set_num_threads(torch.get_num_threads() + 1),
            }.items()
        ),
    ],
)
def test_what_is_cached_for_another_state_is_missing(tiny_bert, tmp_path, monkeypatch, change):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    one = ont.Buckets(batch=[1], sequence=[32])
    ont.warmup(AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG), one, progress=False)
    model, threads = (
        AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG),
        torch.get_num_threads(),
    )
    assert states(model, one) == ["cached"]
    try:
        change(model)
        assert states(model, one) == ["missing"]
        assert [step.state for step in ont.warmup(model, one, progress=False)] == ["compiled"], "and missing it was"
    finally:
        torch.set_num_threads(threads)


def test_a_deleted_or_damaged_cache_is_missing(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    one = ont.Buckets(batch=[1], sequence=[32])
    ont.warmup(AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG), one, progress=False)
    stored = next((tmp_path / "graphs").glob("*/artifacts/*/*"))
    stored.unlink()
    assert states(AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG), one) == ["missing"]


def test_exactly_what_is_named_is_compiled(tiny_llama, tmp_path, monkeypatch):
    """Smallest first, and what the manifest then lists is what the steps said."""
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    model = loaded(tiny_llama)
    sizes = [tuple(step.bucket.values()) for step in ont.warmup(model, progress=False)]
    assert sizes == [(1, 16, 64), (1, 32, 64), (2, 16, 64), (2, 32, 64)]
    compiled = {(entry.function, *entry.bucket.values()) for entry in Manifest(model).graphs()}
    prefills = {("prefill", rows, block, 64, 1) for rows in (1, 2) for block in (16, 32)}
    assert compiled == prefills | {("decode", 1, 1, 64, 1), ("decode", 2, 1, 64, 1), ("gather", 2, 2, 64)}


@pytest.mark.parametrize("gradients", [False, True])
def test_one_graph_serves_no_grad_and_inference_mode_and_another_gradients(tiny_bert, ids, gradients):
    config = ont.NeuronConfig(buckets=ont.Buckets(batch=[4], sequence=[16]), options=CONFIG.options)
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=config)
    steps = ont.warmup(model, progress=False, gradients=gradients)
    assert [step.gradients for step in steps] == [False, True][: 1 + gradients]
    assert states(model, gradients=True) == ["ready", "ready" if gradients else "missing"]
    assert all(parameter.grad is None for parameter in model.parameters())
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    before = ont.report(model)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            model(**inputs)
    assert ont.report(model).graphs == before.graphs
    model(**inputs).pooler_output.sum().backward()
    new = ont.report(model).graphs - before.graphs
    assert new == 0 if gradients else new > 0
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_an_encoder_decoder_is_warm_for_greedy_search_and_beams():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=320, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_decoder_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    plain = T5ForConditionalGeneration(config).eval()
    buckets = ont.Buckets(batch=[2], encoder_sequence=[16], cache=[16])
    with pytest.warns(UserWarning, match="no effect"):
        model = ont.prepare(copy.deepcopy(plain), ont.NeuronConfig(buckets=buckets, options=CONFIG.options))
    (step,) = ont.warmup(model, progress=False)
    assert step.bucket == {"batch": 2, "encoder_sequence": 16, "cache": 16}
    assert states(model) == ["ready"]
    before = ont.report(model)
    ids = torch.randint(5, 300, (2, 9))
    for device, arguments in itertools.product(("cpu", "neuron"), ({}, {"num_beams": 2})):
        rows = 2 // arguments.get("num_beams", 1)
        given = {"attention_mask": torch.ones_like(ids[:rows]), "max_new_tokens": 6, "do_sample": False, **arguments}
        found = model.generate(ids[:rows].to(device), **given)
        assert found.device.type == device and torch.equal(found.cpu(), plain.generate(ids[:rows], **given))
    after = ont.report(model)
    facts = ("graphs", "cached", "eager_signatures")
    assert [getattr(after, fact) for fact in facts] == [getattr(before, fact) for fact in facts]


@pytest.mark.slow
def test_gradients_of_a_model_that_generates(tiny_llama, ids):
    model = loaded(tiny_llama)
    steps = ont.warmup(model, ont.Buckets(batch=[2], sequence=[16], cache=[64]), progress=False, gradients=True)
    assert [(step.function, step.gradients) for step in steps] == [("encode", True), ("generate", False)]
    before = ont.report(model).graphs
    model(ids[:2], use_cache=False).logits.sum().backward()
    assert ont.report(model).graphs == before


def test_the_bar_says_what_is_left(tiny_bert, capfd):
    config = ont.NeuronConfig(buckets=ont.Buckets(batch=[1], sequence=[16, 32]), options=CONFIG.options)
    ont.warmup(AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=config))
    shown = capfd.readouterr().err
    assert "compiling BertModel" in shown and "left" in shown and "2/2" in shown
    assert "encode, batch 1, sequence 32: " in shown


def test_graphs_run_their_compiled_programs_after_it(tiny_bert, capfd):
    """By default graphs are interpreted at first: warming up is what ends that."""
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron")
    ont.warmup(model, ont.Buckets(batch=[1], sequence=[16]))
    assert runtime.pending_compilations() == 0
    (record,) = [record for record in runtime.graph_records() if record["model_name"] == ont.report(model).name]
    assert record["executor"] == "inductor"
    assert "compiling kernels" in capfd.readouterr().err


def test_a_model_elsewhere_is_refused(tiny_bert):
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG).to("cpu")
    with pytest.raises(ValueError, match="is on cpu"):
        ont.warmup(model, progress=False)
    assert not model.training and isinstance(model, torch.nn.Module)


def test_a_model_at_exact_shapes_has_no_buckets():
    unet = UNet2DModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 16), down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"), norm_num_groups=4,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"UNet2DModel runs at exact shapes.*once at the sizes"):
        ont.warmup(ont.prepare(unet.eval(), CONFIG))
