"""`nki.isa`: the instructions of the engines."""

from optimum_neuron_torch.emulator.nki.errors import NkiError as NkiValidationError
from optimum_neuron_torch.emulator.nki.instruction import NkiInstruction
from optimum_neuron_torch.emulator.nki.isa import *
from optimum_neuron_torch.emulator.nki.isa.constants import *
from optimum_neuron_torch.emulator.nki.isa.removed import missing as _missing
from optimum_neuron_torch.emulator.nki.registers import VirtualRegister

from . import constants


def __getattr__(name):
    raise _missing(name)
