"""The element types."""

from optimum_neuron_torch.emulator.nki.dtypes import *
