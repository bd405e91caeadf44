"""Layers known by what they compute: each is run once, with weights and rows of our own, beside the definitions of
our ops.
"""

import copy
import dataclasses
import inspect
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .. import runtime
from ..buckets.shell import shell_of
from ..nki.ops import layer_norm as layer_norm_ops
from ..nki.ops import rms_norm as rms_norm_ops
from ..nki.ops import rotary_embedding as rotary_ops
from ..nki.ops import swiglu as swiglu_ops
from .layer_variants import (
    GATE,
    Experts,
    FusedMLP,
    GatedMLP,
    GatedProjection,
    Halves,
    LayerNorm,
    Norm,
    Rotary,
    Variant,
    activations_of,
    as_rotated,
    epsilon_of,
    rotate,
)


# Rows of very different size: an epsilon shows in small ones alone, a limit of what is gated in large ones alone.
_SCALES = (1e-3, 1e-1, 1.0, 30.0)
_GATED_SCALES = (*_SCALES, 1e3, 1e5)
_DTYPES = (torch.float32, torch.bfloat16)
# The order of sums may differ; bfloat16, whose steps are larger by far, tells where a result is rounded.
_ROUNDING = 2e-6
_HALVES = tuple(itertools.starmap(Halves, itertools.product(swiglu_ops.ACTIVATIONS, (False, True))))


def recognise(layer: torch.nn.Module) -> tuple[Variant | None, str | None]:
    """What `layer` is of these, or None with the reason; None without a reason where it looks like none of them."""
    if is_experts(layer):
        return _as_experts(layer)
    projections = _projections_of(layer)
    is_whole = not any(True for _ in layer.children())
    if arguments := _arguments_beyond_rows(type(layer).forward):
        is_marked = getattr(type(layer), "kernel_layer_name", "").startswith("RMSNorm")
        is_meant = is_marked or (is_whole and _is_called_norm(layer)) or is_like_gated_mlp(layer, projections)
        return None, f"its forward takes more than rows: {', '.join(arguments)}" if is_meant else None
    parameters = dict(layer.named_parameters(recurse=False))
    if is_whole:
        return _as_norm(layer, parameters)
    others = [name for name, child in layer.named_children() if any(True for _ in child.parameters())]
    further = [*parameters, *(name for name in others if name not in projections)]
    if len(projections) == 1 and not further:
        return _as_gated_projection(layer, *projections)
    orders = gated_orders(projections)
    if orders and not further:
        return _as_gated_mlp(layer, orders)
    if is_like_gated_mlp(layer, projections):
        return None, f"a gated MLP has no such weights: {', '.join(further or projections)}"
    return None, None


def _arguments_beyond_rows(forward: Any) -> list[str]:
    """What `forward` takes by name beside what goes through; ["nothing"], of one that takes nothing."""
    of_any = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(forward).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind not in of_any]
    return names[2:] if len(names) >= 2 else ["nothing"]


def _projections_of(layer: torch.nn.Module) -> dict[str, torch.nn.Module]:
    children = layer.named_children()
    return {
        name: child for name, child in children if hasattr(child, "in_features") and hasattr(child, "out_features")
    }


# ---- norms ----------------------------------------------------------------------------------------------------------

# Norms of other elements than a row's.
_OF_CHANNELS = (torch.nn.GroupNorm, torch.nn.modules.batchnorm._NormBase)
_CALLED = re.compile("(layer|rms|l2)_?norm", re.IGNORECASE)


def _is_called_norm(layer: torch.nn.Module) -> bool:
    """Whether its class is called as norms of rows are."""
    return _CALLED.search(type(layer).__name__) is not None


def _as_norm(
    layer: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]
) -> tuple[Norm | LayerNorm | None, str | None]:
    found = set() if isinstance(layer, _OF_CHANNELS) else set(_possible_norms(layer, parameters))
    has_epsilon = any("eps" in norm.eps for norm in found)
    is_meant = _is_called_norm(layer) or (has_epsilon and len(parameters) == 1)
    if not found:
        return None, _why_no_norm(parameters) if is_meant else None
    width = _width(layer, parameters)
    for dtype, *leading in ((torch.float32, 2, 2), (torch.bfloat16, 2, 1, 2)):  # where it takes rows from, shows
        rows = _random(len(_SCALES), width, dtype=dtype) * torch.tensor(_SCALES, dtype=dtype)[:, None]
        rows = rows.reshape(*leading, width)
        own = {
            name: torch.nn.Parameter(1 + 0.5 * _random(width, dtype=dtype, seed=seed))
            for seed, name in enumerate(parameters, 1)
        }
        expected, error = _output(_twin(layer, _parameters={**layer._parameters, **own}), rows)
        if error is not None:
            return None, _does_not_run(error) if is_meant else None
        found = {norm for norm in found if _normalises(norm, rows, own, epsilon_of(layer, norm), expected)}
    if not found:
        reason = "it is no RMSNorm whose weight, or 1 + its weight, scales the normalised rows, and no LayerNorm"
        return None, reason if is_meant else None
    variant = min(found, key=lambda norm: norm.eps)
    if reason := _refusal(layer, variant, parameters, width):
        return None, reason
    kind = (type(layer), variant)
    if kind not in _autocasting:
        _autocasting[kind] = _autocasts(layer, parameters, width)
    return dataclasses.replace(variant, autocasts=_autocasting[kind]), None


def _refusal(
    layer: torch.nn.Module, norm: Norm | LayerNorm, parameters: dict[str, torch.nn.Parameter], width: int
) -> str | None:
    """Why no kernel takes rows of this norm, whatever they are; None where one does."""
    weight = None if norm.weight is None else parameters[norm.weight]
    example = torch.empty(1, width, dtype=None if weight is None else weight.dtype, device="meta")
    eps = epsilon_of(layer, norm)
    if isinstance(norm, LayerNorm):
        return layer_norm_ops.refusal(example, eps)
    return rms_norm_ops.refusal(example, weight, eps, norm.scales_in_float32)


# Models have many layers of one class, and each takes longer than all else here.
_autocasting: dict[tuple[type, Norm | LayerNorm], bool] = {}


def _autocasts(layer: torch.nn.Module, parameters: dict[str, torch.nn.Parameter], width: int) -> bool:
    """Whether autocast on the device makes its result float32; nothing is computed."""
    kind = {"dtype": torch.bfloat16, "device": runtime.DEVICE_TYPE}
    with FakeTensorMode(), torch.autocast(runtime.DEVICE_TYPE, torch.bfloat16):
        own = {name: torch.nn.Parameter(torch.empty(width, **kind)) for name in parameters}
        output, _ = _output(_twin(layer, _parameters={**layer._parameters, **own}), torch.empty(2, 2, width, **kind))
    return output is not None and output.dtype is torch.float32


def _possible_norms(layer: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> Iterator[Norm | LayerNorm]:
    """All that it can be by its vectors and numbers."""
    if len(parameters) > 2 or len({tuple(parameter.shape) for parameter in parameters.values()}) > 1:
        return
    if any(parameter.dim() != 1 for parameter in parameters.values()):
        return
    epsilons = _epsilons(layer)
    if not parameters:
        for eps in epsilons:
            if "eps" in eps:  # many layers without weights have other numbers
                yield from (Norm(None, eps, 0.0, False), LayerNorm(None, None, eps))
    elif len(parameters) == 1:
        (name,) = parameters
        for eps in epsilons:
            yield from (Norm(name, eps, *flags) for flags in itertools.product((0.0, 1.0), (False, True)))
            yield LayerNorm(name, None, eps)
    else:
        pairs = itertools.permutations(parameters)
        yield from (LayerNorm(*names, eps) for names, eps in itertools.product(pairs, epsilons))


def _why_no_norm(parameters: dict[str, torch.nn.Parameter]) -> str:
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if len(shapes) > 2 or any(len(shape) != 1 for shape in shapes.values()):
        weights = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        return f"norms of rows have a vector that scales them, and one that is added, not {weights}"
    return "none of its attributes is an epsilon"


def _epsilons(layer: torch.nn.Module) -> list[str]:
    is_stock = isinstance(layer, torch.nn.RMSNorm)
    return [name for name, value in vars(layer).items() if isinstance(value, float) or (is_stock and name == "eps")]


def _width(layer: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]) -> int:
    for parameter in parameters.values():
        return parameter.shape[0]
    return next(iter(getattr(layer, "normalized_shape", ())), 16)  # most take rows of any width


def _normalises(
    norm: Norm | LayerNorm, rows: torch.Tensor, own: dict[str, torch.nn.Parameter], eps: float, expected: Any
) -> bool:
    """Whether `expected` is what the norm makes of the rows."""
    weight = None if norm.weight is None else own[norm.weight]
    if isinstance(norm, Norm):
        output = rms_norm_ops.rms_norm_torch(rows, weight, eps, norm.offset, norm.scales_in_float32)
        return _is_same(output, expected)
    bias = None if norm.bias is None else own[norm.bias]
    return _is_summed_otherwise(layer_norm_ops.layer_norm_torch(rows, weight, bias, eps), expected)


# ---- gated MLPs -----------------------------------------------------------------------------------------------------

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
    return bool(activations_of(layer))


def has_convolutions(layer: torch.nn.Module) -> bool:
    return any(isinstance(child, torch.nn.modules.conv._ConvNd) for child in layer.children())


def _as_gated_mlp(
    layer: torch.nn.Module, orders: list[tuple[str, ...]]
) -> tuple[GatedMLP | FusedMLP | None, str | None]:
    for order in orders:
        # Gate and up apart are tried in either order.
        found = {halves for halves in _HALVES if len(order) == 2 or not halves.up_is_first}
        for dtype in _DTYPES:
            own = dict(zip(order, _projections(len(order), dtype), strict=True))
            twin, rows = _twin(layer, _modules={**layer._modules, **own}), _gated_rows(6, dtype)
            expected, error = _output(twin, rows)
            if error is not None:
                # Of two projections, the one that would be `down` may come first.
                is_another = not has_activation(layer) or (len(order) == 2 and isinstance(error, RuntimeError))
                return None, None if is_another else _does_not_run(error)
            found = {halves for halves in found if _is_same(_put_through(own, order, halves, rows), expected)}
        if found:
            halves = found.pop()  # more than one would give the same
            return GatedMLP(*order, halves.activation) if len(order) == 3 else FusedMLP(*order, halves), None
    return None, f"it is no act(gate) * up between projections with one of {', '.join(swiglu_ops.ACTIVATIONS)}"


@torch.no_grad()
def _put_through(
    own: dict[str, torch.nn.Linear], order: tuple[str, ...], halves: Halves, rows: torch.Tensor
) -> torch.Tensor:
    """What a gated MLP of these projections gives."""
    *inward, down = (own[name] for name in order)
    outputs = [projection(rows) for projection in inward]
    gate, up = outputs if len(outputs) == 2 else swiglu_ops.halves_of(*outputs, halves.up_is_first)
    return down(swiglu_ops.swiglu_torch(gate, up, halves.activation))


def _as_gated_projection(layer: torch.nn.Module, name: str) -> tuple[GatedProjection | None, str | None]:
    found = set(_HALVES)
    for dtype in _DTYPES:
        gate_up, _ = _projections(2, dtype)
        rows = _gated_rows(6, dtype)
        expected, _ = _output(_twin(layer, _modules={**layer._modules, name: gate_up}), rows)
        if not isinstance(expected, torch.Tensor) or expected.shape != (len(rows), 10):
            return None, None  # not half of what is projected
        with torch.no_grad():
            found = {halves for halves in found if _is_same(_gated(halves, gate_up(rows)), expected)}
    if found:
        return GatedProjection(name, found.pop()), None
    is_meant = has_activation(layer) or "glu" in type(layer).__name__.lower()
    reason = f"it is no act(gate) * up of halves with one of {', '.join(swiglu_ops.ACTIVATIONS)}"
    return None, reason if is_meant else None


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
    found = set(_HALVES)
    for dtype in _DTYPES:
        gate_up = _gated_rows(20, dtype)
        expected, error = _output(_twin(layer), gate_up, GATE)
        if error is not None:
            return None, _does_not_run(error, GATE)
        found = {halves for halves in found if _is_same(_gated(halves, gate_up), expected)}
    if not found:
        return None, f"it gates by no act(gate) * up of halves with one of {', '.join(swiglu_ops.ACTIVATIONS)}"
    implementation = getattr(getattr(layer, "config", None), "_experts_implementation", None)
    if implementation not in _GATING_AT_ONCE:
        ways = " or ".join(repr(way) for way in _GATING_AT_ONCE)
        return None, f"its experts_implementation is {implementation!r}: a kernel gates them with {ways}"
    return Experts(found.pop()), None


def _gated(halves: Halves, gate_up: torch.Tensor) -> torch.Tensor:
    return swiglu_ops.swiglu_halves_torch(gate_up, halves.up_is_first, halves.activation)


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
    tensors = as_rotated(variant, *given, unsqueeze_dim)
    dtypes = (given[0].dtype, given[1].dtype)
    outputs = rotate(variant, tensors, dtypes, unsqueeze_dim, rotary_ops.rotary_embedding_torch)
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


def _is_summed_otherwise(output: torch.Tensor, expected: Any) -> bool:
    """Whether a mean and a variance that were summed in another order, in float32, tell the two apart: in bfloat16
    few numbers then round to their neighbours, where another rounding takes one of four there.
    """
    if not isinstance(expected, torch.Tensor) or (output.dtype, output.shape) != (expected.dtype, expected.shape):
        return False
    step = 2**-7 if output.dtype is torch.bfloat16 else _ROUNDING
    is_near = torch.allclose(output, expected, rtol=step, atol=_ROUNDING * expected.abs().max().item())
    return is_near and (step == _ROUNDING or (output != expected).float().mean().item() <= 0.01)


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
