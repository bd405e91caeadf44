"""Indices that count from the end mean the same in the lowered graph."""

import pytest
import torch


def _read(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[:, index]


def _read_list(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[..., [-2], :]


def _read_pairs(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x[index[:, None], index]


def _write(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, index] = 1.0
    return y


def _accumulate(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.index_put((index,), torch.ones(4, 3, device=x.device), accumulate=True)


@pytest.mark.parametrize("function", [_read, _read_list, _read_pairs, _write, _accumulate])
def test_negative_indices_equal_cpu(function):
    x, index = torch.randn(4, 5, 3), torch.tensor([-1, 2, -4, 0])
    if function is _accumulate:
        x = x[:, 0]
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False, options={"executor": "xla"})
    torch.testing.assert_close(compiled(x.to("neuron"), index.to("neuron")).cpu(), function(x, index))


def test_gradients_of_negative_indices_equal_cpu():
    x, index = torch.randn(4, 5, 3, requires_grad=True), torch.tensor([-1, 2, -4, 0, -1])
    compiled = torch.compile(_read, backend="neuron", fullgraph=True, dynamic=False, options={"executor": "xla"})
    on_device = x.detach().to("neuron").requires_grad_()
    compiled(on_device, index.to("neuron")).square().sum().backward()
    _read(x, index).square().sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), x.grad)
