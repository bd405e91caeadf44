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


@dataclass(frozen=True)
class Rotary:
    """A function that rotates queries and keys: which elements turn together, whether it takes the first half of
    cosines and sines for pairs of neighbours, and whether it computes in float32.
    """

    interleaved: bool
    repeats_half: bool
    in_float32: bool


Variant = Norm | GatedMLP | Rotary


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


_RUN = {Norm: run_norm, GatedMLP: run_mlp, Rotary: run_rotary}


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
        if "forward" in vars(layer):
            return "it has a forward of its own on this object"
        if not _kernelize(layer, variant):
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
    if vars(layer).pop(VARIANT, None) is not None:
        vars(layer).pop("forward", None)


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
