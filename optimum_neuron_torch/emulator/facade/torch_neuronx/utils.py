"""What the emulated chip is and can do, with TorchNeuron's function names."""

from optimum_neuron_torch.emulator.device.capabilities import capabilities
from optimum_neuron_torch.emulator.device.hardware import Machine


def get_platform_target() -> str:
    """ "trn2" or "trn3"."""
    return Machine.from_environment().platform


def get_lnc_setting() -> str:
    """How many physical cores form a logical one: "1" or "2"."""
    return str(Machine.from_environment().logical_core_size)


def get_logical_neuron_cores() -> str:
    """The setting in force, as `get_lnc_setting()`; `torch.neuron.device_count()` counts the logical cores."""
    return get_lnc_setting()


# 8-bit formats: Trn2's e4m3 is its own (largest value 240); OCP's e4m3fn and the MX formats came with Trn3
# (aws-neuron/nki-library, quantisation notes).


def is_float8_e4m3_supported() -> bool:
    return get_platform_target() == "trn2"


def is_float8_e4m3fn_supported() -> bool:
    return get_platform_target() == "trn3"


def is_mxocp_supported() -> bool:
    return get_platform_target() == "trn3"


def get_neuron_registered_ops(as_sorted: bool = False, keep_variant: bool = False) -> set[str] | list[str]:
    """The operations known to run natively on the real device, as {"add", "max", ...}.

    On the device these are those with a kernel; here, those that the capability table says are native.

    Args:
        as_sorted: give a sorted list rather than a set.
        keep_variant: keep the overload, as "max.dim"; the name alone where the table speaks of all its overloads.
    """
    native = (name.removesuffix(".*") for name, row in capabilities().rows.items() if row.state == "native")
    names = {name.split("::")[1] for name in native}
    if not keep_variant:
        names = {name.split(".")[0] for name in names}
    return sorted(names) if as_sorted else names
