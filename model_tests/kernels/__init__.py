"""Models whose NKI kernels run in the simulator, compared with PyTorch's attention on the CPU; see `__main__.py`."""
