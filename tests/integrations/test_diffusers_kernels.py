"""Diffusers' models with attention by kernels, in the simulator, beside the CPU's own."""

import functools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from diffusers import (
    AttentionBackendName,
    AutoencoderKL,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    UNet2DConditionModel,
    attention_backend,
)

import optimum_neuron_torch as ont
from optimum_neuron_torch.buckets.notes import counting


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def unet():
    """Self and cross attention by the older processors, with a mask of the text."""
    model = UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, cross_attention_dim=24,
        attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    mask = torch.ones(2, 7)
    mask[1, 4:] = 0
    return model, {
        "sample": randn(2, 4, 8, 8),
        "timestep": torch.tensor([3.0, 5.0]),
        "encoder_hidden_states": randn(2, 7, 24),
        "encoder_attention_mask": mask,
    }


def flux():
    """Attention dispatched by name, over picture and text together."""
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=24, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return model, {
        "hidden_states": randn(2, 12, 4),
        "encoder_hidden_states": randn(2, 5, 24),
        "pooled_projections": randn(2, 16),
        "timestep": torch.tensor([0.3, 0.7]),
        "img_ids": torch.stack([torch.zeros(12), torch.arange(12) // 4, torch.arange(12) % 4], -1).float(),
        "txt_ids": torch.zeros(5, 3),
    }


def sd3():
    model = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
    )  # fmt: skip
    return model, {
        "hidden_states": randn(2, 4, 8, 8),
        "encoder_hidden_states": randn(2, 5, 24),
        "pooled_projections": randn(2, 16),
        "timestep": torch.tensor([3.0, 5.0]),
    }


def vae():
    """One head as wide as the last block's channels."""
    model = AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8, latent_channels=4,
    )  # fmt: skip
    return model, {"sample": randn(1, 3, 16, 16)}


MODELS = {"UNet": unet, "Flux": flux, "SD3": sd3, "VAE": vae}
QUICKLY_COMPILED = {"SD3"}


@functools.cache
def made(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs


@pytest.fixture(params=MODELS)
def case(request):
    """The model on the CPU in float32, a copy of it to move, its inputs, its output, and its calls of attention."""
    model, inputs = made(request.param)
    stock, calls = F.scaled_dot_product_attention, []

    def counting(*args, **kwargs):
        calls.append(1)
        return stock(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", counting)
        expected = run(model, inputs)
    copy = type(model).from_config(model.config)
    copy.load_state_dict(model.state_dict())
    return model, copy.eval(), inputs, expected, len(calls)


@torch.no_grad()
def run(model, inputs, dtype=torch.float32):
    """The output of the model, on the host in float32."""
    device = next(model.parameters()).device
    inputs = {name: value.to(device, dtype) for name, value in inputs.items()}
    return model(**inputs).sample.cpu().float()


def test_float32(case):
    _, model, inputs, expected, calls = case
    with ont.nki.simulation() as runs, counting(Counter()) as paths:
        found = run(model.to("neuron"), inputs)
    assert len(runs) == calls > 0 and sum(paths.values()) == calls and all("kernel), scaled" in path for path in paths)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_bfloat16(case):
    """No further from float32 than half as much again as the CPU's own bfloat16."""
    model, copy, inputs, expected, calls = case
    own = run(copy.to(torch.bfloat16), inputs, torch.bfloat16)
    with ont.nki.simulation() as runs:
        found = run(copy.to("neuron"), inputs, torch.bfloat16)
    assert len(runs) == calls
    for measure in (torch.max, torch.mean):
        assert measure((found - expected).abs()) <= 1.5 * measure((own - expected).abs())


@pytest.mark.parametrize(
    "case",
    [name if name in QUICKLY_COMPILED else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
    indirect=True,
)
def test_prepared(case):
    """Compiled whole, with the kernels inside."""
    _, model, inputs, expected, calls = case
    config = ont.NeuronConfig(nki="simulate", options={"executor": "aten", "lowering": "off"})
    ont.prepare(model, config)
    with ont.nki.simulation() as runs:
        found = run(model, inputs)
    assert sum("attention" in run.kernel for run in runs) == calls
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_training():
    """Gradients of all weights, by the kernel's own gradients."""
    model, inputs = made("SD3")

    def gradients(model, inputs):
        model.zero_grad()
        model(**inputs).sample.square().mean().backward()
        return {name: weight.grad.cpu() for name, weight in model.named_parameters() if weight.grad is not None}

    expected = gradients(model, inputs)
    copy = type(model).from_config(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to("neuron")
    with ont.nki.simulation() as runs:
        found = gradients(copy, {name: value.to("neuron") for name, value in inputs.items()})
    assert {run.kernel for run in runs} == {"flash_attention_kernel", "flash_attention_backward_kernel"}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert (gradient - expected[name]).abs().max() <= 1e-5 * max(1e-3, expected[name].abs().max()), name


# ---- the backend's name ---------------------------------------------------------------------------------------------


def test_the_backend_is_chosen_by_name():
    model, inputs = made("Flux")
    expected = run(model, inputs)
    copy = type(model).from_config(model.config)
    copy.load_state_dict(model.state_dict())
    copy.eval().to("neuron")
    copy.set_attention_backend("nki")
    try:
        assert {str(processor._attention_backend.value) for processor in copy.attn_processors.values()} == {"nki"}
        assert (run(copy, inputs) - expected).abs().max() <= 1e-5 * expected.abs().max()
        with ont.nki.simulation() as runs:
            found = run(copy, inputs)
        assert len(runs) == 2
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    finally:
        copy.set_attention_backend("native")


def test_the_backend_holds_for_a_block():
    with attention_backend("nki"):
        pass
    assert AttentionBackendName("nki") is AttentionBackendName["NKI"] and AttentionBackendName.NATIVE.value == "native"


def test_unwired_the_name_is_gone_and_models_that_have_it_run():
    model, inputs = made("Flux")
    expected = run(model, inputs)
    model.set_attention_backend("nki")
    ont.unwire()
    try:
        assert "NKI" not in AttentionBackendName.__members__
        with pytest.raises(ValueError, match="nki"):
            model.set_attention_backend("nki")
        torch.testing.assert_close(run(model, inputs), expected)
    finally:
        ont.wire()
        model.set_attention_backend("native")
