"""`nki.isa.constants`: the enumerations that instructions take."""

from optimum_neuron_torch.emulator.nki.isa.constants import *
