"""Fixtures of the device's tests."""

import pytest
import torch

from optimum_neuron_torch.emulator import device


@pytest.fixture
def neuron() -> torch.device:
    """Core 0, with counters at zero, and the current core and its seed put back afterwards."""
    if not torch.neuron.is_available():
        pytest.skip("the emulated device is not available here")
    device.clear_counters()
    torch.neuron.set_device(0)
    yield torch.device("neuron", 0)
    torch.neuron.set_device(0)
