"""Make the random numbers of a graph its inputs.

A compiled program has no hidden state: what a graph draws is drawn before it runs, from the generators that eager
execution would use and in the same order, and handed in. So a seeded run gives the same numbers compiled and eager,
under every executor, and StableHLO computes values only. TorchNeuron makes dropout masks inputs too.

Activation checkpointing asks for a generator's state in the forward graph and draws from it again in the backward
graph (`run_and_save_rng_state`, `run_with_rng_state`): the state is one more input, drawing from it again another.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.utils._python_dispatch import _disable_current_modes

from optimum_neuron_torch.emulator.compiler.errors import LoweringError
from optimum_neuron_torch.emulator.compiler.passes.editing import add_call, add_input, replace
from optimum_neuron_torch.emulator.compiler.source import lowering_error
from optimum_neuron_torch.emulator.device import extension


aten = torch.ops.aten
prims = torch.ops.prims

_STATE = "state"
_PERMUTATION = "randperm"


@dataclass(frozen=True)
class Draw:
    """
    One draw, made on the host before the graph runs.

    Args:
        method: the sampling method of `torch.Tensor` (`bernoulli_`, `normal_`, ...), `randperm`, or `state` for the
            state of the generator.
        arguments: its arguments.
        size, stride, dtype: what it fills.
        core: the neuron core whose generator is drawn from; None for the CPU's.
        state: position of the graph's input that holds the state to draw from, instead of the generator's own.
        generator: position of the graph's input that is the generator the user named.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8
    core: int | None = None
    state: int | None = None
    generator: int | None = None


@dataclass
class DrawnGraph:
    """A graph without random operators: `draws` are its last inputs."""

    module: fx.GraphModule
    inputs: list[Any]
    draws: tuple[Draw, ...] = ()


def make_draws_inputs(gm: fx.GraphModule, inputs: Sequence[Any]) -> DrawnGraph:
    """
    Rewrite a copy of `gm`, AOTAutograd's graph of `inputs`, so that it takes what it would draw.

    Raises:
        LoweringError: how many numbers an operator draws depends on values.
    """
    if not any(_is_random(node) for node in gm.graph.nodes):
        return DrawnGraph(gm, list(inputs))
    return _Extraction(gm, inputs).run()


def _is_random(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target in (run_and_save_rng_state, run_with_rng_state) or node.target in _RULES:
        return True
    return _draws_by_values(node.target)


def _draws_by_values(target: Any) -> bool:
    """Whether an operator without a rule draws; fused attention has the tag too, and arrives without dropout."""
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
        and not target._schema.name.startswith("aten::_scaled_dot_product")
    )


class _Extraction:
    """The rewriting of one graph."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
        graph = fx.Graph()
        output = graph.output(graph.graph_copy(gm.graph, {}))
        output.meta = dict(gm.graph.output_node().meta)
        self.graph = graph
        self.module = fx.GraphModule(gm, graph)
        self.inputs = list(inputs)
        self.draws: list[Draw] = []
        self._inputs = graph.find_nodes(op="placeholder")
        self._last_input = self._inputs[-1] if self._inputs else None

    def run(self) -> DrawnGraph:
        for node in list(self.graph.nodes):
            if _is_random(node):
                self._replace(node)
        self.graph.lint()
        self.module.recompile()
        return DrawnGraph(self.module, self.inputs, tuple(self.draws))

    def _replace(self, node: fx.Node) -> None:
        if node.target is run_and_save_rng_state:
            self._replace_saving(node)
            return
        state, target, args = None, node.target, node.args
        if target is run_with_rng_state:
            state, target, args = self._state_input(args[0]), args[1], args[2:]
        rule = _RULES.get(target)
        if rule is None:
            raise _refusal(node, target)
        value = node.meta["val"] if "val" in node.meta else self._value(target, args, node.kwargs)
        call = _Call(self, node, _bind(target, args, node.kwargs), value, state)
        with self.graph.inserting_before(node):
            results = rule(call)
        replace(node, results)

    def _replace_saving(self, node: fx.Node) -> None:
        """The state is drawn first, then what the operator draws."""
        target, *args = node.args
        value = self._value(target, args, node.kwargs)
        with self.graph.inserting_before(node):
            plain = self.graph.call_function(target, tuple(args), node.kwargs)  # type: ignore[arg-type]
        plain.meta = {**node.meta, "val": value}
        for user in list(node.users):
            if user.args[1] == 0:
                state = self.add_input(Draw(_STATE, core=_core_of(value)), _static(user.meta["val"]))
            user.replace_all_uses_with(state if user.args[1] == 0 else plain)
            self.graph.erase_node(user)
        self.graph.erase_node(node)
        self._replace(plain)

    def _state_input(self, node: Any) -> int:
        position = self._inputs.index(node)
        self.inputs[position] = node.meta["val"] = _static(node.meta["val"])
        return position

    def _value(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The fake result of an operator that stands inside another and has none."""
        args, kwargs = fx.node.map_arg((tuple(args), kwargs), lambda argument: argument.meta["val"])
        with detect_fake_mode(self.inputs):
            return target(*args, **kwargs)

    def add_input(self, draw: Draw, value: torch.Tensor) -> fx.Node:
        """A placeholder behind the others for what `draw` gives."""
        self._last_input = add_input(self.graph, f"draw_{len(self.draws)}", behind=self._last_input)
        self._last_input.meta["val"] = value
        self.inputs.append(value)
        self.draws.append(draw)
        return self._last_input

    def position_of(self, generator: Any) -> int | None:
        return self._inputs.index(generator) if isinstance(generator, fx.Node) else None


@dataclass
class _Call:
    """A random operator with its arguments by name, on its way out of the graph."""

    extraction: _Extraction
    node: fx.Node
    arguments: dict[str, Any]
    value: Any
    state: int | None

    def draw(self, method: str, *arguments: Any, like: torch.Tensor | None = None, **options: Any) -> fx.Node:
        """The input that holds this draw, shaped `like` the operator's result."""
        like = self.value if like is None else like
        with detect_fake_mode([like]):
            value = torch.empty_strided(
                like.size(), like.stride(), dtype=options.get("dtype", like.dtype), device=like.device
            )
        draw = Draw(
            method,
            arguments,
            size=tuple(map(int, value.size())),
            stride=tuple(map(int, value.stride())),
            dtype=value.dtype,
            core=_core_of(value),
            state=self.state,
            generator=self.extraction.position_of(self.arguments.get("generator")),
        )
        return self.extraction.add_input(draw, value)

    def compute(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A node of the graph in the operator's place."""
        node = add_call(self.extraction.graph, target, *args, **kwargs)
        node.meta = {**self.node.meta, "val": node.meta["val"]}
        node.meta.pop("tensor_meta", None)
        return node


def _fill(method: str, *names: str) -> Callable[[_Call], fx.Node]:
    """A rule: the operator is `method` on new memory, its arguments those called `names`."""
    return lambda call: call.draw(method, *(call.arguments[name] for name in names))


def _uniform(call: _Call) -> fx.Node:
    return call.draw("uniform_", 0.0, 1.0)


def _normal(call: _Call) -> fx.Node:
    return call.draw("normal_", 0.0, 1.0)


def _integers(call: _Call) -> fx.Node:
    return call.draw("random_", call.arguments.get("low", 0), call.arguments["high"])


def _permutation(call: _Call) -> fx.Node:
    return call.draw(_PERMUTATION, call.arguments["n"])


def _dropout(call: _Call) -> tuple[fx.Node, fx.Node]:
    x, p, train = (call.arguments[name] for name in ("input", "p", "train"))
    dropped, mask = call.value
    if train is False or dropped.numel() == 0:
        ones = call.compute(aten.ones_like.default, x, dtype=torch.bool)
        return call.compute(aten.clone.default, x), ones
    if p == 1:  # eager draws nothing for it
        zeros = call.compute(aten.zeros_like.default, x, dtype=torch.bool)
        return call.compute(aten.mul.Tensor, x, 0.0), zeros
    drawn = call.draw("bernoulli_", 1 - p, like=mask)
    # In this order and with this scale, as the device's kernel multiplies: the results are equal to the last bit.
    product = call.compute(aten.mul.Tensor, x, drawn)
    return call.compute(aten.mul.Tensor, product, _rounded(1 / (1 - p), dropped.dtype)), drawn


def _rounded(number: float, dtype: torch.dtype) -> float:
    with _disable_current_modes():
        return torch.tensor(number, dtype=dtype).item()


def _bernoulli_of_tensor(call: _Call) -> fx.Node:
    """The CPU's kernel compares a uniform number with each probability, in double precision for such probabilities."""
    probability = call.arguments.get("p") or call.arguments["self"]
    dtype = torch.float64 if probability.meta["val"].dtype == torch.float64 else torch.float32
    uniform = call.draw("uniform_", 0.0, 1.0, dtype=dtype)
    drawn = call.compute(aten.lt.Tensor, uniform, probability)
    return call.compute(aten._to_copy.default, drawn, dtype=call.value.dtype)


def _normal_of_tensors(call: _Call) -> fx.Node:
    drawn = call.draw("normal_", 0.0, 1.0)
    scaled = call.compute(aten.mul.Tensor, drawn, call.arguments["std"])
    return call.compute(aten.add.Tensor, scaled, call.arguments["mean"])


def _multinomial(call: _Call) -> fx.Node:
    """Exponential races, as the CPU's kernel runs them; with replacement it walks through the values instead."""
    weights, samples = call.arguments["self"], call.arguments["num_samples"]
    if call.arguments["replacement"] and samples != 1:
        raise _refusal(call.node, call.node.target)
    with detect_fake_mode([call.value]):
        like = torch.empty_like(weights.meta["val"])
    ratio = call.compute(aten.div.Tensor, weights, call.draw("exponential_", 1.0, like=like))
    if samples == 1:
        return call.compute(aten.argmax.default, ratio, -1, True)
    best = call.compute(aten.topk.default, ratio, samples)
    return call.compute(operator.getitem, best, 1)


_RULES: dict[Any, Callable[[_Call], Any]] = {
    aten.rand.default: _uniform,
    aten.rand.generator: _uniform,
    aten.rand_like.default: _uniform,
    aten.rand_like.generator: _uniform,
    aten.randn.default: _normal,
    aten.randn.generator: _normal,
    aten.randn_like.default: _normal,
    aten.randn_like.generator: _normal,
    aten.randint.default: _integers,
    aten.randint.generator: _integers,
    aten.randint.low: _integers,
    aten.randint.low_generator: _integers,
    aten.randint_like.default: _integers,
    aten.randint_like.generator: _integers,
    aten.randint_like.low_dtype: _integers,
    aten.randint_like.low_generator_dtype: _integers,
    aten.randperm.default: _permutation,
    aten.randperm.generator: _permutation,
    aten.native_dropout.default: _dropout,
    aten.bernoulli.p: _fill("bernoulli_", "p"),
    aten.bernoulli.default: _bernoulli_of_tensor,
    aten.bernoulli.Tensor: _bernoulli_of_tensor,
    aten.uniform.default: _fill("uniform_", "from", "to"),
    aten.normal_functional.default: _fill("normal_", "mean", "std"),
    aten.normal.float_float: _fill("normal_", "mean", "std"),
    aten.normal.Tensor_float: _normal_of_tensors,
    aten.normal.float_Tensor: _normal_of_tensors,
    aten.normal.Tensor_Tensor: _normal_of_tensors,
    aten.exponential.default: _fill("exponential_", "lambd"),
    aten.geometric.default: _fill("geometric_", "p"),
    aten.cauchy.default: _fill("cauchy_", "median", "sigma"),
    aten.log_normal.default: _fill("log_normal_", "mean", "std"),
    aten.random.default: _fill("random_"),
    aten.random.to: _fill("random_", "to"),
    getattr(aten.random, "from"): _fill("random_", "from", "to"),
    aten.multinomial.default: _multinomial,
    prims.normal.default: _fill("normal_", "mean", "std"),
    prims.uniform.default: _fill("uniform_", "low", "high"),
}


def _bind(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator by name, defaults included."""
    bound = {argument.name: argument.default_value for argument in target._schema.arguments}
    names = [argument.name for argument in target._schema.arguments if not argument.kwarg_only]
    return {**bound, **dict(zip(names, args, strict=False)), **kwargs}


def _static(state: torch.Tensor) -> torch.Tensor:
    """The partitioner gives states a symbolic size."""
    with detect_fake_mode([state]):
        return torch.empty(int(state.size(0)), dtype=state.dtype)


def _core_of(value: Any) -> int | None:
    first = value[0] if isinstance(value, (tuple, list)) else value
    return None if first.device.type == "cpu" else first.device.index or 0


def _refusal(node: fx.Node, target: Any) -> LoweringError:
    return lowering_error(
        node,
        "draws random numbers as the values of its inputs demand, so that they cannot be drawn before the graph runs.",
        "Keep that line outside torch.compile, or let such graphs run eagerly with "
        'options={"fallback_execution": True}.',
        target=target,
    )


# ---- when the graph runs --------------------------------------------------------------------------------------------

# A core's generator is drawn from through a copy of its state: two graphs must not copy the same one.
_drawing = threading.Lock()


def draw(draws: Sequence[Draw], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Make `draws` in order, on the host; `arguments` are the graph's own."""
    with _drawing:
        source = _Generators(arguments)
        drawn = [_draw(draw, source) for draw in draws]
        source.give_back()
    return drawn


def _draw(draw: Draw, source: _Generators) -> torch.Tensor:
    generator = source.of(draw)
    if draw.method == _STATE:
        return generator.get_state()
    if draw.method == _PERMUTATION:
        return torch.randperm(*draw.arguments, dtype=draw.dtype, generator=generator)
    memory = torch.empty_strided(draw.size, draw.stride, dtype=draw.dtype)
    return getattr(memory, draw.method)(*draw.arguments, generator=generator)


class _Generators:
    """The host's generators for the draws of one call: a core's own is of another device, its numbers are not."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self._arguments = arguments
        self._lent: dict[Any, tuple[torch.Generator, torch.Generator]] = {}

    def of(self, draw: Draw) -> torch.Generator:
        if draw.state is not None:
            return _with_state(self._arguments[draw.state])
        if draw.generator is not None:
            return self._on_host(self._arguments[draw.generator])
        if draw.core is None:
            return torch.default_generator
        return self._on_host(extension.load().default_generator(draw.core))

    def _on_host(self, generator: torch.Generator) -> torch.Generator:
        if generator.device.type == "cpu":
            return generator
        lent = self._lent.get(generator)
        if lent is None:
            lent = self._lent[generator] = generator, _with_state(generator.get_state())
        return lent[1]

    def give_back(self) -> None:
        for own, host in self._lent.values():
            own.set_state(host.get_state())


def _with_state(state: torch.Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state)
    return generator
