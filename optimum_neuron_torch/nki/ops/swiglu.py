"""Gated linear units between their projections, act(gate) * up: as Transformers' MLPs compute it, in torch, and by
kernels.
"""

from typing import Any

import torch
import torch.nn.functional as F

from ..launching import kernel_op, launch, torch_op
from ..modes import kernels_run
from .rows import as_rows, refusal_of_rows


ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def swiglu(gate: torch.Tensor, up: torch.Tensor, activation: str = "silu") -> torch.Tensor:
    """As `optimum_neuron_torch.nki.swiglu`, by a kernel where one runs and can take the call."""
    takes_kernel = kernels_run(gate) and refusal(gate, up) is None
    return (swiglu_kernel if takes_kernel else swiglu_torch)(gate, up, activation)


def swiglu_halves(gate_up: torch.Tensor, up_is_first: bool = False, activation: str = "silu") -> torch.Tensor:
    """As `optimum_neuron_torch.nki.swiglu_halves`, by a kernel where one runs and can take the call."""
    takes_kernel = kernels_run(gate_up) and refusal_of_halves(gate_up) is None
    return (swiglu_halves_kernel if takes_kernel else swiglu_halves_torch)(gate_up, up_is_first, activation)


def refusal(gate: torch.Tensor, up: torch.Tensor) -> str | None:
    """Why the kernels cannot take a call, or None."""
    if gate.shape != up.shape or gate.dim() == 0:
        return f"shapes {tuple(gate.shape)} and {tuple(up.shape)}"
    return refusal_of_rows(gate, up)


def refusal_of_halves(gate_up: torch.Tensor) -> str | None:
    """Why the kernels cannot take a call, or None."""
    return refusal_of_rows(gate_up)


# ---- computed with torch --------------------------------------------------------------------------------------------


def _activated(gate: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "silu":
        return F.silu(gate)
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none")


def _gate_gradient(grad: torch.Tensor, gate: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "silu":
        return torch.ops.aten.silu_backward(grad, gate)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.aten.gelu_backward(grad, gate, approximate=approximate)


def _gated(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    return (_activated(gate, activation) * up).contiguous()


def _gradients(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_activated = (grad * up).sum_to_size(gate.shape).to(gate.dtype)
    grad_up = (grad * _activated(gate, activation)).sum_to_size(up.shape).to(up.dtype)
    return _gate_gradient(grad_activated.contiguous(), gate.contiguous(), activation), grad_up.contiguous()


@torch_op("swiglu")
def swiglu_torch(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """`act(gate) * up`, the activation rounded to the dtype of `gate`."""
    return _gated(gate, up, activation)


def _empty_output(gate, up, activation):
    return (gate * up).contiguous()


swiglu_torch.register_fake(_empty_output)


@torch_op("swiglu_backward")
def swiglu_backward_torch(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `gate` and `up`."""
    return _gradients(grad, gate, up, activation)


def _empty_gradients(grad, gate, up, activation):
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (gate, up))


swiglu_backward_torch.register_fake(_empty_gradients)


def halves_of(gate_up: torch.Tensor, up_is_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up, views."""
    first, second = gate_up.chunk(2, dim=-1)
    return (second, first) if up_is_first else (first, second)


@torch_op("swiglu_halves")
def swiglu_halves_torch(gate_up: torch.Tensor, up_is_first: bool, activation: str) -> torch.Tensor:
    """`swiglu_torch` of the halves."""
    return _gated(*halves_of(gate_up, up_is_first), activation)


def _empty_half(gate_up, up_is_first, activation):
    return gate_up.new_empty(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


swiglu_halves_torch.register_fake(_empty_half)


@torch_op("swiglu_halves_backward")
def swiglu_halves_backward_torch(
    grad: torch.Tensor, gate_up: torch.Tensor, up_is_first: bool, activation: str
) -> torch.Tensor:
    """The gradient of `gate_up`."""
    grad_gate, grad_up = _gradients(grad, *halves_of(gate_up, up_is_first), activation)
    return torch.cat((grad_up, grad_gate) if up_is_first else (grad_gate, grad_up), dim=-1)


def _empty_gradient(grad, gate_up, up_is_first, activation):
    return torch.empty_like(gate_up, memory_format=torch.contiguous_format)


swiglu_halves_backward_torch.register_fake(_empty_gradient)


# ---- computed by kernels --------------------------------------------------------------------------------------------


@kernel_op("swiglu_kernel", _empty_output)
def swiglu_kernel(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """`swiglu_torch` by a kernel."""
    from ..kernels.swiglu import swiglu_kernel as kernel

    return launch(kernel, as_rows(gate), as_rows(up), activation).view(gate.shape)


@kernel_op("swiglu_backward_kernel", _empty_gradients)
def swiglu_backward_kernel(
    grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """`swiglu_backward_torch` by a kernel."""
    from ..kernels.swiglu import swiglu_backward_kernel as kernel

    grad_gate, grad_up = launch(kernel, as_rows(grad), as_rows(gate), as_rows(up), activation)
    return grad_gate.view(gate.shape), grad_up.view(up.shape)


@kernel_op("swiglu_halves_kernel", _empty_half)
def swiglu_halves_kernel(gate_up: torch.Tensor, up_is_first: bool, activation: str) -> torch.Tensor:
    """`swiglu_halves_torch` by a kernel."""
    from ..kernels.swiglu import swiglu_halves_kernel as kernel

    return launch(kernel, as_rows(gate_up), up_is_first, activation).view(*gate_up.shape[:-1], -1)


@kernel_op("swiglu_halves_backward_kernel", _empty_gradient)
def swiglu_halves_backward_kernel(
    grad: torch.Tensor, gate_up: torch.Tensor, up_is_first: bool, activation: str
) -> torch.Tensor:
    """`swiglu_halves_backward_torch` by a kernel."""
    from ..kernels.swiglu import swiglu_halves_backward_kernel as kernel

    return launch(kernel, as_rows(grad), as_rows(gate_up), up_is_first, activation).view(gate_up.shape)


# ---- gradients of both ----------------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _gradients_by(backward: Any) -> Any:
    def gradients(ctx: Any, grad: torch.Tensor) -> tuple:
        return *backward(grad.contiguous(), *ctx.saved_tensors, ctx.activation), None

    return gradients


swiglu_torch.register_autograd(_gradients_by(swiglu_backward_torch), setup_context=_save)
swiglu_kernel.register_autograd(_gradients_by(swiglu_backward_kernel), setup_context=_save)


def _save_halves(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    gate_up, *ctx.options = inputs
    ctx.save_for_backward(gate_up)


def _gradient_by(backward: Any) -> Any:
    def gradient(ctx: Any, grad: torch.Tensor) -> tuple:
        return backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options), None, None

    return gradient


swiglu_halves_torch.register_autograd(_gradient_by(swiglu_halves_backward_torch), setup_context=_save_halves)
swiglu_halves_kernel.register_autograd(_gradient_by(swiglu_halves_backward_kernel), setup_context=_save_halves)
