"""Errors of the `neuron` compile backend that a user may want to catch.

Dynamo wraps what a backend raises in `torch._dynamo.exc.BackendCompilerFailed`; the error below is its
`inner_exception` and its message is part of the outer one.
"""

from __future__ import annotations

from collections.abc import Sequence


class NeuronCompilerError(RuntimeError):
    """Base of all errors raised while a graph is compiled for the emulated device."""


class LoweringError(NeuronCompilerError):
    """An operator of the graph has no lowering to StableHLO, so the graph would not compile for Trainium."""

    def __init__(self, message: str, *, op: str, inputs: Sequence[str] = (), source: str | None = None) -> None:
        super().__init__(message)
        self.op = op
        self.inputs = tuple(inputs)
        self.source = source


class NeuronExecutionError(RuntimeError):
    """A compiled graph failed to run. On Trainium the runtime raises it; here graphs are the host's code, whose own
    errors come through, so that nothing raises it.
    """


class RecompileError(NeuronCompilerError):
    """A graph was compiled after warm-up, under the strict kind `recompile`."""


class DynamicShapesError(NeuronCompilerError):
    """`dynamic=True` was asked of a device whose shapes are static."""


class UnknownOptionError(NeuronCompilerError, ValueError):
    """`torch.compile(options=...)` names a key or a value that the backend does not know."""
