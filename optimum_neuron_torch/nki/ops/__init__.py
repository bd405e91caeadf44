"""NKI ops, one file each: what they compute, in torch, and the kernels that compute it on the device.

Every function has two operators of PyTorch: `optimum_neuron_torch::name` computes with torch, and is what its kernel
is compared with; `optimum_neuron_torch::name_kernel` launches the kernel. Which one runs is chosen when a call is made
or traced, so that a graph says itself what it holds.
"""
