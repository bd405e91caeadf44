"""`nki` where the Neuron SDK is not installed: kernels run in the emulator's simulator."""

from optimum_neuron_torch.emulator.nki.kernel import Kernel, jit, simulate, simulation

from . import collectives, compiler, isa, language, typing


# The name that older kernels' tests know it by.
cpu_simulate = simulate
