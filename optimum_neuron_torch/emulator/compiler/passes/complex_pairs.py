"""Complex numbers as pairs of real ones, for the lowering.

Trainium has no complex numbers, and torch-mlir ends the process over some of them. Rotary embeddings (Llama 4,
DeepSeek) and Fourier transforms (FNet) are real arithmetic all the same: inside a graph a complex tensor becomes two
real ones, by PyTorch's own `ComplexTensor`; where it crosses the border of the graph it is `torch.view_as_real` of
itself, which is the same memory.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.complex_tensor import ComplexTensor
from torch._subclasses.complex_tensor._ops.common import lookup_complex
from torch.utils import _pytree as pytree

from optimum_neuron_torch.emulator.compiler.passes.devices import to_host_devices
from optimum_neuron_torch.emulator.compiler.source import lowering_error


aten = torch.ops.aten


def has_complex(gm: fx.GraphModule) -> bool:
    """Whether any tensor of the graph is complex."""
    return any(_is_complex(node.meta.get("val")) for node in gm.graph.nodes)


def _is_complex(values: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.is_complex() for leaf in pytree.tree_leaves(values))


def real_view(value: Any) -> Any:
    """A complex tensor as it crosses the border of the graph: its real view (..., 2). Anything else as it is."""
    return torch.view_as_real(value.resolve_conj()) if isinstance(value, Tensor) and value.is_complex() else value


class ComplexAsPairs(fx.Interpreter):
    """Runs a graph of complex tensors on pairs; a mixin before the interpreter that runs the rest."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._views: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "placeholder" and _is_complex(n.meta.get("val")):
            self._views[n] = super().run_node(n)
            return _from_view(self._views[n])
        if n.op != "call_function" or n.target is operator.getitem or not self._needs_pairs(n):
            return super().run_node(n)
        args, kwargs = to_host_devices(self.fetch_args_kwargs_from_env(n))
        if n.target is aten.copy_.default and n.args[0] in self._views:
            aten.copy_.default(self._views[n.args[0]], _to_view(args[1]))
            return args[1]
        with fx.traceback.set_current_meta(n):
            return _call(n, args, kwargs)

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().output(target, pytree.tree_map(_to_view, args), kwargs)

    def _needs_pairs(self, node: fx.Node) -> bool:
        return _is_complex([node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)])


def _call(node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operator that takes or makes complex tensors."""
    target: Any = node.target
    handler = _HANDLERS.get(target.overloadpacket) or lookup_complex(target, *args, **kwargs)
    try:
        if handler is None:
            raise NotImplementedError("no form of it in real numbers is known")
        return handler(*args, **kwargs)
    except (NotImplementedError, TypeError, AttributeError, AssertionError) as error:
        raise lowering_error(
            node,
            "computes with complex numbers, which Trainium has not, and does not lower to real ones.",
            f"  {error}",
            "Write it with real and imaginary parts, or keep it outside torch.compile.",
        ) from error


def _from_view(value: Tensor) -> ComplexTensor:
    return ComplexTensor(value.select(-1, 0), value.select(-1, 1))


def _to_view(value: Any) -> Any:
    return torch.stack([value.re, value.im], -1) if isinstance(value, ComplexTensor) else value


def _parts(value: Any) -> tuple[Any, Any]:
    """Real and imaginary part; the latter is None for what is real."""
    if isinstance(value, ComplexTensor):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag
    return value, None


def _pair(real: Tensor, imaginary: Tensor | None = None) -> ComplexTensor:
    real = real if real.is_floating_point() else real.to(torch.get_default_dtype())
    return ComplexTensor(real, torch.zeros_like(real) if imaginary is None else imaginary)


def _multiply(a: Any, b: Any) -> ComplexTensor:
    (a_re, a_im), (b_re, b_im) = _parts(a), _parts(b)
    if a_im is None:
        return _pair(a_re * b_re, a_re * b_im)
    if b_im is None:
        return _pair(a_re * b_re, a_im * b_re)
    return _pair(a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re)


def _divide(a: Any, b: Any) -> ComplexTensor:
    b_re, b_im = _parts(b)
    if b_im is None:
        return _pair(a.re / b_re, a.im / b_re)
    square = b_re * b_re + b_im * b_im
    numerator = _multiply(a, _pair(b_re, -b_im)) if isinstance(b, ComplexTensor) else _multiply(a, b.conjugate())
    return _pair(numerator.re / square, numerator.im / square)


def _add(a: Any, b: Any, alpha: Any = 1) -> ComplexTensor:
    (a_re, a_im), (b_re, b_im) = _parts(a), _parts(_multiply(b, alpha) if isinstance(b, ComplexTensor) else b * alpha)
    real = a_re + b_re
    imaginary = (0.0 if a_im is None else a_im) + (0.0 if b_im is None else b_im)
    if not isinstance(imaginary, Tensor):
        imaginary = torch.full_like(real, imaginary)
    return _pair(real, imaginary.expand(real.shape))


def _subtract(a: Any, b: Any, alpha: Any = 1) -> ComplexTensor:
    return _add(a, b, -alpha)


def _as_pairs(values: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [value if isinstance(value, ComplexTensor) else _pair(value) for value in values]
    return [pair.re for pair in pairs], [pair.im for pair in pairs]


def _join(join: Callable[..., Tensor]) -> Callable[..., ComplexTensor]:
    def joined(values: Sequence[Any], dim: int = 0) -> ComplexTensor:
        real, imaginary = _as_pairs(values)
        return _pair(join(real, dim), join(imaginary, dim))

    return joined


def _where(condition: Tensor, a: Any, b: Any) -> ComplexTensor:
    real, imaginary = _as_pairs([a, b])
    return _pair(torch.where(condition, *real), torch.where(condition, *imaginary))


def _sign(x: ComplexTensor) -> ComplexTensor:
    magnitude = torch.hypot(x.re, x.im)
    divisor = torch.where(magnitude > 0, magnitude, 1.0)
    return _pair(x.re / divisor, x.im / divisor)


def _reshape(x: ComplexTensor, shape: Sequence[int]) -> ComplexTensor:
    return _pair(x.re.reshape(shape), x.im.reshape(shape))


def _to_copy(x: Any, *, dtype: torch.dtype | None = None, **ignored: Any) -> Any:
    if isinstance(x, ComplexTensor):
        if dtype is not None and not dtype.is_complex:
            return x.re.to(dtype)
        return _pair(*(part.to(dtype.to_real()) if dtype else part for part in (x.re, x.im)))
    return _pair(x.to(dtype.to_real()))  # type: ignore[union-attr]


def _full(size: Sequence[int], value: complex, *, dtype: torch.dtype | None = None, **ignored: Any) -> ComplexTensor:
    real = (dtype or torch.complex64).to_real()
    value = complex(value)
    return _pair(torch.full(size, value.real, dtype=real), torch.full(size, value.imag, dtype=real))


def _fourier(x: ComplexTensor, axes: Sequence[int], normalization: int, forward: bool) -> ComplexTensor:
    """A discrete Fourier transform as matrix products, axis by axis."""
    for axis in axes:
        cosine, sine = _roots(x.size(axis), x.size(axis), like=x.re)
        sine = -sine if forward else sine
        re, im = x.re.movedim(axis, -1), x.im.movedim(axis, -1)
        re, im = re @ cosine - im @ sine, re @ sine + im @ cosine
        x = _pair(re.movedim(-1, axis), im.movedim(-1, axis))
    scale = _scale(math.prod(x.size(axis) for axis in axes), normalization)
    return x if scale == 1.0 else _multiply(x, scale)


def _roots(size: int, count: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of 2 pi j k / size, (size, count) by j and k."""
    j, k = torch.arange(size), torch.arange(count)
    # The product modulo the size keeps the angle small, and so exact.
    angle = (j.unsqueeze(1) * k.unsqueeze(0)).remainder(size).to(like.dtype) * (2 * math.pi / size)
    return angle.cos(), angle.sin()


def _scale(elements: int, normalization: int) -> float:
    """As `_fft_*` counts: none, by the root, by the number of elements."""
    return (1.0, elements**-0.5, 1.0 / elements)[normalization]


def _fourier_of_real(x: Tensor, axes: Sequence[int], normalization: int, onesided: bool) -> ComplexTensor:
    result = _fourier(_pair(x), axes, normalization, True)
    if not onesided:
        return result
    last, kept = axes[-1], x.size(axes[-1]) // 2 + 1
    return _pair(result.re.narrow(last, 0, kept), result.im.narrow(last, 0, kept))


def _fourier_to_real(x: ComplexTensor, axes: Sequence[int], normalization: int, last_size: int) -> Tensor:
    *others, last = axes
    x = _fourier(x, others, 0, False)
    re, im = x.re.movedim(last, -1), x.im.movedim(last, -1)
    cosine, sine = _roots(last_size, re.size(-1), like=re)
    # Of each frequency that is kept, its conjugate is not; the first, and the middle one of an even size, have none.
    weight = torch.full((re.size(-1),), 2.0, dtype=re.dtype)
    alone = (torch.arange(re.size(-1)) * 2).remainder(last_size) == 0
    weight = torch.where(alone, 1.0, weight)
    result = ((re * weight) @ cosine.t() - (im * weight) @ sine.t()).movedim(-1, last)
    elements = last_size * math.prod(x.size(axis) for axis in others)
    return result * _scale(elements, normalization)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    aten.complex: lambda real, imaginary: _pair(*torch.broadcast_tensors(real, imaginary)),
    aten.polar: lambda size, angle: _pair(size * angle.cos(), size * angle.sin()),
    aten.view_as_complex: _from_view,
    aten.view_as_real: _to_view,
    aten._to_copy: _to_copy,
    aten.full: _full,
    aten.mul: _multiply,
    aten.div: _divide,
    aten.add: _add,
    aten.sub: _subtract,
    aten.cat: _join(torch.cat),
    aten.stack: _join(torch.stack),
    aten.where: _where,
    aten.sgn: _sign,
    aten.view: _reshape,
    aten.reshape: _reshape,
    aten._fft_c2c: _fourier,
    aten._fft_r2c: _fourier_of_real,
    aten._fft_c2r: _fourier_to_real,
}
