"""Whether the emulated device should be there at all.

A native Neuron package wins, and so does any other accelerator: a PrivateUse1 device would become PyTorch's current
accelerator and take over Trainer, pinned memory and Hub kernels. `NEURON_EMULATOR=0|1` decides otherwise.
"""

import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points


SWITCH = "NEURON_EMULATOR"

# How TorchNeuron makes itself known: distribution torch-neuronx, entry points torch.backends: torch_neuronx and
# torch_dynamo_backends: neuron.
NATIVE_DISTRIBUTION = "torch-neuronx"
NATIVE_NAMES = {
    "torch.backends": frozenset({"torch_neuronx", "torch-neuronx", "neuron"}),
    "torch_dynamo_backends": frozenset({"neuron"}),
}

OWN_DISTRIBUTION = "optimum-neuron-torch"


@dataclass(frozen=True)
class Decision:
    """Whether the emulator stands in for the hardware, and why; the reason completes a sentence."""

    stands_in: bool
    reason: str


def decide() -> Decision:
    switch = os.environ.get(SWITCH, "").strip()
    if switch == "0":
        return Decision(False, f"{SWITCH}=0")
    named = _renamed_backend()
    if named is not None:
        return Decision(False, f"the backend {named!r} already has PyTorch's one place for an out-of-tree device")
    if switch == "1":
        return Decision(True, f"{SWITCH}=1")
    native = native_distribution()
    if native is not None:
        return Decision(False, f"the distribution {native} provides a native neuron device")
    other = other_accelerator()
    if other is not None:
        return Decision(False, f"{other} is visible and stays the current accelerator ({SWITCH}=1 overrides this)")
    return Decision(True, "No accelerator is visible")


def native_distribution() -> str | None:
    """The name of an installed distribution that provides a native neuron device, from its metadata alone.

    Neither imports anything nor depends on the order in which distributions are found.
    """
    for entry_point in _foreign_entry_points():
        names = NATIVE_NAMES[entry_point.group]
        if entry_point.name in names or _distribution_name(entry_point) == NATIVE_DISTRIBUTION:
            return _distribution_name(entry_point) or entry_point.value
    return None


def other_accelerator() -> str | None:
    """What else would be the current accelerator, or None. Initialises no driver."""
    import torch

    # cuda.device_count() asks NVML where it can; is_available() would create a context in processes that later fork.
    if torch.cuda.device_count() > 0 or (not torch.cuda._is_compiled() and torch.cuda.is_available()):
        return "CUDA"
    if torch.xpu.is_available():
        return "XPU"
    if torch.backends.mps.is_available():
        return "MPS"
    if torch.mtia.is_available():
        return "MTIA"
    for entry_point in _foreign_entry_points():
        if entry_point.group == "torch.backends":
            return f"the PyTorch backend {entry_point.name!r} of {_distribution_name(entry_point)}"
    return None


def _renamed_backend() -> str | None:
    import torch

    name = torch._C._get_privateuse1_backend_name()
    return None if name == "privateuseone" else name


@cache
def _foreign_entry_points() -> list[EntryPoint]:
    """The entry points of both groups that are not ours, from one pass over the metadata of all distributions."""
    found = entry_points()
    return [
        entry_point
        for group in NATIVE_NAMES
        for entry_point in found.select(group=group)
        if _distribution_name(entry_point) != OWN_DISTRIBUTION
    ]


def _distribution_name(entry_point: EntryPoint) -> str:
    if entry_point.dist is None:
        return ""
    return entry_point.dist.name.lower().replace("_", "-").replace(".", "-")
