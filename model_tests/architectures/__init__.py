"""Tables of architectures, each compiled for the device and compared with the CPU; see `__main__.py`."""
