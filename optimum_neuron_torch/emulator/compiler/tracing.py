"""Trace a device graph again on the host, under a table of decompositions.

AOTAutograd traces for the device: fake tensors, `device=` arguments and lifted constants all say neuron, and
operators were chosen for it (the fused attention that accelerators may override). One trace on CPU fake tensors
replaces all of them at once, decomposes what an executor or the lowering wants decomposed, and opens custom
operators whose Python body is known, so that neither Inductor nor StableHLO meets an opaque node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from optimum_neuron_torch.emulator.compiler.decompositions import host_decompositions
from optimum_neuron_torch.emulator.compiler.graph import HostGraph, Kind
from optimum_neuron_torch.emulator.compiler.passes.complex_pairs import ComplexAsPairs, has_complex, real_view
from optimum_neuron_torch.emulator.compiler.passes.constants import lift_constants
from optimum_neuron_torch.emulator.compiler.passes.custom_ops import python_body, written_body
from optimum_neuron_torch.emulator.compiler.passes.devices import HOST, to_host_devices
from optimum_neuron_torch.emulator.compiler.passes.known_scalars import fold_known_scalars
from optimum_neuron_torch.emulator.compiler.passes.outputs import match_outputs


Decompositions = Mapping[Any, Callable[..., Any]]


def trace_on_host(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    decompositions: Decompositions | None = None,
    *,
    kind: Kind,
    open_custom_ops: bool = True,
    complex_as_pairs: bool = False,
) -> HostGraph:
    """
    Trace `gm`, AOTAutograd's graph of `inputs` (fake tensors of any device), as a host graph.

    The result returns the same shapes, dtypes and, where they are dense, strides as `gm`; its placeholders are those
    of `gm`, then one per constant. With `open_custom_ops` custom operators whose body is known are traced through.
    With `complex_as_pairs` no tensor in it is complex: at its border they are their real views.
    """
    fake_mode = _fake_mode(inputs)
    lifted, constants = lift_constants(gm)
    fold_known_scalars(lifted, constants)
    host_inputs = [_on_host(value, fake_mode) for value in (*inputs, *constants)]
    table = {**host_decompositions(), **(decompositions or {})}
    # The interpreter, not the module, is traced: it maps devices and opens custom operators on the way.
    if complex_as_pairs and has_complex(lifted):
        interpreter: _HostInterpreter = _PairInterpreter(lifted, table, open_custom_ops)
        host_inputs = [real_view(value) for value in host_inputs]
    else:
        interpreter = _HostInterpreter(lifted, table, open_custom_ops)
    with _neutral_tracing_state(), fake_mode:
        traced = make_fx(lambda *args: interpreter.run(*args), decomposition_table=table)(*host_inputs)
    match_outputs(traced, like=gm)
    return HostGraph(module=traced, inputs=host_inputs, constants=constants, kind=kind)


class _HostInterpreter(fx.Interpreter):
    """Runs the nodes of a device graph with every device argument replaced by the host."""

    def __init__(self, module: fx.GraphModule, decompositions: Decompositions, open_custom_ops: bool) -> None:
        super().__init__(module)
        self._decompositions = decompositions
        self._opens = open_custom_ops

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = to_host_devices(args), to_host_devices(kwargs)
        if self._opens and target not in self._decompositions and (body := python_body(target)):
            return body(*args, **kwargs)
        if body := written_body(target, args):
            return body(*args, **kwargs)
        # Host kernels and decompositions may lay results out differently: a view of them may need a copy.
        if target is torch.ops.aten.view.default:
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)


class _PairInterpreter(ComplexAsPairs, _HostInterpreter):
    """Runs the nodes with complex tensors as pairs of real ones."""


def trace_body(body: Callable[..., Any], operands: Sequence[torch.Tensor], table: Decompositions) -> fx.GraphModule:
    """Trace the body of a custom operator, plain PyTorch on the host, for its `operands` (fake tensors)."""
    # Attention in the body chooses the CPU's kernel, which the table takes apart.
    table = {**host_decompositions(), **table}
    with _neutral_tracing_state(), _fake_mode(operands):
        return make_fx(body, decomposition_table=table)(*operands)


def _on_host(value: Any, fake_mode: FakeTensorMode) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value)
    if not isinstance(value, torch.Tensor):
        return value
    with fake_mode:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=HOST)


def _fake_mode(inputs: Sequence[Any]) -> FakeTensorMode:
    if mode := detect_fake_mode(inputs):
        return mode
    context = TracingContext.try_get()
    return context.fake_mode if context and context.fake_mode else FakeTensorMode()


@contextlib.contextmanager
def _neutral_tracing_state() -> Iterator[None]:
    """AOTAutograd's graph holds autograd's and autocast's work already: neither may act a second time."""
    with preserve_node_meta(), torch.no_grad(), torch._C._DisableAutocast():
        yield
