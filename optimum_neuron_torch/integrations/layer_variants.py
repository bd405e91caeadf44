"""What layers of Transformers and Diffusers compute that our kernels do: their forms, and what takes their forwards'
place.

Where no kernel runs, or it cannot take a call, a layer runs its own forward.

Shape legend: B batch, H query heads, G key heads, S positions, D head size, R rotated part of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import runtime
from ..buckets.notes import note
from ..nki.modes import kernels_run
from ..nki.ops import layer_norm as layer_norm_ops
from ..nki.ops import rms_norm as rms_norm_ops
from ..nki.ops import rotary_embedding as rotary_ops
from ..nki.ops import swiglu as swiglu_ops


VARIANT = "_neuron_variant"
# The activations that a layer had when it was recognised, each with its name.
ACTIVATIONS = "_neuron_activations"
# The method in which Transformers' experts are gated.
GATE = "_apply_gate"


@dataclass(frozen=True)
class Norm:
    """An RMSNorm: the attributes that hold its weight (None: it has none) and epsilon, how it scales (see
    `nki.rms_norm`), and whether autocast makes all of it float32, as it does with PyTorch's own functions.
    """

    weight: str | None
    eps: str
    offset: float
    scales_in_float32: bool
    autocasts: bool = False


@dataclass(frozen=True)
class LayerNorm:
    """A LayerNorm of the last dimension: the attributes that hold its weight, its bias (None: it has none), and its
    epsilon, and whether autocast makes all of it float32.
    """

    weight: str | None
    bias: str | None
    eps: str
    autocasts: bool = False


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
class GatedProjection:
    """What of a gated MLP comes before `down`, as Diffusers has it: the attribute that holds the projection, and the
    halves.
    """

    gate_up: str
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


Variant = Norm | LayerNorm | GatedMLP | FusedMLP | GatedProjection | Experts | Rotary


# ---- what takes a layer's forward's place ---------------------------------------------------------------------------


def run_norm(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: Norm = getattr(layer, VARIANT)
    if _kernels_run_for(hidden_states):
        arguments = (*_as_autocast(layer, variant, hidden_states, variant.weight), epsilon_of(layer, variant))
        reason = rms_norm_ops.refusal(*arguments, variant.scales_in_float32)
        if reason is None:
            return rms_norm_ops.rms_norm(*arguments, variant.offset, variant.scales_in_float32)
        _tell(type(layer).__name__, reason)
    return type(layer).forward(layer, hidden_states)


def run_layer_norm(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: LayerNorm = getattr(layer, VARIANT)
    if _kernels_run_for(hidden_states):
        rows, *vectors = _as_autocast(layer, variant, hidden_states, variant.weight, variant.bias)
        eps = epsilon_of(layer, variant)
        reason = _refusal_of_vectors(rows, *vectors) or layer_norm_ops.refusal(rows, eps)
        if reason is None:
            return layer_norm_ops.layer_norm(rows, *vectors, eps)
        _tell(type(layer).__name__, reason)
    return type(layer).forward(layer, hidden_states)


def _kernels_run_for(rows: torch.Tensor) -> bool:
    return runtime.is_neuron(rows) and kernels_run()


def _tell(name: str, reason: str | None) -> None:
    """Tell whoever listens that no kernel takes a call of the layer `name`, where there is a reason."""
    if reason is not None:
        note(f"{name}: no kernel takes a call ({reason}): torch does", "kernels")


def _refusal_of_vectors(rows: torch.Tensor, *vectors: torch.Tensor | None) -> str | None:
    """Of vectors of another dtype the op's definition, unlike some layers, takes what is left in that of the rows."""
    others = [vector.dtype for vector in vectors if vector is not None and vector.dtype != rows.dtype]
    return f"rows of {rows.dtype} and a vector of {others[0]}" if others else None


def _as_autocast(
    layer: torch.nn.Module, variant: Norm | LayerNorm, rows: torch.Tensor, *names: str | None
) -> tuple[torch.Tensor | None, ...]:
    """The rows, and the vectors of these names, in the dtypes that the layer computes with."""
    tensors = (rows, *(None if name is None else getattr(layer, name) for name in names))
    if not (variant.autocasts and torch.is_autocast_enabled(runtime.DEVICE_TYPE)):
        return tensors
    return tuple(tensor if tensor is None else tensor.float() for tensor in tensors)


def epsilon_of(layer: torch.nn.Module, variant: Norm | LayerNorm) -> float:
    """Its epsilon; torch.nn.RMSNorm has None for the least step of float32, in which it computes."""
    eps = getattr(layer, variant.eps)
    return torch.finfo(torch.float32).eps if eps is None else eps


def activations_of(layer: torch.nn.Module) -> tuple[tuple[str, Any], ...]:
    """As modules call what they hold of them: act_fn, activation, activation_fn."""
    attributes = {**vars(layer), **layer._modules}
    return tuple((name, value) for name, value in attributes.items() if "act" in name and callable(value))


def _gates_by_kernel(layer: torch.nn.Module, rows: torch.Tensor) -> bool:
    """Whether kernels run for `rows`, and the layer still has the activations that it was recognised with: a user may
    put others there.
    """
    if not _kernels_run_for(rows):
        return False
    others = [name for name, value in getattr(layer, ACTIVATIONS, ()) if getattr(layer, name, None) is not value]
    if others:
        _tell(type(layer).__name__, f"{others[0]} is another than it was in prepare()")
    return not others


def run_mlp(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: GatedMLP = getattr(layer, VARIANT)
    if not _gates_by_kernel(layer, hidden_states):
        return type(layer).forward(layer, hidden_states)
    gate, up = getattr(layer, variant.gate)(hidden_states), getattr(layer, variant.up)(hidden_states)
    _tell(type(layer).__name__, swiglu_ops.refusal(gate, up))
    return getattr(layer, variant.down)(swiglu_ops.swiglu(gate, up, variant.activation))


def run_fused_mlp(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: FusedMLP = getattr(layer, VARIANT)
    if not _gates_by_kernel(layer, hidden_states):
        return type(layer).forward(layer, hidden_states)
    gate_up = getattr(layer, variant.gate_up)(hidden_states)
    return getattr(layer, variant.down)(_gated_halves(layer, gate_up, variant.halves))


def run_gated_projection(layer: torch.nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    variant: GatedProjection = getattr(layer, VARIANT)
    if not _gates_by_kernel(layer, hidden_states):
        return type(layer).forward(layer, hidden_states)
    return _gated_halves(layer, getattr(layer, variant.gate_up)(hidden_states), variant.halves)


def _gated_halves(layer: torch.nn.Module, gate_up: torch.Tensor, halves: Halves) -> torch.Tensor:
    _tell(type(layer).__name__, swiglu_ops.refusal_of_halves(gate_up))
    return swiglu_ops.swiglu_halves(gate_up, halves.up_is_first, halves.activation)


# Called as the method whose place it takes: by that name a bound method is pickled, as in a stored graph.
def _apply_gate(layer: torch.nn.Module, gate_up: torch.Tensor) -> torch.Tensor:
    variant: Experts = getattr(layer, VARIANT)
    if not _gates_by_kernel(layer, gate_up):
        return type(layer)._apply_gate(layer, gate_up)
    return _gated_halves(layer, gate_up, variant.halves)


run_gate = _apply_gate


def run_rotary(
    layer: torch.nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    unsqueeze_dim: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    variant: Rotary = getattr(layer, VARIANT)
    if _kernels_run_for(q):
        tensors = as_rotated(variant, q, k, cos, sin, unsqueeze_dim)
        reason = None if _fits(*tensors) and unsqueeze_dim in (1, 2) else f"shapes {_shapes(q, k, cos, sin)}"
        reason = reason or rotary_ops.refusal(*tensors)
        if reason is None:
            return rotate(variant, tensors, (q.dtype, k.dtype), unsqueeze_dim)
        _tell("rotary embedding", reason)
    return type(layer).forward(layer, q, k, cos, sin, unsqueeze_dim)


def as_rotated(variant: Rotary, q, k, cos, sin, unsqueeze_dim: int) -> tuple[torch.Tensor, ...]:
    """Queries (B, H, S, D), keys (B, G, S, D), cosines and sines (B, S, R), as the op takes them."""
    if unsqueeze_dim == 2 and q.dim() == k.dim() == 4:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    if variant.repeats_half:
        cos, sin = (part[..., : part.shape[-1] // 2].repeat_interleave(2, -1) for part in (cos, sin))
    return tuple(tensor.float() for tensor in (q, k, cos, sin)) if variant.in_float32 else (q, k, cos, sin)


def _shapes(*tensors: torch.Tensor) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


def _fits(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    if not (q.dim() == k.dim() == 4 and cos.dim() == 3 and cos.shape == sin.shape):
        return False
    is_for_all = q.shape[2] == k.shape[2] == cos.shape[1] and cos.shape[0] in (1, q.shape[0])
    return is_for_all and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] >= cos.shape[2]


def rotate(
    variant: Rotary,
    tensors: tuple[torch.Tensor, ...],
    dtypes: tuple[torch.dtype, ...],
    unsqueeze_dim: int,
    operator: Callable = rotary_ops.rotary_embedding,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `operator` makes of `as_rotated()`, as Transformers' function gives it."""
    q, k = operator(*tensors, variant.interleaved)
    if variant.in_float32:
        q, k = q.to(dtypes[0]), k.to(dtypes[1])
    return (q.transpose(1, 2), k.transpose(1, 2)) if unsqueeze_dim == 2 else (q, k)
