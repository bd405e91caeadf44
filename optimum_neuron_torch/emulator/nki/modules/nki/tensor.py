"""The tensor that kernels work on."""

from optimum_neuron_torch.emulator.nki.tensor import NkiTensor
