"""Diffusers' group offloading with the device's streams: stock code, the results of the model on the CPU."""

import pytest
import torch
from diffusers import UNet2DModel
from diffusers.hooks import apply_group_offloading


def tiny_unet() -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    ).eval()


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    return torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def expected(image) -> torch.Tensor:
    with torch.no_grad():
        return tiny_unet()(image, 3).sample


@pytest.mark.parametrize(
    "options",
    [
        {"offload_type": "leaf_level"},
        {"offload_type": "leaf_level", "use_stream": True},
        {"offload_type": "leaf_level", "use_stream": True, "record_stream": True, "non_blocking": True},
        {"offload_type": "leaf_level", "use_stream": True, "low_cpu_mem_usage": True},
        {"offload_type": "block_level", "num_blocks_per_group": 1, "use_stream": True},
        {"offload_type": "leaf_level", "use_stream": True, "offload_to_disk_path": "folder"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_group_offloading(neuron, tmp_path, image, expected, options):
    """Twice: the second call prefetches in the order that the first one recorded. Weights rest on the host."""
    if "offload_to_disk_path" in options:
        options = {**options, "offload_to_disk_path": str(tmp_path)}
    model = tiny_unet()
    apply_group_offloading(model, onload_device=neuron, offload_device=torch.device("cpu"), **options)
    with torch.no_grad():
        for _ in range(2):
            result = model(image.to(neuron), 3).sample
            assert result.device == neuron
            torch.testing.assert_close(result.cpu(), expected)
    kept = sum(parameter.is_neuron for parameter in model.parameters())
    assert kept < len(list(model.parameters())) / 4
