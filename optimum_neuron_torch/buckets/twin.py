"""Copies of a small model on the host, for probing and checking. Of a large one `shallow.py` makes a twin."""

import copy

import torch

from .shell import shell_of


# A copy up to this size costs less than a second.
LARGEST_COPY_BYTES = 256 * 2**20


def parameter_bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def host_copy(module: torch.nn.Module) -> torch.nn.Module:
    """The module, without our hooks, in float32 on the host and in eval mode. Device memory is read, not used."""
    memo = {id(t): t.detach().to("cpu", copy=True) for t in module.buffers()}
    memo |= {
        id(p): torch.nn.Parameter(p.detach().to("cpu", copy=True), requires_grad=False) for p in module.parameters()
    }
    return copy.deepcopy(shell_of(module), memo).float().eval()
