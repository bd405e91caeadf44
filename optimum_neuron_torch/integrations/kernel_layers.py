"""RMSNorm, rotary embedding and gated MLPs of Transformers models by our kernels, through the `kernels` package.

Layers are known by what they compute: each is run once, with weights and rows of our own, beside the definitions of
our ops. Where no kernel runs, or it cannot take a call, an exchanged layer runs its own forward.
"""

import contextlib
import copy
import inspect
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from .. import runtime
from ..buckets.shell import shell_of
from ..nki.modes import kernels_run
from ..nki.ops import rms_norm as rms_norm_ops
from ..nki.ops import swiglu as swiglu_ops
from ..report import Ledger


logger = logging.getLogger(__name__)

KIND = "kernels"
VARIANT = "_neuron_variant"

# Rows of very different size: an epsilon shows in small ones alone.
_SCALES = (1e-3, 1e-1, 1.0, 30.0)
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


def _as_layer(run: Callable, kind: type) -> type[torch.nn.Module]:
    """A layer in the form of the `kernels` package: without a state, and with the signature of `kind`'s forward."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(self, *args, *kwargs.values())

    forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    # What a module's state, which graphs are found by, tells of a function.
    forward.__module__, forward.__qualname__ = run.__module__, run.__qualname__
    members = {"forward": forward, "can_torch_compile": True, "has_backward": True}
    return type(kind.__name__, (torch.nn.Module,), members)


# ---- what a layer computes ------------------------------------------------------------------------------------------


def recognise(layer: torch.nn.Module) -> tuple[Norm | GatedMLP | None, str | None]:
    """What `layer` is of these, or None with the reason; None without a reason where it looks like none of them."""
    if len(inspect.signature(type(layer).forward).parameters) != 2:  # self, and what goes through
        is_marked = getattr(type(layer), "kernel_layer_name", "").startswith("RMSNorm")
        return None, "its forward takes more than rows" if is_marked else None
    parameters = dict(layer.named_parameters(recurse=False))
    if not any(True for _ in layer.children()):
        is_vector = len(parameters) == 1 and all(parameter.dim() == 1 for parameter in parameters.values())
        return _as_norm(layer, parameters) if is_vector and _epsilons(layer) else (None, None)
    projections = {name: child for name, child in layer.named_children() if hasattr(child, "in_features")}
    others = [child for child in layer.children() if child not in projections.values()]
    has_weights_of_others = bool(parameters) or any(any(True for _ in child.parameters()) for child in others)
    if len(projections) == 3 and not has_weights_of_others:
        return _as_gated_mlp(layer, projections)
    return None, None


def _epsilons(layer: torch.nn.Module) -> list[str]:
    return [name for name, value in vars(layer).items() if isinstance(value, float)]


def _as_norm(layer: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> tuple[Norm | None, str | None]:
    ((name, weight),) = parameters.items()
    found: set[Norm] | None = None
    for dtype in _DTYPES:
        rows = _random(len(_SCALES), weight.shape[0], dtype=dtype) * torch.tensor(_SCALES, dtype=dtype)[:, None]
        own = torch.nn.Parameter(1 + 0.5 * _random(weight.shape[0], dtype=dtype, seed=1))
        expected, reason = _output(_twin(layer, _parameters={name: own}), rows)
        if reason is not None:
            return None, reason
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


def _as_gated_mlp(
    layer: torch.nn.Module, projections: dict[str, torch.nn.Module]
) -> tuple[GatedMLP | None, str | None]:
    sizes = {name: (child.in_features, child.out_features) for name, child in projections.items()}
    orders = [
        order for order in itertools.permutations(sizes) if sizes[order[0]] == sizes[order[1]] == sizes[order[2]][::-1]
    ]
    reason = None
    for gate, up, down in orders:
        own = {name: _projection(*((6, 10) if name != down else (10, 6)), seed) for seed, name in enumerate(sizes)}
        twin, rows = _twin(layer, _modules={**layer._modules, **own}), _random(5, 6)
        expected, reason = _output(twin, rows)
        if reason is not None:
            return None, reason
        for activation in swiglu_ops.ACTIVATIONS:
            output = own[down](swiglu_ops.swiglu_torch(own[gate](rows), own[up](rows), activation))
            if _is_same(output, expected):
                return GatedMLP(gate, up, down, activation), None
    if not orders:
        return None, None
    return None, f"it is no act(gate) * up between projections with one of {', '.join(swiglu_ops.ACTIVATIONS)}"


def _twin(layer: torch.nn.Module, **replaced: dict[str, Any]) -> torch.nn.Module:
    """A layer of the same attributes, for training: what is random there shows."""
    twin = shell_of(layer)
    twin.__dict__.update(replaced)
    twin.__dict__["_modules"] = {name: copy.deepcopy(child) for name, child in twin._modules.items()}
    return twin.train()


def _output(twin: torch.nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor | None, str | None]:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return type(twin).forward(twin, rows), None
    except Exception as error:  # it is a foreign forward, of which nothing is known
        return None, f"its forward does not run by itself ({type(error).__name__}: {error})".splitlines()[0]


def _is_same(output: torch.Tensor, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor) or (output.dtype, output.shape) != (expected.dtype, expected.shape):
        return False
    if output.dtype is torch.bfloat16:
        return torch.equal(output, expected)
    return torch.allclose(output, expected, rtol=_ROUNDING, atol=_ROUNDING * 1e-3)


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _projection(inputs: int, outputs: int, seed: int) -> torch.nn.Linear:
    linear = torch.nn.utils.skip_init(torch.nn.Linear, inputs, outputs, bias=True)
    with torch.no_grad():
        linear.weight.copy_(_random(outputs, inputs, seed=seed))
        linear.bias.copy_(_random(outputs, seed=seed + 10))
    return linear.requires_grad_(False)


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


def _kernelize(layer: torch.nn.Module, variant: Norm | GatedMLP) -> bool:
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


_RUN = {Norm: run_norm, GatedMLP: run_mlp}


# ---- exchanging the forwards of a model -----------------------------------------------------------------------------


@dataclass
class KernelLayers:
    """The layers of one model whose forward was exchanged."""

    layers: list[torch.nn.Module] = field(default_factory=list)

    def take_back(self) -> None:
        """Give each its own forward again."""
        for layer in self.layers:
            _give_back(layer)
        self.layers.clear()


def _give_back(layer: torch.nn.Module) -> None:
    if vars(layer).pop(VARIANT, None) is not None:
        vars(layer).pop("forward", None)


def exchange_layers(model: torch.nn.Module, ledger: Ledger) -> KernelLayers:
    """Let the layers of `model` that our kernels know run these; those that look alike and are not are reported.

    Raises StrictError for these where strict "kernels" asks for that.
    """
    exchanged = KernelLayers()
    try:
        import kernels  # noqa: F401
    except ImportError as error:
        reason = (
            f"layers are exchanged by the `kernels` package ({error}): pip install 'optimum-neuron-torch[kernels]'"
        )
        ledger.depart(KIND, "RMSNorm, rotary embedding and MLP", reason, warn=False)
        return exchanged
    for layer in list(model.modules()):
        _give_back(layer)  # to a copy of a layer that was exchanged
        variant, reason = recognise(layer)
        if variant is not None and "forward" in vars(layer):
            variant, reason = None, "it has a forward of its own on this object"
        if variant is not None and not _kernelize(layer, variant):
            reason = "the condition under which its class takes kernels does not hold"
        if reason is not None:
            try:
                ledger.depart(KIND, type(layer).__name__, reason, warn=False)
            except BaseException:
                exchanged.take_back()
                raise
        elif variant is not None:
            exchanged.layers.append(layer)
    names = Counter(type(layer).__name__ for layer in exchanged.layers)
    if names:
        counts = ", ".join(f"{count} {name}" for name, count in names.items())
        logger.info("%s: kernels for %s", ledger.name, counts)
    return exchanged
