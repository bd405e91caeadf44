"""The kernel of rotary embeddings against rotations in the complex plane, in float64."""

import pytest
import torch

from .reference import relative_error
from .running import MACHINES, TOLERANCES, made, run


# Batch, query heads, key heads, positions, head size, rotated part.
SHAPES = (
    (1, 2, 1, 1, 8, 8),
    (3, 4, 2, 1, 16, 6),
    (2, 3, 1, 37, 64, 64),
    (2, 40, 2, 1100, 4, 2),
)


def kernel():
    from optimum_neuron_torch.nki.kernels.rope import rope_kernel

    return rope_kernel


def angles(batch, positions, rotated, interleaved, dtype):
    """Cosines and sines of a different angle for each pair, and those numbers, for a rotation as well."""
    turns = torch.rand(batch, positions, rotated // 2, generator=torch.Generator().manual_seed(1)) * 6
    both = turns.repeat_interleave(2, -1) if interleaved else torch.cat((turns, turns), -1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotated(x, cos, sin, interleaved):
    """Each pair, as a complex number, times cos + i sin."""
    x, cos, sin = x.double(), cos.double()[:, None], sin.double()[:, None]
    size = cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    if interleaved:
        turned = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous())
        turned = turned * torch.complex(cos[..., ::2], sin[..., ::2])
        return torch.cat((torch.view_as_real(turned).flatten(-2), rest), -1)
    half = size // 2
    turned = torch.complex(part[..., :half], part[..., half:]) * torch.complex(cos[..., :half], sin[..., :half])
    return torch.cat((turned.real, turned.imag, rest), -1)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("has_own_angles", [False, True])
def test_values(has_own_angles, interleaved, dtype):
    """With the same angles for all rows of the batch, and with angles of each."""
    for (batch, heads, groups, positions, size, part), machine in zip(SHAPES, MACHINES, strict=True):
        query, key = (made((batch, count, positions, size), dtype)[0] for count in (heads, groups))
        cos, sin = angles(batch if has_own_angles else 1, positions, part, interleaved, dtype)
        results = run(kernel(), query, key, cos, sin, interleaved, machine=machine)
        for result, x in zip(results, (query, key), strict=True):
            assert result.dtype == dtype
            assert relative_error(result, rotated(x, cos, sin, interleaved)) <= TOLERANCES[dtype]
