"""`nki.language`: tensors, memory, loops and the operators that instructions take."""

from optimum_neuron_torch.emulator.nki.dtypes import *
from optimum_neuron_torch.emulator.nki.language import *
from optimum_neuron_torch.emulator.nki.operators import *
