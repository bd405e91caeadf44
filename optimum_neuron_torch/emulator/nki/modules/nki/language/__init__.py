"""`nki.language`: tensors, memory, loops, element types, and the operators that instructions take."""

from optimum_neuron_torch.emulator.nki.dtypes import ALL_DTYPES, bool_
from optimum_neuron_torch.emulator.nki.language import *
from optimum_neuron_torch.emulator.nki.operators import OPERATORS


globals().update({str(dtype): dtype for dtype in ALL_DTYPES if dtype is not bool_})
globals().update({name: operator for name, operator in OPERATORS.items() if name not in globals()})
