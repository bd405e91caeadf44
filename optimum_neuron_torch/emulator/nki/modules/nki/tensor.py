"""The tensor that kernels work on."""
