"""What the emulated chip is and can do, with TorchNeuron's function names."""

import torch

from optimum_neuron_torch.emulator.device.capabilities import capabilities
from optimum_neuron_torch.emulator.device.hardware import Machine


def get_platform_target() -> str:
    """ "trn2" or "trn3"."""
    return Machine.from_environment().platform


def get_lnc_setting() -> int:
    """How many physical cores form a logical one: 1 or 2."""
    return Machine.from_environment().logical_core_size


def get_logical_neuron_cores() -> int:
    """How many logical cores this process sees."""
    return torch.neuron.device_count()


# 8-bit formats: Trn2's e4m3 is its own (largest value 240); OCP's e4m3fn and the MX formats came with Trn3
# (aws-neuron/nki-library, quantisation notes).


def is_float8_e4m3_supported() -> bool:
    return True


def is_float8_e4m3fn_supported() -> bool:
    return get_platform_target() == "trn3"


def is_mxocp_supported() -> bool:
    return get_platform_target() == "trn3"


def get_neuron_registered_ops() -> list[str]:
    """The operations that are known to run natively on the real device."""
    return sorted(name for name, row in capabilities().rows.items() if row.state == "native")
