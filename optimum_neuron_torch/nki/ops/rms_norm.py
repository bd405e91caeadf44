"""RMSNorm, alone or of the sum with a residual: as Transformers' modules compute it, in torch, and by kernels."""

from typing import Any

import torch

from ..launching import kernel_op, launch, torch_op
from ..modes import kernels_run
from .rows import as_rows, refusal_of_whole_rows


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    scales_in_float32: bool = False,
) -> torch.Tensor:
    """As `optimum_neuron_torch.nki.rms_norm`, by a kernel where one runs and can take the call."""
    takes_kernel = kernels_run(x) and refusal(x, weight, eps, scales_in_float32) is None
    operator = rms_norm_kernel if takes_kernel else rms_norm_torch
    return operator(x, weight, eps, offset, scales_in_float32)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    offset: float = 0.0,
    scales_in_float32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `optimum_neuron_torch.nki.add_rms_norm`, by a kernel where one runs and can take the call."""
    takes_kernel = kernels_run(x) and refusal(x, weight, eps, scales_in_float32, residual) is None
    operator = add_rms_norm_kernel if takes_kernel else add_rms_norm_torch
    return operator(x, residual, weight, eps, offset, scales_in_float32)


def refusal(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    scales_in_float32: bool = False,
    residual: torch.Tensor | None = None,
) -> str | None:
    """Why the kernels cannot take a call, or None."""
    if eps <= 0:
        return f"eps {eps}, where rows of zeros have no root"
    if weight is not None and not scales_in_float32 and weight.dtype != x.dtype:
        return f"a weight of {weight.dtype} that rows of {x.dtype} are not multiplied with in float32"
    if residual is None:
        return refusal_of_whole_rows(x)
    if residual.shape != x.shape:
        return f"a residual of shape {tuple(residual.shape)}"
    return refusal_of_whole_rows(x, residual)


# ---- computed with torch --------------------------------------------------------------------------------------------


def _normalised(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` over the root of its mean square, and one over that root: float32."""
    x = x.to(torch.float32)
    reciprocal = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * reciprocal, reciprocal


def _scale(weight: torch.Tensor, offset: float, scales_in_float32: bool) -> torch.Tensor:
    weight = weight.float() if scales_in_float32 else weight
    return weight if offset == 0.0 else offset + weight


@torch_op("rms_norm")
def rms_norm_torch(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float, scales_in_float32: bool
) -> torch.Tensor:
    """`x * rsqrt(mean(x^2) + eps) * (offset + weight)` along the last dimension.

    The product with the weight is either in float32, and rounded to the dtype of `x` (Gemma), or of what is rounded to
    the dtype of `x` already, in the dtype that this and the weight make together (Llama).
    """
    return _definition(x, weight, eps, offset, scales_in_float32)


def _definition(x, weight, eps, offset, scales_in_float32) -> torch.Tensor:
    normal, _ = _normalised(x.contiguous(), eps)
    if weight is None:
        return normal.to(x.dtype)
    scale = _scale(weight, offset, scales_in_float32)
    return (normal * scale).to(x.dtype) if scales_in_float32 else scale * normal.to(x.dtype)


def _empty_output(x, weight, eps, offset, scales_in_float32):
    is_rounded = weight is None or scales_in_float32
    dtype = x.dtype if is_rounded else torch.promote_types(x.dtype, weight.dtype)
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


rms_norm_torch.register_fake(_empty_output)


@torch_op("rms_norm_backward")
def rms_norm_backward_torch(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    grad_sum: torch.Tensor | None,
    eps: float,
    offset: float,
    scales_in_float32: bool,
    needs_weight_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `x`, to which `grad_sum` is added, and of `weight`; the latter is empty where it is not needed."""
    normal, reciprocal = _normalised(x.contiguous(), eps)
    inner = torch.float32 if scales_in_float32 else x.dtype
    grad_normal, grad_weight = grad.to(inner) if scales_in_float32 else grad, grad.new_empty(0)
    if weight is not None:
        if needs_weight_gradient:
            grad_weight = (grad_normal * normal.to(inner)).sum_to_size(weight.shape).to(weight.dtype)
        grad_normal = grad_normal * _scale(weight, offset, scales_in_float32)
    grad_normal = grad_normal.to(inner).float()
    grad_x = (grad_normal - normal * (grad_normal * normal).mean(-1, keepdim=True)) * reciprocal
    grad_x = grad_x.to(x.dtype)
    return grad_x if grad_sum is None else grad_x + grad_sum, grad_weight


def _empty_gradients(grad, x, weight, grad_sum, eps, offset, scales_in_float32, needs_weight_gradient):
    grad_weight = torch.empty_like(weight) if needs_weight_gradient else grad.new_empty(0)
    return torch.empty_like(x, memory_format=torch.contiguous_format), grad_weight


rms_norm_backward_torch.register_fake(_empty_gradients)


@torch_op("add_rms_norm")
def add_rms_norm_torch(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    scales_in_float32: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(rms_norm(x + residual), x + residual)`."""
    added = (x + residual).contiguous()
    return _definition(added, weight, eps, offset, scales_in_float32), added


def _empty_outputs(x, residual, *options):
    added = (x + residual).contiguous()
    return _empty_output(added, *options), added


add_rms_norm_torch.register_fake(_empty_outputs)


# ---- computed by kernels --------------------------------------------------------------------------------------------


@kernel_op("rms_norm_kernel", _empty_output)
def rms_norm_kernel(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float, scales_in_float32: bool
) -> torch.Tensor:
    """`rms_norm_torch` by a kernel."""
    from ..kernels.rms_norm import rms_norm_kernel as kernel

    return launch(kernel, as_rows(x), _contiguous(weight), eps, offset, scales_in_float32).view(x.shape)


@kernel_op("add_rms_norm_kernel", _empty_outputs)
def add_rms_norm_kernel(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float,
    scales_in_float32: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_torch` by a kernel."""
    from ..kernels.rms_norm import add_rms_norm_kernel as kernel

    tensors = (as_rows(x), as_rows(residual), _contiguous(weight))
    output, added = launch(kernel, *tensors, eps, offset, scales_in_float32)
    return output.view(x.shape), added.view(x.shape)


@kernel_op("rms_norm_backward_kernel", _empty_gradients)
def rms_norm_backward_kernel(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    grad_sum: torch.Tensor | None,
    eps: float,
    offset: float,
    scales_in_float32: bool,
    needs_weight_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm_backward_torch` by a kernel."""
    from ..kernels.rms_norm import rms_norm_backward_kernel as kernel

    tensors = (as_rows(grad), as_rows(x), _contiguous(weight))
    further = None if grad_sum is None else as_rows(grad_sum)
    results = launch(kernel, *tensors, eps, offset, scales_in_float32, further, needs_weight_gradient)
    if not needs_weight_gradient:
        return results.view(x.shape), grad.new_empty(0)
    return results[0].view(x.shape), results[1].to(weight.dtype).view(weight.shape)


def _contiguous(weight: torch.Tensor | None) -> torch.Tensor | None:
    return None if weight is None else weight.contiguous()


# ---- gradients of both ----------------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    x, weight, *ctx.options = inputs
    ctx.save_for_backward(x, weight)


def _save_sum(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, residual, weight, *ctx.options = inputs
    ctx.save_for_backward(output[1], weight)
    ctx.dtypes, ctx.shapes = (x.dtype, residual.dtype), (x.shape, residual.shape)


def _gradients_by(backward: Any) -> Any:
    def gradients(ctx: Any, grad: torch.Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad[1]
        grad_x, grad_weight = backward(grad.contiguous(), x, weight, None, *ctx.options, needed)
        return grad_x, grad_weight if needed else None, None, None, None

    return gradients


def _gradients_of_sum_by(backward: Any) -> Any:
    def gradients(ctx: Any, grad: torch.Tensor, grad_sum: torch.Tensor) -> tuple:
        added, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad[2]
        grad_sum = grad_sum.contiguous()
        grad_added, grad_weight = backward(grad.contiguous(), added, weight, grad_sum, *ctx.options, needed)
        both = (grad_added.sum_to_size(shape).to(dtype) for shape, dtype in zip(ctx.shapes, ctx.dtypes, strict=True))
        return *both, grad_weight if needed else None, None, None, None

    return gradients


rms_norm_torch.register_autograd(_gradients_by(rms_norm_backward_torch), setup_context=_save)
rms_norm_kernel.register_autograd(_gradients_by(rms_norm_backward_kernel), setup_context=_save)
add_rms_norm_torch.register_autograd(_gradients_of_sum_by(rms_norm_backward_torch), setup_context=_save_sum)
add_rms_norm_kernel.register_autograd(_gradients_of_sum_by(rms_norm_backward_kernel), setup_context=_save_sum)
