"""Modules that MLIR's Python bindings look up by the name of a dialect, where torch-mlir has none."""
