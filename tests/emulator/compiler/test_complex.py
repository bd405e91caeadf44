"""Graphs with complex tensors lower to real arithmetic, and mean the same."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from optimum_neuron_torch.emulator.compiler.errors import LoweringError


def _rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding as Llama 4 and DeepSeek-V2 write it."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    angle = torch.arange(x.shape[0], device=x.device)[:, None] * torch.linspace(0.1, 1, 4, device=x.device)
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


REAL = {
    "rotate": _rotate,
    "fnet": lambda x: torch.fft.fftn(x, dim=(0, 1)).real,
    "rfft": lambda x: torch.fft.rfft(x, norm="ortho").abs(),
    "irfft, even": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=8),
    "irfft, odd": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=7), n=7, norm="forward"),
    "ifft2": lambda x: torch.fft.ifft2(x.to(torch.complex64)).imag,
    "stft": lambda x: torch.view_as_real(
        torch.stft(x.flatten(), 8, 4, window=torch.ones(8, device=x.device), return_complex=True)
    ),
    "arithmetic": lambda x: ((x * 1j + 2) * (x - 1j) / (3 + x * 1j) - 0.5j).abs(),
    "magnitude": lambda x: torch.hypot(x * 1e30, x.flip(0)) + torch.hypot(x * 0, x * 0),
    "functions": lambda x: (x * (0.3 + 0.1j)).exp().angle(),
    "joined": lambda x: torch.view_as_real(torch.cat([x * 1j, torch.stack([x[0] + 1j])])),
    "chosen": lambda x: torch.where(x > 0, x * 1j, (x + 1j).conj()).imag,
    "product": lambda x: ((x + 1j) @ (x.t() - 2j)).real,
    "indexed": lambda x: (x * 1j)[:, [0, -1]].sum(0).imag,
}
COMPLEX = {
    "scaled": lambda z: z * 2j,
    "transposed": lambda z: (z + 1).t(),
    "fft": lambda z: torch.fft.fft(z),
    "conjugated": lambda z: z.conj() * z,
}


def _compile(function):
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False, options={"executor": "xla"})


@pytest.mark.parametrize("name", REAL)
def test_between_real_tensors(name):
    x = torch.randn(6, 8)
    torch.testing.assert_close(_compile(REAL[name])(x.to("neuron")).cpu(), REAL[name](x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", COMPLEX)
def test_across_the_border_of_the_graph(name):
    z = torch.randn(4, 6, dtype=torch.complex64)
    result, expected = _compile(COMPLEX[name])(z.to("neuron")), COMPLEX[name](z)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result.cpu(), expected, atol=1e-5, rtol=1e-5)


def test_an_input_is_written_in_place():
    def scale(z: torch.Tensor) -> torch.Tensor:
        z.mul_(2j)
        return z.real.sum()

    z = torch.randn(4, 6, dtype=torch.complex64)
    on_device = z.to("neuron")
    total = _compile(scale)(on_device)
    torch.testing.assert_close(total.cpu(), scale(z))
    torch.testing.assert_close(on_device.cpu(), z)


@pytest.mark.parametrize("name", ["rotate", "fnet", "rfft"])
def test_gradients(name):
    x = torch.randn(6, 8, requires_grad=True)
    on_device = x.detach().to("neuron").requires_grad_()
    (_compile(REAL[name])(on_device) * torch.arange(1, 1 + REAL[name](x).shape[-1], device="neuron")).sum().backward()
    (REAL[name](x) * torch.arange(1, 1 + REAL[name](x).shape[-1])).sum().backward()
    torch.testing.assert_close(on_device.grad.cpu(), x.grad, atol=1e-5, rtol=1e-5)


def test_what_has_no_real_form_is_refused_by_name():
    with pytest.raises(BackendCompilerFailed) as caught:
        _compile(lambda z: torch.linalg.qr(z)[1].real)(torch.randn(3, 3, dtype=torch.complex64, device="neuron"))
    error = caught.value.inner_exception
    assert isinstance(error, LoweringError)
    assert "complex numbers" in str(error) and "qr" in error.op
    assert "test_complex.py" in error.source
