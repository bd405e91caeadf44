"""`nki.language`: tensors, memory, loops, element types, and the operators that instructions take."""

from optimum_neuron_torch.emulator.nki.language import *
from optimum_neuron_torch.emulator.nki.language.removed import missing as _missing


def __getattr__(name):
    raise _missing(name)
