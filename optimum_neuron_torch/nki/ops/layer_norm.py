"""LayerNorm over the last dimension: PyTorch's own, and by kernels."""

from typing import Any

import torch
import torch.nn.functional as F

from ..launching import kernel_op, launch, torch_op
from ..modes import kernels_run
from .rows import as_rows, refusal_of_whole_rows


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """As `optimum_neuron_torch.nki.layer_norm`, by a kernel where one runs and can take the call."""
    takes_kernel = kernels_run(x) and refusal(x, eps) is None
    return (layer_norm_kernel if takes_kernel else layer_norm_torch)(x, weight, bias, eps)


def refusal(x: torch.Tensor, eps: float = 1e-5) -> str | None:
    """Why the kernels cannot take a call, or None."""
    if eps <= 0:
        return f"eps {eps}, where rows of equal numbers have no root"
    return refusal_of_whole_rows(x)


# ---- computed with torch --------------------------------------------------------------------------------------------


@torch_op("layer_norm")
def layer_norm_torch(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """`torch.nn.functional.layer_norm`; vectors of another dtype than `x` are cast to it."""
    weight, bias = (None if vector is None else vector.to(x.dtype) for vector in (weight, bias))
    return F.layer_norm(x.contiguous(), x.shape[-1:], weight, bias, eps)


def _empty_output(x, *options):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


layer_norm_torch.register_fake(_empty_output)


@torch_op("layer_norm_backward")
def layer_norm_backward_torch(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float, needs_vector_gradients: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `x`, of the weight and of the bias; the latter two are empty where not needed, and float32, of
    float64 rows float64.
    """
    width, exact = x.shape[-1], torch.promote_types(x.dtype, torch.float32)
    grad, numbers = grad.contiguous().to(exact), x.contiguous().to(exact)
    centred = numbers - numbers.mean(-1, keepdim=True)
    reciprocal = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normal = centred * reciprocal
    scaled = grad if weight is None else grad * weight.to(exact)
    mean, product = scaled.mean(-1, keepdim=True), (scaled * normal).mean(-1, keepdim=True)
    grad_x = ((scaled - mean - normal * product) * reciprocal).to(x.dtype)
    if not needs_vector_gradients:
        return grad_x, grad.new_empty(0), grad.new_empty(0)
    # Of one row, which has no dimension to sum over, the sum would be the gradient itself.
    return grad_x, (grad * normal).sum_to_size(width), grad[None].sum_to_size(width)


def _empty_gradients(grad, x, weight, eps, needs_vector_gradients):
    shape = x.shape[-1:] if needs_vector_gradients else (0,)
    vectors = (x.new_empty(shape, dtype=torch.promote_types(x.dtype, torch.float32)) for _ in range(2))
    return torch.empty_like(x, memory_format=torch.contiguous_format), *vectors


layer_norm_backward_torch.register_fake(_empty_gradients)


# ---- computed by kernels --------------------------------------------------------------------------------------------


@kernel_op("layer_norm_kernel", _empty_output)
def layer_norm_kernel(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """`layer_norm_torch` by a kernel."""
    from ..kernels.layer_norm import layer_norm_kernel as kernel

    weight, bias = (None if vector is None else vector.contiguous() for vector in (weight, bias))
    return launch(kernel, as_rows(x), weight, bias, eps).view(x.shape)


@kernel_op("layer_norm_backward_kernel", _empty_gradients)
def layer_norm_backward_kernel(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float, needs_vector_gradients: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`layer_norm_backward_torch` by a kernel."""
    from ..kernels.layer_norm import layer_norm_backward_kernel as kernel

    weight = None if weight is None else weight.contiguous()
    results = launch(kernel, as_rows(grad), as_rows(x), weight, eps, needs_vector_gradients)
    if needs_vector_gradients:
        return results[0].view(x.shape), results[1], results[2]
    nothing = (grad.new_empty(0, dtype=torch.float32) for _ in range(2))
    return results.view(x.shape), *nothing


# ---- gradients of both ----------------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    x, weight, bias, ctx.eps = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _gradients_by(backward: Any) -> Any:
    def gradients(ctx: Any, grad: torch.Tensor) -> tuple:
        x, weight = ctx.saved_tensors
        needs_weight, needs_bias = ctx.needs_input_grad[1:3]
        results = backward(grad.contiguous(), x, weight, ctx.eps, needs_weight or needs_bias)
        grad_weight = results[1].to(weight.dtype) if needs_weight else None
        return results[0], grad_weight, results[2].to(ctx.bias_dtype) if needs_bias else None, None

    return gradients


layer_norm_torch.register_autograd(_gradients_by(layer_norm_backward_torch), setup_context=_save)
layer_norm_kernel.register_autograd(_gradients_by(layer_norm_backward_kernel), setup_context=_save)
