"""The graph that executors and the lowering receive: ATen on the host, its constants as trailing inputs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from optimum_neuron_torch.emulator.nki import operation  # noqa: F401 (graphs may call it)


Kind = Literal["inference", "forward", "backward"]


@dataclass
class HostGraph:
    """
    A device graph traced again on the host.

    Args:
        module: the graph; one flat list of tensors in, one out. Input mutations are `copy_` to a placeholder.
        inputs: CPU fake tensors (or Python scalars), one per placeholder; the last ones stand for `constants`.
        constants: tensors the traced program holds as literals, moved to the host.
        kind: which part of the program this is.
    """

    module: fx.GraphModule
    inputs: list[Any]
    constants: list[torch.Tensor] = field(default_factory=list)
    kind: Kind = "inference"

    @property
    def calls(self) -> list[fx.Node]:
        """The nodes that compute something."""
        return [node for node in self.module.graph.nodes if node.op == "call_function"]

    def spec(self) -> tuple[TensorLayout | Any, ...]:
        """What is static about the inputs: layouts of tensors, values of scalars."""
        return tuple(TensorLayout.of(value) if isinstance(value, torch.Tensor) else value for value in self.inputs)

    def digest(self) -> str:
        """A name for what the graph computes, equal in every process."""
        return hashlib.sha256(f"{self.kind}\n{self.spec()!r}\n{self.module.code}".encode()).hexdigest()


@dataclass(frozen=True)
class TensorLayout:
    """A tensor without its data."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, value: torch.Tensor) -> TensorLayout:
        return cls(tuple(value.size()), tuple(value.stride()), value.dtype)

    def fake(self) -> torch.Tensor:
        """A host tensor of this layout; call it in a fake tensor mode."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype)

    def zeros(self) -> torch.Tensor:
        """Zeros on the host; an expanded axis stays expanded."""
        reach = sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True)) + 1
        empty = 0 in self.size
        return torch.zeros(0 if empty else reach, dtype=self.dtype).as_strided(self.size, self.stride)


@dataclass(frozen=True)
class GraphSource:
    """A host graph in a form that another process, or a later one, can compile."""

    module: bytes
    inputs: tuple[TensorLayout | Any, ...]
    kind: Kind

    @classmethod
    def of(cls, graph: HostGraph) -> GraphSource:
        """Serialises `graph`, whose nodes lose their metadata."""
        return cls(pickle_graph(graph.module), graph.spec(), graph.kind)

    def graph(self) -> HostGraph:
        """The graph again, with fake inputs; its constants are inputs like others."""
        fake_mode = FakeTensorMode(shape_env=ShapeEnv())
        module = unpickle_graph(self.module, fake_mode)
        with fake_mode:
            inputs = [spec.fake() if isinstance(spec, TensorLayout) else spec for spec in self.inputs]
        return HostGraph(module=module, inputs=inputs, kind=self.kind)


def pickle_graph(module: fx.GraphModule) -> bytes:
    """Serialise a graph without its nodes' metadata: only compiling needed it, and its fake tensors do not pickle."""
    for node in module.graph.nodes:
        node.meta = {}
    return GraphPickler.dumps(module, Options(ops_filter=None))


def unpickle_graph(data: bytes, fake_mode: FakeTensorMode | None = None) -> fx.GraphModule:
    """The inverse of `pickle_graph`."""
    return GraphPickler.loads(data, fake_mode or FakeTensorMode(shape_env=ShapeEnv()))


def value_of(argument: Any) -> Any:
    """The fake value of a node; any other argument is its own value."""
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument
