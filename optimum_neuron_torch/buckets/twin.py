"""Copies of a model on the host for probing and checking: the whole model where it is small, else a shallow twin."""

import copy
from typing import Any

import torch

from .shell import shell_of


# A copy up to this size costs less than a second; beyond it a shallow twin with random weights takes its place.
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


def shallow_twin(model: torch.nn.Module) -> torch.nn.Module:
    """A Transformers model of the same class and configuration, but with one layer of each type (two at least) and
    random weights.

    Made on the host in float32; the global random state is left as it was.
    """
    config = copy.deepcopy(model.config)
    text_config = config.get_text_config(decoder=True)
    kinds = getattr(text_config, "layer_types", None)
    kept = _one_of_each(kinds) if kinds else list(range(min(2, text_config.num_hidden_layers)))
    if kinds:
        text_config.layer_types = [kinds[i] for i in kept]
    text_config.num_hidden_layers = len(kept)
    if config.is_encoder_decoder:
        _make_shallow(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return type(model)._from_config(config, dtype=torch.float32).eval()


def _make_shallow(config: Any) -> None:
    """Two layers in an encoder and a decoder, whose numbers of layers older configurations keep under own names."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        for name in ("num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "num_hidden_layers"):
            count = getattr(part, name, None)
            if isinstance(count, int) and count > 2 and not getattr(part, "layer_types", None):
                setattr(part, name, 2)


def _one_of_each(kinds: list[str]) -> list[int]:
    first = {kind: index for index, kind in reversed(list(enumerate(kinds)))}
    kept = sorted(first.values())
    return kept if len(kept) > 1 else list(range(min(2, len(kinds))))


def twin_of(model: torch.nn.Module) -> torch.nn.Module:
    """A copy for checks: `host_copy` of a small model, `shallow_twin` of a large one."""
    if parameter_bytes(model) <= LARGEST_COPY_BYTES or not hasattr(model, "_from_config"):
        return host_copy(model)
    return shallow_twin(model)
