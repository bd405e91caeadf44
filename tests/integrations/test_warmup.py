"""warmup(): what it lists, what it refuses, and that it leaves the model as it was."""

import pytest
import torch
from diffusers import UNet2DModel
from transformers import AutoModel, AutoModelForCausalLM, ViTConfig, ViTForImageClassification

import optimum_neuron_torch as ont
from optimum_neuron_torch import runtime
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
    assert [(bucket["batch"], bucket["sequence"], bucket["cache"]) for _, bucket in steps] == expected


def test_automatic_axes_are_what_the_model_has_met(tiny_bert, tmp_path, monkeypatch):
    """In any process: another object of the same model knows of them."""
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    for shape in ((3, 40), (1, 7)):
        model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG)
        with torch.no_grad():
            model(torch.ones(shape, dtype=torch.long))
    met = [{"batch": 1, "sequence": 32}, {"batch": 4, "sequence": 64}]
    assert [bucket for _, bucket in ont.warmup(model, dry_run=True)] == met
    batches = ont.NeuronConfig(buckets=ont.Buckets(batch=[2, 8]), options=CONFIG.options)
    listed = ont.prepare(model, batches)
    sizes = [tuple(bucket.values()) for _, bucket in ont.warmup(listed, dry_run=True)]
    assert sizes == [(2, 32), (8, 32), (2, 64), (8, 64)]


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
