"""Softmax cross entropy: PyTorch's own in float32, as Transformers' losses compute it, and by kernels.

Shape legend: T rows, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F

from ..launching import kernel_op, launch, torch_op
from ..modes import kernels_run
from .rows import refusal_of_rows


REDUCTIONS = ("mean", "sum", "none")
# Entries that the kernel counts in float32, and numbers that it addresses with 31 bits.
MAX_VOCABULARY = 2**24
MAX_NUMBERS = 2**31 - 1


def cross_entropy(
    logits_TV: torch.Tensor,
    labels_T: torch.Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """As `optimum_neuron_torch.nki.cross_entropy`, by a kernel where one runs and can take the call."""
    options = (ignore_index, label_smoothing, softcap, reduction)
    if kernels_run(logits_TV) and refusal(logits_TV, label_smoothing, softcap) is None:
        return cross_entropy_kernel(logits_TV, labels_T, *options)[0]
    return cross_entropy_torch(logits_TV, labels_T, *options)


def refusal(logits_TV: torch.Tensor, label_smoothing: float = 0.0, softcap: float | None = None) -> str | None:
    """Why the kernels cannot take a call, or None."""
    if label_smoothing >= 1.0:
        return f"label_smoothing {label_smoothing}, which leaves labels no weight"
    if softcap is not None and softcap <= 0:
        return f"softcap {softcap}"
    if logits_TV.shape[1] > MAX_VOCABULARY:
        return f"a vocabulary of {logits_TV.shape[1]}, above {MAX_VOCABULARY}"
    if logits_TV.numel() > MAX_NUMBERS:
        return f"{logits_TV.numel()} logits, above {MAX_NUMBERS}"
    return refusal_of_rows(logits_TV)


def _capped(logits: torch.Tensor, softcap: float | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits in float32 at least, with the softcap, and the tanh that this took."""
    numbers = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if softcap is None:
        return numbers, None
    tanh = torch.tanh(numbers / softcap)
    return softcap * tanh, tanh


def _row_gradients(grad: torch.Tensor, labels: torch.Tensor, ignore_index: int, reduction: str) -> torch.Tensor:
    """(T,): the gradient of each row's loss from that of the result; 0 where the label is ignored."""
    is_seen = labels != ignore_index
    if reduction == "mean":
        grad = grad / is_seen.sum()
    return torch.where(is_seen, grad, torch.zeros_like(grad))


# ---- computed with torch --------------------------------------------------------------------------------------------


@torch_op("cross_entropy")
def cross_entropy_torch(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    reduction: str,
) -> torch.Tensor:
    """Cross entropy of logits (T, V) and labels (T,): float32, (T,) or one number."""
    numbers, _ = _capped(logits, softcap)
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
    return F.cross_entropy(numbers, labels.long(), **options)


def _empty_loss(logits, labels, ignore_index, label_smoothing, softcap, reduction):
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.new_empty(labels.shape if reduction == "none" else (), dtype=dtype)


cross_entropy_torch.register_fake(_empty_loss)


@torch_op("cross_entropy_backward")
def cross_entropy_backward_torch(
    grad: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    reduction: str,
) -> torch.Tensor:
    """The gradient of the logits from that of the result."""
    numbers, tanh = _capped(logits.contiguous(), softcap)
    vocabulary = logits.shape[1]
    entries = torch.arange(vocabulary, device=logits.device)
    is_label = (entries == labels[:, None]).to(numbers.dtype)
    difference = numbers.softmax(-1) - is_label * (1.0 - label_smoothing) - label_smoothing / vocabulary
    gradient = difference * _row_gradients(grad, labels, ignore_index, reduction)[:, None]
    return (gradient if tanh is None else gradient * (1 - tanh * tanh)).to(logits.dtype)


def _empty_gradient(grad, logits, *others):
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


cross_entropy_backward_torch.register_fake(_empty_gradient)


def _save_for_torch(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    logits, labels, *ctx.options = inputs
    ctx.save_for_backward(logits, labels)


def _gradients_by_torch(ctx: Any, grad: torch.Tensor) -> tuple:
    return cross_entropy_backward_torch(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None, None


cross_entropy_torch.register_autograd(_gradients_by_torch, setup_context=_save_for_torch)


# ---- computed by kernels --------------------------------------------------------------------------------------------


def _empty_loss_and_totals(logits, labels, *options):
    return _empty_loss(logits, labels, *options), logits.new_empty((*labels.shape, 2), dtype=torch.float32)


@kernel_op("cross_entropy_kernel", _empty_loss_and_totals)
def cross_entropy_kernel(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    reduction: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`cross_entropy_torch` by a kernel; and (T, 2), minus the largest logit and the sum of exp(logit - largest).

    A label that is neither an entry of the vocabulary nor ignored gives NaN, and such gradients.
    """
    from ..kernels.cross_entropy import cross_entropy_kernel as kernel

    vocabulary = logits.shape[1]
    loss, totals = launch(kernel, logits.contiguous(), _entries(labels, vocabulary), label_smoothing, softcap)
    loss = _of_entries(loss, labels, vocabulary)
    is_seen = labels != ignore_index
    loss = torch.where(is_seen, loss, torch.zeros_like(loss))
    if reduction == "none":
        return loss, totals
    return loss.sum() / is_seen.sum() if reduction == "mean" else loss.sum(), totals


@kernel_op("cross_entropy_backward_kernel", _empty_gradient)
def cross_entropy_backward_kernel(
    grad: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    totals: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    softcap: float | None,
    reduction: str,
) -> torch.Tensor:
    """`cross_entropy_backward_torch` by a kernel, from the totals of the forward pass."""
    from ..kernels.cross_entropy import cross_entropy_backward_kernel as kernel

    vocabulary = logits.shape[1]
    grad_T = _of_entries(grad.expand(labels.shape), labels, vocabulary)
    grad_T = _row_gradients(grad_T, labels, ignore_index, reduction).contiguous()
    entries = _entries(labels, vocabulary)
    return launch(kernel, grad_T, logits.contiguous(), entries, totals, label_smoothing, softcap)


def _entries(labels: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Labels as kernels take them; what is no entry of the vocabulary becomes one."""
    return labels.clamp(0, vocabulary - 1).to(torch.int32).contiguous()


def _of_entries(numbers_T: torch.Tensor, labels: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """NaN where a label is no entry of the vocabulary."""
    return torch.where((labels >= 0) & (labels < vocabulary), numbers_T, torch.full_like(numbers_T, float("nan")))


def _save_for_kernel(ctx: Any, inputs: tuple, output: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, labels, *ctx.options = inputs
    ctx.save_for_backward(logits, labels, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradients_by_kernel(ctx: Any, grad: torch.Tensor, _: Any) -> tuple:
    return cross_entropy_backward_kernel(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None, None


cross_entropy_kernel.register_autograd(_gradients_by_kernel, setup_context=_save_for_kernel)
