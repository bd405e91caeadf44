"""Cache layers as they exist inside a compiled step: built on stored tensors, with positions as tensors.

One file for each kind; `kinds.py` says which of them stands for which layer type of Transformers.
"""
