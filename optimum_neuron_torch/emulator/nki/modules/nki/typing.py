"""Annotations of kernels' arguments."""

from optimum_neuron_torch.emulator.nki.tensor import NkiTensor


tensor = NkiTensor
mutable_tensor = NkiTensor
