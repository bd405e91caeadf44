"""The self check of the bucketed forward: a padded call against a plain one, on the host, in float32.

What can go wrong is structure, so a small copy of a large model, with random weights, does as well.
"""

from collections.abc import Iterable

import torch

from .axes import DimRule, OutputRules
from .flat import tensors_of
from .inputs import Dims, Pads
from .probing import Call, HostModule, Samples


TOLERANCE = 1e-5
# How far the check pads each axis; no bucket's size.
PADDING = 7


class SelfCheck:
    """Compares padded and plain calls of one form on `module`. `rules` are its outputs' there."""

    def __init__(self, module: HostModule, call: Call, samples: Samples, pads: Pads, dims: Dims) -> None:
        self.module, self.call, self.samples, self.pads, self.dims = module, call, samples, pads, dims

    def mismatch(
        self,
        rules: OutputRules,
        sizes: dict[str, int],
        padded_axes: Iterable[str],
        bucket: dict[str, int] | None = None,
    ) -> str | None:
        """What padding of `padded_axes` changes, or None. Raises what the plain call raises."""
        if bucket is None:
            bucket = {axis: size + PADDING * (axis in set(padded_axes)) for axis, size in sizes.items()}
        has_floats = any(leaf.tensor.is_floating_point() for leaf in self.samples.leaves if "mask" not in leaf.name)
        for floats in ("sampled", "normal", "negative") if has_floats else ("sampled",):
            leaves = self.samples.draw(self.dims, sizes, floats)
            given = [leaf.tensor for leaf in leaves if leaf.path != self.call.made]
            plain = tensors_of(self.module.run(self.call.plain_form, given))
            padded = [self.pads.pad(leaf, self.dims[leaf.path], bucket) for leaf in leaves]
            try:
                run = tensors_of(self.module.run(self.call.form, padded))
            except Exception as error:
                return f"it does not run padded ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]})"
            difference = self._difference(plain, run, rules, sizes, bucket)
            if difference is not None:
                return difference
        return None

    def _difference(
        self, plain: list[torch.Tensor], run: list[torch.Tensor], rules: OutputRules, sizes: dict, bucket: dict
    ) -> str | None:
        if not len(plain) == len(run) == len(rules):
            return "padding changes the number of outputs"
        for index, (expected, found, dims) in enumerate(zip(plain, run, rules, strict=True)):
            if tuple(rule.size(bucket) for rule in dims) != tuple(found.shape):
                return f"output {index} has the shape {tuple(found.shape)} when padded, for which there is no rule"
            found = narrow(found, dims, bucket, sizes)
            if found.shape != expected.shape:
                return f"output {index} has the shape {tuple(found.shape)} when cut, not {tuple(expected.shape)}"
            difference, scale = largest_difference(found, expected)
            if not difference <= TOLERANCE * scale:
                return f"padding changes output {index} by {difference:.1e} (tolerance {TOLERANCE * scale:.0e})"
        return None


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """(largest difference, scale): equal infinities and equal NaN differ by nothing."""
    if expected.numel() == 0:
        return 0.0, 1.0
    expected, found = expected.double(), found.double()
    is_same = (expected == found) | (expected.isnan() & found.isnan())
    difference = torch.where(is_same, torch.zeros(()), (expected - found).abs()).max().item()
    finite = expected[expected.isfinite()]
    return difference, max(1.0, finite.abs().max().item()) if finite.numel() else 1.0


def narrow(x: torch.Tensor, rules: tuple[DimRule, ...], bucket: dict[str, int], sizes: dict[str, int]) -> torch.Tensor:
    """A view of the true part of `x`; a product of axes is taken apart, cut and put together."""
    for dim, rule in enumerate(rules):
        if len(rule.axes) > 1:
            x = x.unflatten(dim, [*(bucket[axis] for axis in rule.axes), rule.scale])
            for offset, axis in enumerate(rule.axes):
                x = x.narrow(dim + offset, 0, sizes[axis])
            x = x.flatten(dim, dim + len(rule.axes))
        elif rule.size(sizes) != x.shape[dim]:
            x = x.narrow(dim, 0, rule.size(sizes))
    return x
