"""Comparisons that the model tests share."""

import torch


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> float:
    """`found` within `tolerance` of the largest magnitude of `expected` (at least 1); returns the difference."""
    difference = (found.cpu().double() - expected.cpu().double()).abs().max().item()
    limit = tolerance * max(1.0, expected.abs().max().item())
    assert difference <= limit, f"largest difference {difference:.2e}, allowed {limit:.2e}"
    return difference


def assert_bfloat16(found: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor) -> None:
    """`found` (bfloat16) is no further from the float32 `exact` than 1.5x the bfloat16 of the CPU, `plain`, is."""
    ours, theirs = ((x.cpu().double() - exact.double()).abs() for x in (found, plain))
    for name, reduce in (("largest", torch.max), ("mean", torch.mean)):
        assert reduce(ours) <= 1.5 * reduce(theirs), (
            f"{name} distance to float32: {reduce(ours):.3e} on neuron, {reduce(theirs):.3e} on the CPU"
        )
