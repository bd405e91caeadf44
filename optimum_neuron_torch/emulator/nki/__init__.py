"""A simulator of the Neuron Kernel Interface: runs NKI kernels on the CPU, within the limits of the chip."""
