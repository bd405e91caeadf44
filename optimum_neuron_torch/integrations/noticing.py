"""One line of advice for a Transformers model that was only moved to neuron and keeps compiling eager operations.

Nothing is watched but such a model: a forward hook, put on by `.to("neuron")`, compares the device's own counter from
call to call, and goes once it has spoken, once the model is prepared, or once many calls brought nothing new.
"""

import logging
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch.utils.hooks import RemovableHandle

from .. import runtime
from ..report import ledger_of


logger = logging.getLogger(__name__)

# Signatures since the model was moved, and calls at which there were more than at the one before: what a fixed shape
# costs once is no reason to speak.
SIGNATURES, GROWING_CALLS = 100, 4
MOST_CALLS = 1000


@dataclass
class _Watched:
    hook: RemovableHandle
    first: int
    last: int
    calls: int = 0
    growing: int = 0


_watched: "WeakKeyDictionary[torch.nn.Module, _Watched]" = WeakKeyDictionary()
_has_spoken = False


def watch(model: torch.nn.Module) -> None:
    """Watch a model that has just been moved, unless it is prepared, elsewhere, or the device counts nothing."""
    if _has_spoken or model in _watched or ledger_of(model) is not None:
        return
    count = runtime.counter("eager_signatures") if runtime.is_neuron(next(model.parameters(), None)) else None
    if count is not None:
        _watched[model] = _Watched(model.register_forward_hook(_notice), count, count)


def unwatch(model: torch.nn.Module) -> None:
    watched = _watched.pop(model, None)
    if watched is not None:
        watched.hook.remove()


def _notice(model: torch.nn.Module, args: tuple, output: object) -> None:
    global _has_spoken
    if torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing() or model.training:
        return
    watched = _watched.get(model)
    if watched is None:  # a copy of a watched model
        return
    count = runtime.counter("eager_signatures")
    watched.calls += 1
    if count > watched.last:
        watched.last, watched.growing = count, watched.growing + 1
    if watched.growing >= GROWING_CALLS and count - watched.first >= SIGNATURES and not _has_spoken:
        _has_spoken = True
        logger.info(
            "%s was moved to neuron and runs eagerly: %d eager signatures since, and more with every new shape. On "
            "Trainium each is a compilation. optimum_neuron_torch.prepare(model) runs it in a few static shapes.",
            type(model).__name__,
            count - watched.first,
        )
    if _has_spoken or watched.calls >= MOST_CALLS:
        unwatch(model)
