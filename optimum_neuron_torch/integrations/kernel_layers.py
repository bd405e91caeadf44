"""RMSNorm, rotary embedding and gated MLPs of Transformers models by our kernels, through the `kernels` package.

Layers are known by what they compute: each is run once, with weights and rows of our own, beside the definitions of
our ops. Where no kernel runs, or it cannot take a call, an exchanged layer runs its own forward.

Shape legend: B batch, H query heads, G key heads, S positions, D head size, R rotated part of it.
"""

import contextlib
import copy
import inspect
import itertools
import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any

import torch
from transformers.utils import is_kernels_available

from .. import runtime
from ..buckets.shell import shell_of
from ..nki.modes import kernels_run
from ..nki.ops import rms_norm as rms_norm_ops
from ..nki.ops import rotary_embedding as rotary_ops
from ..nki.ops import swiglu as swiglu_ops
from ..report import Ledger


logger = logging.getLogger(__name__)

KIND = "kernels"
VARIANT = "_neuron_variant"
# As the package's layers for it are called.
ROTARY = "rotary_pos_emb"
# The method in which Transformers' experts are gated.
GATE = "_apply_gate"

# Rows of very different size: an epsilon shows in small ones alone, a limit of what is gated in large ones alone.
_SCALES = (1e-3, 1e-1, 1.0, 30.0)
_GATED_SCALES = (*_SCALES, 1e3, 1e5)
_DTYPES = (torch.float32, torch.bfloat16)
# The order of sums may differ; bfloat16, whose steps are larger by far, tells where a result is rounded.
_ROUNDING = 2e-6


@dataclass(frozen=True)
class Norm:
    """An RMSNorm: the attributes that hold its weight and epsilon, and how it scales (see `nki.rms_norm`)."""

    weight: str | None
    eps: str
    offset: float
    scales_in_float32: bool


@dataclass(frozen=True)
class GatedMLP:
    """`down(act(gate(x)) * up(x))`: the attributes that hold the projections, and the activation."""

    gate: str
    up: str
    down: str
    activation: str


@dataclass(frozen=True)
class Halves:
    """`act(gate) * up` of the halves of what one projection gives, of which the gate is the first or the second."""

    activation: str
    up_is_first: bool


@dataclass(frozen=True)
class FusedMLP:
    """A gated MLP whose gate and up are one projection: the attributes that hold the projections, and the halves."""

    gate_up: str
    down: str
    halves: Halves


@dataclass(frozen=True)
class Experts:
    """Experts of one layer, whose weights are parameters: how their method `_apply_gate` gates rows of them all."""

    halves: Halves


@dataclass(frozen=True)
class Rotary:
    """A function that rotates queries and keys: which elements turn together, whether it takes the first half of
    cosines and sines for pairs of neighbours, and whether it computes in float32.
    """

    interleaved: bool
    repeats_half: bool
    in_float32: bool


Variant = Norm | GatedMLP | FusedMLP | Experts | Rotary


# ---- what takes a layer's forward's place ---------------------------------------------------------------------------


def run_norm(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: Norm = getattr(layer, VARIANT)
    if runtime.is_neuron(hidden_states) and kernels_run():
        weight = None if variant.weight is None else getattr(layer, variant.weight)
        arguments = (hidden_states, weight, getattr(layer, variant.eps))
        if rms_norm_ops.refusal(*arguments, variant.scales_in_float32) is None:
            return rms_norm_ops.rms_norm(*arguments, variant.offset, variant.scales_in_float32)
    return type(layer).forward(layer, hidden_states)


def run_mlp(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: GatedMLP = getattr(layer, VARIANT)
    if not (runtime.is_neuron(hidden_states) and kernels_run()):
        return type(layer).forward(layer, hidden_states)
    gate, up = getattr(layer, variant.gate)(hidden_states), getattr(layer, variant.up)(hidden_states)
    return getattr(layer, variant.down)(swiglu_ops.swiglu(gate, up, variant.activation))


def run_fused_mlp(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: FusedMLP = getattr(layer, VARIANT)
    if not (runtime.is_neuron(hidden_states) and kernels_run()):
        return type(layer).forward(layer, hidden_states)
    gate_up, halves = getattr(layer, variant.gate_up)(hidden_states), variant.halves
    return getattr(layer, variant.down)(swiglu_ops.swiglu_halves(gate_up, halves.up_is_first, halves.activation))


# Called as the method whose place it takes: by that name a bound method is pickled, as in a stored graph.
def _apply_gate(layer: torch.nn.Module, gate_up: torch.Tensor) -> torch.Tensor:
    variant: Experts = getattr(layer, VARIANT)
    if not (runtime.is_neuron(gate_up) and kernels_run()):
        return type(layer)._apply_gate(layer, gate_up)
    return swiglu_ops.swiglu_halves(gate_up, variant.halves.up_is_first, variant.halves.activation)


def run_rotary(
    layer: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    variant: Rotary = getattr(layer, VARIANT)
    if runtime.is_neuron(q) and kernels_run() and unsqueeze_dim in (1, 2):
        tensors = _as_rotated(variant, q, k, cos, sin, unsqueeze_dim)
        if _fits(*tensors) and rotary_ops.refusal(*tensors) is None:
            return _rotate(variant, tensors, (q.dtype, k.dtype), unsqueeze_dim)
    return type(layer).forward(layer, q, k, cos, sin, unsqueeze_dim)


def _as_rotated(variant: Rotary, q, k, cos, sin, unsqueeze_dim: int) -> tuple[torch.Tensor, ...]:
    """Queries (B, H, S, D), keys (B, G, S, D), cosines and sines (B, S, R), as the op takes them."""
    if unsqueeze_dim == 2 and q.dim() == k.dim() == 4:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    if variant.repeats_half:
        cos, sin = (part[..., : part.shape[-1] // 2].repeat_interleave(2, -1) for part in (cos, sin))
    return tuple(tensor.float() for tensor in (q, k, cos, sin)) if variant.in_float32 else (q, k, cos, sin)


def _fits(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    if not (q.dim() == k.dim() == 4 and cos.dim() == 3 and cos.shape == sin.shape):
        return False
    is_for_all = q.shape[2] == k.shape[2] == cos.shape[1] and cos.shape[0] in (1, q.shape[0])
    return is_for_all and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] >= cos.shape[2]


def _rotate(
    variant: Rotary, tensors: tuple[torch.Tensor, ...], dtypes: tuple[torch.dtype, ...], unsqueeze_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = rotary_ops.rotary_embedding(*tensors, variant.interleaved)
    if variant.in_float32:
        q, k = q.to(dtypes[0]), k.to(dtypes[1])
    return (q.transpose(1, 2), k.transpose(1, 2)) if unsqueeze_dim == 2 else (q, k)


def _as_layer(run: Callable, kind: type) -> type[torch.nn.Module]:
    """A layer in the form of the `kernels` package: without a state, and with the signature of `kind`'s forward."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if run is run_rotary:
            return run(self, *args, **kwargs)
        return run(self, *args, *kwargs.values())  # its one argument, by whatever name

    forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    # What a module's state, which graphs are found by, tells of a function.
    forward.__module__, forward.__qualname__ = run.__module__, run.__qualname__
    members = {"forward": forward, "can_torch_compile": True, "has_backward": True}
    return type(kind.__name__, (torch.nn.Module,), members)


# ---- what a layer computes ------------------------------------------------------------------------------------------


def recognise(layer: torch.nn.Module) -> tuple[Norm | GatedMLP | FusedMLP | Experts | None, str | None]:
    """What `layer` is of these, or None with the reason; None without a reason where it looks like none of them."""
    if is_experts(layer):
        return _as_experts(layer)
    projections = _projections_of(layer)
    if len(inspect.signature(type(layer).forward).parameters) != 2:  # self, and what goes through
        is_marked = getattr(type(layer), "kernel_layer_name", "").startswith("RMSNorm")
        is_meant = is_marked or is_like_gated_mlp(layer, projections)
        return None, "its forward takes more than rows" if is_meant else None
    parameters = dict(layer.named_parameters(recurse=False))
    if not any(True for _ in layer.children()):
        is_vector = len(parameters) == 1 and all(parameter.dim() == 1 for parameter in parameters.values())
        return _as_norm(layer, parameters) if is_vector and _epsilons(layer) else (None, None)
    others = [name for name, child in layer.named_children() if any(True for _ in child.parameters())]
    further = [*parameters, *(name for name in others if name not in projections)]
    orders = gated_orders(projections)
    if orders and not further:
        return _as_gated_mlp(layer, orders)
    if is_like_gated_mlp(layer, projections):
        return None, f"a gated MLP has no such weights: {', '.join(further or projections)}"
    return None, None


def _projections_of(layer: torch.nn.Module) -> dict[str, torch.nn.Module]:
    children = layer.named_children()
    return {
        name: child for name, child in children if hasattr(child, "in_features") and hasattr(child, "out_features")
    }


def _epsilons(layer: torch.nn.Module) -> list[str]:
    return [name for name, value in vars(layer).items() if isinstance(value, float)]


def _as_norm(layer: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> tuple[Norm | None, str | None]:
    ((name, weight),) = parameters.items()
    found: set[Norm] | None = None
    for dtype in _DTYPES:
        rows = _random(len(_SCALES), weight.shape[0], dtype=dtype) * torch.tensor(_SCALES, dtype=dtype)[:, None]
        own = torch.nn.Parameter(1 + 0.5 * _random(weight.shape[0], dtype=dtype, seed=1))
        expected, error = _output(_twin(layer, _parameters={**layer._parameters, name: own}), rows)
        if error is not None:
            return None, _does_not_run(error)
        alike = set()
        for eps, offset, in_float32 in itertools.product(_epsilons(layer), (0.0, 1.0), (False, True)):
            output = rms_norm_ops.rms_norm_torch(rows, own, getattr(layer, eps), offset, in_float32)
            if _is_same(output, expected):
                alike.add(Norm(name, eps, offset, in_float32))
        found = alike if found is None else found & alike
    if not found:
        return None, "it is no RMSNorm whose weight, or 1 + its weight, scales the normalised rows"
    variant = min(found, key=lambda norm: norm.eps)
    example = torch.empty(1, weight.shape[0], dtype=weight.dtype, device="meta")
    reason = rms_norm_ops.refusal(example, weight, getattr(layer, variant.eps), variant.scales_in_float32)
    return (variant, None) if reason is None else (None, reason)


# Of an MLP, and one before them.
_MOST_PROJECTIONS = 4


def is_like_gated_mlp(layer: torch.nn.Module, projections: dict[str, torch.nn.Module]) -> bool:
    """Whether it has an activation and, by their sizes, a gate, up and down, or gate and up in one, and down. Squares
    are projections of attention, and what has convolutions is something else.
    """
    if not has_activation(layer) or len(projections) > _MOST_PROJECTIONS or has_convolutions(layer):
        return False
    sizes = Counter((projection.in_features, projection.out_features) for projection in projections.values())
    is_apart = any(count > 1 and rows != width and (width, rows) in sizes for (rows, width), count in sizes.items())
    return is_apart or any(_goes_back_from_half(*pair) for pair in itertools.product(sizes, repeat=2))


def gated_orders(projections: dict[str, torch.nn.Module]) -> list[tuple[str, ...]]:
    """As which of these an MLP that has no others can use them: as gate, up and down, or as gate and up, and down."""
    sizes = {name: (child.in_features, child.out_features) for name, child in projections.items()}
    if len(sizes) == 3:
        orders = itertools.permutations(sizes)
        return [order for order in orders if sizes[order[0]] == sizes[order[1]] == sizes[order[2]][::-1]]
    if len(sizes) == 2:
        return [order for order in itertools.permutations(sizes) if _goes_back_from_half(*(sizes[n] for n in order))]
    return []


def _goes_back_from_half(gate_up: tuple[int, int], down: tuple[int, int]) -> bool:
    return gate_up == (down[1], 2 * down[0])


def has_activation(layer: torch.nn.Module) -> bool:
    """As modules call what they hold of them: act_fn, activation, activation_fn."""
    attributes = {**vars(layer), **layer._modules}
    return any("act" in name and callable(value) for name, value in attributes.items())


def has_convolutions(layer: torch.nn.Module) -> bool:
    return any(isinstance(child, torch.nn.modules.conv._ConvNd) for child in layer.children())


def _as_gated_mlp(
    layer: torch.nn.Module, orders: list[tuple[str, ...]]
) -> tuple[GatedMLP | FusedMLP | None, str | None]:
    for order in orders:
        found: set[Halves] | None = None
        for dtype in _DTYPES:
            own = dict(zip(order, _projections(len(order), dtype), strict=True))
            twin, rows = _twin(layer, _modules={**layer._modules, **own}), _gated_rows(6, dtype)
            expected, error = _output(twin, rows)
            if error is not None:
                # Of two projections, the one that would be `down` may come first.
                is_another = not has_activation(layer) or (len(order) == 2 and isinstance(error, RuntimeError))
                return None, None if is_another else _does_not_run(error)
            alike = {way for way, output in _ways(own, order, rows) if _is_same(output, expected)}
            found = alike if found is None else found & alike
        if found:
            halves = found.pop()  # more than one would give the same
            return GatedMLP(*order, halves.activation) if len(order) == 3 else FusedMLP(*order, halves), None
    return None, f"it is no act(gate) * up between projections with one of {', '.join(swiglu_ops.ACTIVATIONS)}"


def _ways(
    own: dict[str, torch.nn.Linear], order: tuple[str, ...], rows: torch.Tensor
) -> Iterator[tuple[Halves, torch.Tensor]]:
    """Ways to gate, with what an MLP of these projections would give; gate and up apart are tried in either order."""
    *inward, down = (own[name] for name in order)
    orders = (False,) if len(inward) == 2 else (False, True)
    with torch.no_grad():
        outputs = [projection(rows) for projection in inward]
        for halves in itertools.starmap(Halves, itertools.product(swiglu_ops.ACTIVATIONS, orders)):
            gate, up = outputs if len(outputs) == 2 else swiglu_ops.halves_of(*outputs, halves.up_is_first)
            yield halves, down(swiglu_ops.swiglu_torch(gate, up, halves.activation))


def is_experts(layer: torch.nn.Module) -> bool:
    """Whether the weights of gated projections are parameters of `layer`, or of children that are no projections: one
    matrix for each expert, or those of all experts in one.
    """
    is_meant = getattr(layer, "has_gate", True) if hasattr(type(layer), GATE) else has_activation(layer)
    if not is_meant or has_convolutions(layer):
        return False
    matrices = [parameter for parameter in layer.parameters(recurse=False) if parameter.dim() in (2, 3)]
    for child in layer.children():
        if not is_experts(child):
            matrices += [parameter for parameter in child.parameters(recurse=False) if parameter.dim() == 3]
    shapes = [tuple(sorted(matrix.shape[-2:])) for matrix in matrices]
    is_apart = len(shapes) >= 3 and len({*shapes}) == 1
    return is_apart or any(_is_double(*pair) for pair in itertools.permutations(shapes, 2))


def _is_double(gate_up: tuple[int, ...], down: tuple[int, ...]) -> bool:
    """Whether one matrix goes from where the other goes to, and is twice as wide between them."""
    return len(gate_up) == 2 and any(
        gate_up[1 - i] == down[1 - j] and gate_up[i] == 2 * down[j] for i in (0, 1) for j in (0, 1)
    )


# Of Transformers' ways to compute experts, those that gate rows of all of them at once by `_apply_gate`.
_GATING_AT_ONCE = ("grouped_mm", "batched_mm")


def _as_experts(layer: torch.nn.Module) -> tuple[Experts | None, str | None]:
    if not hasattr(type(layer), GATE):
        return None, "experts whose weights are no projections, gated in its forward: kernels gate in `_apply_gate`"
    found: set[Halves] = set()
    for dtype in _DTYPES:
        gate_up = _gated_rows(20, dtype)
        expected, error = _output(_twin(layer), gate_up, GATE)
        if error is not None:
            return None, _does_not_run(error, GATE)
        alike = set()
        for halves in itertools.starmap(Halves, itertools.product(swiglu_ops.ACTIVATIONS, (False, True))):
            output = swiglu_ops.swiglu_halves_torch(gate_up, halves.up_is_first, halves.activation)
            if _is_same(output, expected):
                alike.add(halves)
        found = alike if dtype is _DTYPES[0] else found & alike
    if not found:
        return None, f"it gates by no act(gate) * up of halves with one of {', '.join(swiglu_ops.ACTIVATIONS)}"
    implementation = getattr(getattr(layer, "config", None), "_experts_implementation", None)
    if implementation not in _GATING_AT_ONCE:
        ways = " or ".join(repr(way) for way in _GATING_AT_ONCE)
        return None, f"its experts_implementation is {implementation!r}: a kernel gates them with {ways}"
    return Experts(found.pop()), None


def _gated_rows(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Of each size five."""
    scales = torch.tensor(_GATED_SCALES, dtype=dtype).repeat_interleave(5)
    return _random(len(scales), width, dtype=dtype) * scales[:, None]


def recognise_rotary(function: torch.nn.Module) -> tuple[Rotary | None, str | None]:
    """What a function that Transformers made a layer of computes, or None with the reason."""
    if [*inspect.signature(type(function).forward).parameters][1:] != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return None, "it takes other arguments than q, k, cos, sin and unsqueeze_dim"
    found = {Rotary(*flags) for flags in itertools.product((False, True), repeat=3)}
    for dtype, size, unsqueeze_dim in itertools.product(_DTYPES, (8, 12), (1, 2)):
        q, k = _random(2, 3, 5, size, dtype=dtype), _random(2, 1, 5, size, dtype=dtype, seed=1)
        cos, sin = _random(2, 5, 8, dtype=dtype, seed=2), _random(2, 5, 8, dtype=dtype, seed=3)
        if unsqueeze_dim == 2:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        try:
            expected = type(function).forward(function, q, k, cos, sin, unsqueeze_dim)
        except Exception:  # most rotate whole heads alone
            if size == 8:
                return None, "it does not rotate heads as wide as its cosines"
            continue
        found = {variant for variant in found if _is_rotated(variant, (q, k, cos, sin), unsqueeze_dim, expected)}
    if not found:
        return None, "it is no rotation of halves, or of neighbours, by its cosines and sines"
    return min(found, key=lambda variant: (variant.in_float32, variant.repeats_half)), None


def _is_rotated(variant: Rotary, given: tuple[torch.Tensor, ...], unsqueeze_dim: int, expected: Any) -> bool:
    if not isinstance(expected, tuple) or len(expected) != 2:
        return False
    tensors = _as_rotated(variant, *given, unsqueeze_dim)
    outputs = _rotate(variant, tensors, (given[0].dtype, given[1].dtype), unsqueeze_dim)
    return all(map(_is_same, outputs, expected))


def _twin(layer: torch.nn.Module, **replaced: dict[str, Any]) -> torch.nn.Module:
    """A layer of the same attributes, for training: what is random there shows."""
    twin = shell_of(layer)
    twin.__dict__.update(replaced)
    twin.__dict__["_modules"] = {name: copy.deepcopy(child) for name, child in twin._modules.items()}
    return twin.train()


def _output(
    twin: torch.nn.Module, rows: torch.Tensor, method: str = "forward"
) -> tuple[torch.Tensor | None, Exception | None]:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return getattr(type(twin), method)(twin, rows), None
    except Exception as error:  # it is a foreign method, of which nothing is known
        return None, error


def _does_not_run(error: Exception, method: str = "forward") -> str:
    return f"its {method} does not run by itself ({type(error).__name__}: {error})".splitlines()[0]


def _is_same(output: torch.Tensor, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor) or (output.dtype, output.shape) != (expected.dtype, expected.shape):
        return False
    if output.dtype is torch.bfloat16:
        return torch.equal(output, expected)
    return torch.allclose(output, expected, rtol=_ROUNDING, atol=_ROUNDING * 1e-3)


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _projections(count: int, dtype: torch.dtype) -> Iterator[torch.nn.Linear]:
    """Gate, up and down, or gate and up in one, and down, of an MLP for rows of 6."""
    sizes = ((6, 10), (6, 10), (10, 6)) if count == 3 else ((6, 20), (10, 6))
    for seed, (inputs, outputs) in enumerate(sizes):
        linear = torch.nn.utils.skip_init(torch.nn.Linear, inputs, outputs, bias=True, dtype=dtype)
        with torch.no_grad():
            linear.weight.copy_(_random(outputs, inputs, seed=seed))
            linear.bias.copy_(_random(outputs, seed=seed + 10))
        yield linear.requires_grad_(False)


# ---- through the `kernels` package ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Repository:
    """A layer that is here already, in the form in which the package loads layers from the Hub."""

    layer: type[torch.nn.Module]

    def load(self) -> type[torch.nn.Module]:
        return self.layer


@cache
def _repository(run: Callable, kind: type[torch.nn.Module]) -> _Repository:
    return _Repository(_as_layer(run, kind))


def _kernelize(layer: torch.nn.Module, variant: Variant) -> bool:
    """Exchange the forward of one layer; False where its class does not want that."""
    import kernels

    kind = type(layer)
    repository = _repository(_RUN[type(variant)], kind)
    mapping = {name: {"cpu": repository} for name in _marks_below(layer)}  # for another device: these stay as they are
    before = [part for part in layer.modules() if "forward" not in vars(part)]
    with _marked(kind, type(variant).__name__) as mark:
        mapping[mark] = {runtime.DEVICE_TYPE: repository}
        with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
            mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
            kernels.kernelize(layer, mode=mode, device=runtime.DEVICE_TYPE)
    for part in before:
        if part is not layer:
            vars(part).pop("forward", None)
    if "forward" not in vars(layer):
        return False
    vars(layer)[VARIANT] = variant
    return True


def _marks_below(layer: torch.nn.Module) -> set[str]:
    marks = {getattr(type(part), "kernel_layer_name", None) for part in layer.modules() if part is not layer}
    return marks - {None}


@contextlib.contextmanager
def _marked(kind: type[torch.nn.Module], name: str) -> Iterator[str]:
    """The name by which the package knows layers of a class; within the block one that has none is given `name`."""
    import kernels

    if hasattr(kind, "kernel_layer_name"):
        yield kind.kernel_layer_name
        return
    kernels.replace_kernel_forward_from_hub(kind, name)
    try:
        yield name
    finally:
        del kind.kernel_layer_name, kind.kernel_condition


_RUN = {Norm: run_norm, GatedMLP: run_mlp, FusedMLP: run_fused_mlp, Rotary: run_rotary}


# ---- exchanging the forwards of a model -----------------------------------------------------------------------------


# Functions are shared by all models of a file of Transformers: exchanged while one of these is prepared.
_users: "weakref.WeakKeyDictionary[torch.nn.Module, weakref.WeakSet]" = weakref.WeakKeyDictionary()


class KernelLayers:
    """The layers of one model whose forward was exchanged, and the functions that it calls."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self._layers: list[torch.nn.Module] = []
        self._functions: list[torch.nn.Module] = []

    def exchange(self, layer: torch.nn.Module, variant: Variant) -> str | None:
        """Exchange one forward; returns why it was not, or None."""
        if isinstance(variant, Rotary) and layer in _users:
            self._use(layer)
            return None
        method = GATE if isinstance(variant, Experts) else "forward"
        if method in vars(layer):
            return f"it has a {method} of its own on this object"
        if isinstance(variant, Experts):
            # The package knows forwards alone, and this one does more than gate.
            vars(layer).update({GATE: MethodType(_apply_gate, layer), VARIANT: variant})
        elif not _kernelize(layer, variant):
            return "the condition under which its class takes kernels does not hold"
        if isinstance(variant, Rotary):
            self._use(layer)
        else:
            self._layers.append(layer)
        return None

    def _use(self, function: torch.nn.Module) -> None:
        _users.setdefault(function, weakref.WeakSet()).add(self._model())
        self._functions.append(function)

    def take_back(self) -> None:
        """Give each its own forward again."""
        for layer in self._layers:
            _give_back(layer)
        for function in self._functions:
            users = _users.get(function, set())
            users.discard(self._model())
            if not users:
                _users.pop(function, None)
                _give_back(function)
        self._layers, self._functions = [], []

    def __str__(self) -> str:
        names = Counter(type(layer).__name__ for layer in self._layers)
        names.update(type(function).kernel_layer_name for function in self._functions)
        return ", ".join(f"{count} {name}" for name, count in names.items()) or "none"


def _give_back(layer: torch.nn.Module) -> None:
    variant = vars(layer).pop(VARIANT, None)
    if variant is not None:
        vars(layer).pop(GATE if isinstance(variant, Experts) else "forward", None)


def exchange_layers(model: torch.nn.Module, ledger: Ledger) -> KernelLayers:
    """Let the layers of `model` that our kernels know run these; those that look alike and are not are reported.

    Raises StrictError for these where strict "kernels" asks for that.
    """
    exchanged = KernelLayers(model)
    try:
        for where, reason in _exchange(model, exchanged):
            ledger.depart(KIND, where, reason, warn=False)
    except BaseException:
        exchanged.take_back()
        raise
    logger.info("%s: kernels for %s", ledger.name, exchanged)
    return exchanged


def _exchange(model: torch.nn.Module, exchanged: KernelLayers) -> Iterator[tuple[str, str]]:
    """Exchange what can be; yields what cannot, with the reason."""
    try:
        import kernels  # noqa: F401
    except ImportError as error:
        reason = f"layers take kernels by a package ({error}): pip install 'optimum-neuron-torch[kernels]'"
        yield "RMSNorm, rotary embedding and MLP", reason
        return
    for layer in list(model.modules()):
        _give_back(layer)  # to a copy of a layer that was exchanged
        variant, reason = recognise(layer)
        if variant is not None:
            reason = exchanged.exchange(layer, variant)
        if reason is not None:
            yield type(layer).__name__, reason
    functions = rotary_functions(model)
    for name, function in functions.items():
        variant, reason = recognise_rotary(function)
        if variant is not None:
            reason = exchanged.exchange(function, variant)
        if reason is not None:
            yield name, reason
    if (
        not functions
        and not is_kernels_available()
        and any(name.endswith("inv_freq") for name, _ in model.named_buffers())
    ):
        yield "rotary embedding", "Transformers makes no layers of its functions with this version of `kernels`"


def rotary_functions(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The functions that code of `model` calls, where Transformers has made layers of them, by name.

    What a module says it calls may be a copy, if the module is: so they are found where its code finds them.
    """
    kinds = {type(layer) for layer in model.modules() if vars(layer).get("_kernel_funcs")}
    files = {kind.__module__ for kind in kinds} & sys.modules.keys()
    return {
        f"{name} of {file}": value
        for file in sorted(files)
        for name, value in vars(sys.modules[file]).items()
        if getattr(type(value), "kernel_layer_name", None) == ROTARY
    }
