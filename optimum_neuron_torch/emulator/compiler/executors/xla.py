"""Executor `xla`: run the StableHLO itself through XLA:CPU, as an oracle for the lowering.

It shows what the lowered program computes, independently of PyTorch's kernels. Arguments and results are copied
where XLA wants them elsewhere; speed is no aim.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import torch

from optimum_neuron_torch.emulator.compiler.errors import NeuronCompilerError
from optimum_neuron_torch.emulator.compiler.graph import HostGraph
from optimum_neuron_torch.emulator.compiler.metrics import GraphRecord
from optimum_neuron_torch.emulator.compiler.passes.complex_pairs import real_view
from optimum_neuron_torch.emulator.compiler.stablehlo import StableHlo
from optimum_neuron_torch.emulator.compiler.tracing import Decompositions


class XlaProgram:
    """A StableHLO module loaded into XLA:CPU."""

    takes_device_tensors = False

    def __init__(self, lowered: StableHlo) -> None:
        self._lowered = lowered
        self._executable = _compile(lowered.module) if lowered.module else None

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        import jax

        lowered = self._lowered
        values = [*args, *lowered.constants]
        computed: list[torch.Tensor] = []
        if self._executable is not None:
            # Without it JAX would narrow 64-bit arguments; the scope leaves the user's own JAX alone.
            with jax.enable_x64(True):
                buffers = [jax.dlpack.from_dlpack(_compact(values[position])) for position in lowered.arguments]
                outputs = self._executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
            computed = [torch.from_dlpack(output[0]).clone() for output in outputs]
        count = len(computed) - len(lowered.written)
        for position in lowered.complex_results:
            computed[position] = torch.view_as_complex(computed[position])
        for position, value in zip(lowered.written, computed[count:], strict=True):
            real_view(args[position]).copy_(value)
        return [computed[value] if is_tensor else value for is_tensor, value in lowered.results]

    def prepare_for_storage(self) -> XlaProgram:
        stored = copy.copy(self)
        stored._executable = None
        return stored

    def revive(self, record: GraphRecord) -> None:
        self.__init__(self._lowered)  # type: ignore[misc]


class XlaExecutor:
    """The oracle: needs torch-mlir and jaxlib."""

    name = "xla"
    runs_stablehlo = True

    def decompositions(self) -> Decompositions:
        return {}

    def compile(self, graph: HostGraph, record: GraphRecord) -> XlaProgram:
        raise NotImplementedError("XLA runs StableHLO, not FX graphs")

    def compile_stablehlo(self, lowered: StableHlo, record: GraphRecord) -> XlaProgram:
        return XlaProgram(lowered)


xla = XlaExecutor


@functools.cache
def _client() -> Any:
    try:
        import jax
    except ImportError as error:
        raise NeuronCompilerError(
            "executor='xla' needs jax and jaxlib; install optimum-neuron-torch[emulator]."
        ) from error
    return jax.devices("cpu")[0].client


def _compile(module: str) -> Any:
    client = _client()
    import jax
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        devices = xla_client.DeviceList(tuple(jax.devices("cpu")[:1]))
        return client.compile_and_load(parsed, devices, xla_client.CompileOptions())


def _compact(value: torch.Tensor) -> torch.Tensor:
    return real_view(value.detach()).contiguous()
