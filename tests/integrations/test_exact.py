"""Calls taken apart into flat tensors and a hashable form, and what of them may be left out."""

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput

from optimum_neuron_torch.buckets.flat import NotFlatError, Slot, flatten, rebuild
from optimum_neuron_torch.integrations.diffusers import with_tensor_timesteps
from optimum_neuron_torch.integrations.exact import _bucket, _ignores, moved


A, B, C = torch.zeros(2), torch.ones(3), torch.ones(1)


@pytest.mark.parametrize(
    "value",
    [
        {"x": A, "y": None},
        {"x": [A, B], "y": (C, {"z": A, "scale": 0.5})},
        {"dtype": torch.float32, "flag": True, "name": "a"},
        {},
    ],
    ids=["tensor", "nested", "constants", "empty"],
)
def test_rebuilding_gives_the_value_back(value):
    tensors = []
    form = flatten(value, tensors)
    hash(form)
    assert repr(rebuild(form, tensors)) == repr(value)


def test_tensors_are_numbered_in_order():
    tensors = []
    assert flatten([A, B], tensors).forms == (Slot(0), Slot(1))
    assert tensors[0] is A and tensors[1] is B


def test_what_is_no_constant_is_named():
    with pytest.raises(NotFlatError, match="Generator"):
        flatten({"generator": torch.Generator()}, [])


def test_forms_tell_constants_apart():
    assert flatten({"scale": 1.0}, []) != flatten({"scale": 2.0}, [])


@pytest.mark.parametrize("output", [UNet2DConditionOutput(sample=A), (A, [B]), {"a": A}])
def test_outputs_are_moved_whole(output):
    device = torch.device("meta")
    result = moved(output, device)
    assert type(result) is type(output)
    tensors = []
    flatten(dict(result) if isinstance(result, dict) else result, tensors)
    assert tensors and all(tensor.device == device for tensor in tensors)


def test_latent_distributions_are_moved():
    distribution = DiagonalGaussianDistribution(torch.randn(1, 8, 2, 2))
    result = moved(distribution, torch.device("cpu"))
    assert torch.equal(result.mean, distribution.mean) and torch.equal(result.std, distribution.std)


def test_generators_that_are_never_read():
    assert _ignores(AutoencoderKL.decode, "generator")
    assert not _ignores(AutoencoderKL.forward, "generator")  # it samples with it
    assert not _ignores(UNet2DConditionModel.forward, "generator")  # it has none


@pytest.mark.parametrize(
    ("timestep", "dtype"),
    [
        (7, torch.float32),
        (0.5, torch.float32),
        (torch.tensor(999), torch.float32),
        (torch.tensor([1.5], dtype=torch.float64), torch.float32),
        (torch.tensor([1.5], dtype=torch.bfloat16), torch.bfloat16),
    ],
)
def test_timesteps_become_tensors(timestep, dtype):
    given = {"timestep": timestep, "sample": A}
    arguments = with_tensor_timesteps(torch.nn.Identity(), given)
    assert arguments["timestep"].dtype == dtype
    assert arguments["timestep"].double().reshape(()).item() == float(timestep)
    assert given["timestep"] is timestep


def test_bucket_names():
    latents, text = torch.zeros(2, 4, 8, 16), torch.zeros(2, 77, 32)
    expected = {"batch": 2, "height": 8, "width": 16, "encoder_sequence": 77}
    assert _bucket([latents, torch.tensor(1.0), text]) == expected
    assert _bucket([torch.zeros(1, 4, 3, 8, 8)]) == {"batch": 1, "frames": 3, "height": 8, "width": 8}
    assert _bucket([]) == {}
