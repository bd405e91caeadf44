"""Operators that torch-mlir lacks, each alone through the lowering and XLA, against the CPU."""

import pytest
import torch
import transformers.integrations.moe  # noqa: F401  registers its operators


def _grouped(rows: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return torch.ops.transformers.grouped_mm_fallback(rows, weights, offs)


def _offsets() -> torch.Tensor:
    """The second of four experts has no row, and the last rows belong to nobody."""
    return torch.tensor([3, 3, 7, 9], dtype=torch.int32)


def _triangular(size: int, *batch: int) -> torch.Tensor:
    """Well conditioned, full: what is not to be read is there to be read."""
    return torch.randn(*batch, size, size) / size + 2 * torch.eye(size)


CASES = {
    "stable sort": (lambda x: x.sort(stable=True), (torch.randint(0, 3, (5, 40)),)),
    "stable sort, descending": (
        lambda x: x.sort(stable=True, descending=True, dim=0),
        (torch.randint(0, 3, (40, 5)),),
    ),
    "unsorted topk": (lambda x: x.topk(3, sorted=False)[0].sum(-1), (torch.randn(5, 9),)),
    "smallest": (lambda x: x.topk(2, largest=False, sorted=False)[1].sum(-1), (torch.randn(5, 9),)),
    "sum of a number, axis kept": (lambda x: x.sum(0, keepdim=True), (torch.tensor(1.5),)),
    "mean of a number, axis kept": (lambda x: x.mean(-1, keepdim=True), (torch.tensor(1.5),)),
    "largest of a number, axis kept": (lambda x: x.amax(0, keepdim=True), (torch.tensor(1.5),)),
    "unfold": (lambda x: x.unfold(1, 4, 3), (torch.randn(2, 11, 3),)),
    "unfold, overlapping": (lambda x: x.unfold(1, 5, 2), (torch.randn(2, 11, 3),)),
    "unfold, a whole axis": (lambda x: x.unfold(-1, 3, 1), (torch.randn(2, 3),)),
    "lower solve": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        (_triangular(13, 2, 1), torch.randn(2, 3, 13, 4)),
    ),
    "upper solve": (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), (_triangular(8), torch.randn(8, 3))),
    "solve from the right": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True, left=False, unitriangular=True),
        (_triangular(6, 2), torch.randn(2, 3, 6)),
    ),
    "hypot": (torch.hypot, (torch.tensor([3e30, 0.0, -1.0, 1e-30]), torch.tensor([4e30, 0.0, float("inf"), 1e-30]))),
    "grouped product": (_grouped, (torch.randn(10, 6), torch.randn(4, 6, 5), _offsets())),
}
GRADIENTS = (
    "unsorted topk",
    "unfold",
    "unfold, overlapping",
    "unfold, a whole axis",
    "grouped product",
    "lower solve",
    "upper solve",
)


def _compile(function):
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False, options={"executor": "xla"})


@pytest.mark.parametrize("name", CASES)
def test_equals_cpu(name):
    function, inputs = CASES[name]
    expected = function(*inputs)
    result = _compile(function)(*(value.to("neuron") for value in inputs))
    pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
    for one, other in pairs:
        torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_cpu(name):
    function, inputs = CASES[name]
    on_host = [value.clone().requires_grad_(value.is_floating_point()) for value in inputs]
    on_device = [value.to("neuron").requires_grad_(value.is_floating_point()) for value in inputs]
    function(*on_host).square().sum().backward()
    _compile(function)(*on_device).square().sum().backward()
    for one, other in zip(on_device, on_host, strict=True):
        if other.requires_grad:
            torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_grouped_product_of_bfloat16_trains():
    """PyTorch's own operator, whose weights' gradient groups a product of two matrices."""
    rows, weights = torch.randn(16, 8, dtype=torch.bfloat16), torch.randn(3, 8, 16, dtype=torch.bfloat16)
    offs = torch.tensor([5, 5, 16], dtype=torch.int32)

    def function(rows: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(rows, weights, offs=offs)

    on_host = [rows.float().requires_grad_(), weights.float().requires_grad_()]
    on_device = [rows.to("neuron").requires_grad_(), weights.to("neuron").requires_grad_()]
    expected = torch.cat([on_host[0][:5] @ on_host[1][0], on_host[0][5:] @ on_host[1][2]])
    result = _compile(function)(*on_device, offs.to("neuron"))
    expected.sum().backward()
    result.sum().backward()
    torch.testing.assert_close(result.cpu().float(), expected, atol=5e-2, rtol=2e-2)
    for one, other in zip(on_device, on_host, strict=True):
        torch.testing.assert_close(one.grad.cpu().float(), other.grad, atol=5e-2, rtol=2e-2)
