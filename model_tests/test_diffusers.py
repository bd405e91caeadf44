"""Diffusers pipelines on neuron draw the CPU's pictures, with one graph for each picture size."""

import warnings

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKL,
    AutoPipelineForImage2Image,
    DDIMScheduler,
    DiffusionPipeline,
    DiTPipeline,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
)

import optimum_neuron_torch
from examples.generate_image import PROMPT, make_pipeline
from optimum_neuron_torch import NeuronConfig


# Pictures are float32 in [0, 1]: a level of 255 is 4e-3.
TOLERANCE = 2e-5
# Many small graphs, each run a few times: interpreting them takes less time than compiling them to C++.
ATEN = NeuronConfig(options={"executor": "aten"})
UNCHECKED = NeuronConfig(options={"executor": "aten", "lowering": "off"})
SCHEDULERS = [PNDMScheduler, DDIMScheduler, EulerDiscreteScheduler, DPMSolverMultistepScheduler]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_pipeline(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def stock(folder):
    return DiffusionPipeline.from_pretrained(folder)


@pytest.fixture(scope="module")
def prepared(folder):
    return DiffusionPipeline.from_pretrained(folder, device_map="neuron", neuron_config=UNCHECKED)


def draw(pipe, *, seed=0, prompt=PROMPT, **settings) -> np.ndarray:
    pipe.set_progress_bar_config(disable=True)
    settings = {"num_inference_steps": 3, "generator": torch.Generator("cpu").manual_seed(seed), **settings}
    return pipe(prompt, output_type="np", **settings).images


def graphs(pipe) -> int:
    report = optimum_neuron_torch.report(pipe)
    return report.graphs + report.cached


CASES = {
    "plain": {},
    "without guidance": {"guidance_scale": 1.0},
    "rescaled guidance": {"guidance_rescale": 0.5},
    "two pictures": {"num_images_per_prompt": 2},
    "two prompts": {"prompt": [PROMPT, "a cat"], "negative_prompt": ["house", "sea"]},
    "not square": {"height": 64, "width": 32},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_the_cpus_picture(stock, prepared, settings):
    expected, found = draw(stock, **settings), draw(prepared, **settings)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_share_the_graphs(stock, prepared, scheduler):
    draw(prepared)
    count = graphs(prepared)
    usual = stock.scheduler, prepared.scheduler
    try:
        for pipe in (stock, prepared):
            pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
        assert np.abs(draw(prepared) - draw(stock)).max() <= TOLERANCE
    finally:
        stock.scheduler, prepared.scheduler = usual
    assert graphs(prepared) == count


def test_one_graph_for_each_size(folder):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron", neuron_config=ATEN)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*spatial axes.*")  # stated in the report, not with every picture
        draw(pipe)
        assert (graphs(pipe.unet), graphs(pipe.vae)) == (1, 1)
        count, signatures = graphs(pipe), optimum_neuron_torch.report(pipe).eager_signatures
        for seed, steps in ((1, 3), (2, 5)):
            draw(pipe, seed=seed, num_inference_steps=steps)
        assert graphs(pipe) == count
        draw(pipe, height=96, width=64)
        assert (graphs(pipe.unet), graphs(pipe.vae)) == (2, 2)
        draw(pipe)
        assert graphs(pipe) == count + 2
    assert optimum_neuron_torch.report(pipe).eager_signatures == signatures


@pytest.mark.slow  # a UNet in C++ takes minutes to compile
def test_the_default_executor(folder, stock):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron")
    assert np.abs(draw(pipe) - draw(stock)).max() <= TOLERANCE
    count = graphs(pipe)
    draw(pipe, seed=1)
    assert graphs(pipe) == count


def test_inference_mode_shares_the_graphs(prepared):
    expected = draw(prepared)
    count = graphs(prepared)
    with torch.inference_mode():
        assert np.array_equal(draw(prepared), expected)
    assert graphs(prepared) == count


def test_the_report_says_that_shapes_are_exact(folder):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron", neuron_config=UNCHECKED)
    draw(pipe)
    report = optimum_neuron_torch.report(pipe)
    facts = {(row["kind"], row["where"]) for row in report.departures}
    assert {("exact_shapes", "forward"), ("exact_shapes", "decode")} <= facts
    used = {(use.function, *use.bucket.items()): use.calls for use in report.buckets}
    assert used["decode", ("batch", 1), ("height", 32), ("width", 32)] == 1
    unet = ("batch", 2), ("height", 32), ("width", 32), ("encoder_sequence", 77)
    assert used["forward", *unet] == 4  # PNDM calls once more than it has steps
    assert report.padded_share == 0


def test_image_to_image_encodes_on_the_device(stock, prepared):
    torch.manual_seed(0)
    image = torch.rand(1, 3, 64, 64)
    results = []
    for pipe in (stock, prepared):
        pipe = AutoPipelineForImage2Image.from_pipe(pipe)
        results.append(draw(pipe, image=image, strength=0.7, num_inference_steps=4))
    assert np.abs(results[0] - results[1]).max() <= TOLERANCE
    assert any(use.function == "encode" for use in optimum_neuron_torch.report(prepared.vae).buckets)


def test_latents_on_the_device_are_taken(stock, prepared):
    latents = torch.randn(1, 4, 32, 32, generator=torch.Generator().manual_seed(3))
    found = draw(prepared, latents=latents.to("neuron"))
    assert np.abs(found - draw(stock, latents=latents)).max() <= TOLERANCE


def test_callbacks_see_the_loop(stock, prepared):
    seen = {}

    def remember(label):
        def callback(pipe, step, timestep, tensors):
            seen.setdefault(label, []).append(tensors["latents"].cpu().clone())
            return tensors

        return callback

    for label, pipe in (("cpu", stock), ("neuron", prepared)):
        draw(pipe, callback_on_step_end=remember(label))
    for a, b in zip(seen["cpu"], seen["neuron"], strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


def test_back_on_the_cpu(folder, stock):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron").to("cpu")
    assert np.array_equal(draw(pipe), draw(stock))
    assert graphs(pipe) == 0


def test_the_users_own_compile_is_kept(folder, stock):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron", neuron_config=UNCHECKED)
    pipe.unet = torch.compile(pipe.unet, backend="neuron", dynamic=False, options=UNCHECKED.options)
    assert np.abs(draw(pipe) - draw(stock)).max() <= TOLERANCE


def test_bf16_is_no_further_from_float32_than_the_cpus(folder, stock):
    reference = draw(stock)
    on_cpu = draw(DiffusionPipeline.from_pretrained(folder, dtype=torch.bfloat16))
    settings = {"dtype": torch.bfloat16, "device_map": "neuron", "neuron_config": UNCHECKED}
    found = draw(DiffusionPipeline.from_pretrained(folder, **settings))
    for measure in (np.max, np.mean):
        assert measure(np.abs(found - reference)) <= 1.5 * measure(np.abs(on_cpu - reference))


def test_a_transformer_denoiser(tmp_path):
    """DiT: class labels, timesteps (B,), no text."""
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        sample_size=8,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    )
    vae = AutoencoderKL(block_out_channels=(16,), latent_channels=4, norm_num_groups=8)
    DiTPipeline(transformer, vae, DDIMScheduler()).save_pretrained(tmp_path)
    stock = DiffusionPipeline.from_pretrained(tmp_path)
    pipe = DiffusionPipeline.from_pretrained(tmp_path, device_map="neuron", neuron_config=ATEN)
    expected, found = (draw(p, prompt=[1, 7], num_inference_steps=3) for p in (stock, pipe))
    assert np.abs(found - expected).max() <= TOLERANCE
    count = graphs(pipe)
    draw(pipe, prompt=[3, 5], num_inference_steps=3, seed=1)
    assert graphs(pipe) == count
