"""Norms, rotary embedding and gated MLPs of Transformers and Diffusers models by our kernels, through the `kernels`
package.
"""

import contextlib
import inspect
import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any

import torch

from .. import runtime
from ..config import NeuronConfig
from ..nki.modes import kernels_run
from ..report import Ledger
from .layer_recognition import recognise, recognise_rotary
from .layer_variants import (
    ACTIVATIONS,
    GATE,
    VARIANT,
    Experts,
    FusedMLP,
    GatedMLP,
    GatedProjection,
    LayerNorm,
    Norm,
    Rotary,
    Variant,
    activations_of,
    run_fused_mlp,
    run_gate,
    run_gated_projection,
    run_layer_norm,
    run_mlp,
    run_norm,
    run_rotary,
)
from .rotary_functions import as_layer, leave, rotary_places


logger = logging.getLogger(__name__)

KIND = "kernels"


# ---- through the `kernels` package ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Repository:
    """A layer that is here already, in the form in which the package loads layers from the Hub."""

    layer: type[torch.nn.Module]

    def load(self) -> type[torch.nn.Module]:
        return self.layer


def _as_layer(run: Callable, kind: type) -> type[torch.nn.Module]:
    """A layer in the form of the `kernels` package: without a state, and with the signature of `kind`'s forward."""

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if run is run_rotary:
            return run(self, *args, **kwargs)
        if len(args) + len(kwargs) != 1:  # further ones, of a forward that takes any
            return kind.forward(self, *args, **kwargs)
        return run(self, *args, *kwargs.values())  # its one argument, by whatever name

    forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    # What a module's state, which graphs are found by, tells of a function.
    forward.__module__, forward.__qualname__ = run.__module__, run.__qualname__
    members = {"forward": forward, "can_torch_compile": True, "has_backward": True}
    return type(kind.__name__, (torch.nn.Module,), members)


@cache
def _repository(run: Callable, kind: type[torch.nn.Module]) -> _Repository:
    return _Repository(_as_layer(run, kind))


def _kernelize(layer: torch.nn.Module, variant: Variant) -> bool:
    """Exchange the forward of one layer; False where its class does not want that."""
    import kernels

    kind = type(layer)
    repository = _repository(_RUN[type(variant)], kind)
    mapping = {name: {"cpu": repository} for name in _marks_below(layer)}  # for another device: these stay as they are
    before = [part for part in layer.modules() if "forward" not in vars(part)]
    with _marked(kind, type(variant).__name__) as mark:
        mapping[mark] = {runtime.DEVICE_TYPE: repository}
        with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
            mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
            kernels.kernelize(layer, mode=mode, device=runtime.DEVICE_TYPE)
    for part in before:
        if part is not layer:
            vars(part).pop("forward", None)
    if "forward" not in vars(layer):
        return False
    vars(layer)[VARIANT] = variant
    return True


def _marks_below(layer: torch.nn.Module) -> set[str]:
    marks = {getattr(type(part), "kernel_layer_name", None) for part in layer.modules() if part is not layer}
    return marks - {None}


@contextlib.contextmanager
def _marked(kind: type[torch.nn.Module], name: str) -> Iterator[str]:
    """The name by which the package knows layers of a class; within the block one that has none is given `name`."""
    import kernels

    if hasattr(kind, "kernel_layer_name"):
        yield kind.kernel_layer_name
        return
    kernels.replace_kernel_forward_from_hub(kind, name)
    try:
        yield name
    finally:
        del kind.kernel_layer_name, kind.kernel_condition


_RUN = {
    Norm: run_norm,
    LayerNorm: run_layer_norm,
    GatedMLP: run_mlp,
    FusedMLP: run_fused_mlp,
    GatedProjection: run_gated_projection,
    Rotary: run_rotary,
}


# ---- exchanging the forwards of a model -----------------------------------------------------------------------------


# Functions are shared by all models of a file of Transformers: exchanged while one of these is prepared.
_users: "weakref.WeakKeyDictionary[torch.nn.Module, weakref.WeakSet]" = weakref.WeakKeyDictionary()


class KernelLayers:
    """The layers of one model whose forward was exchanged, and the functions that it calls."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = weakref.ref(model)
        self._layers: list[torch.nn.Module] = []
        self._functions: list[torch.nn.Module] = []

    def exchange(self, layer: torch.nn.Module, variant: Variant) -> str | None:
        """Exchange one forward; returns why it was not, or None."""
        if isinstance(variant, Rotary) and layer in _users:
            self._use(layer)
            return None
        method = GATE if isinstance(variant, Experts) else "forward"
        if method in vars(layer):
            return f"it has a {method} of its own on this object"
        if isinstance(variant, Experts):
            # The package knows forwards alone, and this one does more than gate.
            vars(layer).update({GATE: MethodType(run_gate, layer), VARIANT: variant})
        elif not _kernelize(layer, variant):
            return "the condition under which its class takes kernels does not hold"
        if isinstance(variant, Rotary):
            self._use(layer)
        else:
            vars(layer)[ACTIVATIONS] = activations_of(layer)
            self._layers.append(layer)
        return None

    def _use(self, function: torch.nn.Module) -> None:
        _users.setdefault(function, weakref.WeakSet()).add(self._model())
        self._functions.append(function)

    def take_back(self) -> None:
        """Give each its own forward again."""
        for layer in self._layers:
            _give_back(layer)
        for function in self._functions:
            users = _users.get(function, set())
            users.discard(self._model())
            if not users:
                _users.pop(function, None)
                _give_back(function)
                leave(function)
        self._layers, self._functions = [], []

    def __str__(self) -> str:
        names = Counter(type(layer).__name__ for layer in self._layers)
        names.update(type(function).kernel_layer_name for function in self._functions)
        return ", ".join(f"{count} {name}" for name, count in names.items()) or "none"


def _give_back(layer: torch.nn.Module) -> None:
    variant = vars(layer).pop(VARIANT, None)
    vars(layer).pop(ACTIVATIONS, None)
    if variant is not None:
        vars(layer).pop(GATE if isinstance(variant, Experts) else "forward", None)


def layers_by_kernels(model: torch.nn.Module, config: NeuronConfig, ledger: Ledger) -> KernelLayers | None:
    """Let the layers of `model` that our kernels know run these; those that look alike and are not are reported.

    None where no kernels run for this configuration: nothing is looked at then. Raises StrictError for what is
    reported where strict "kernels" asks for that.
    """
    if not (config.nki == "simulate" or kernels_run()):
        return None
    exchanged = KernelLayers(model)
    try:
        for where, reason in _exchange(model, exchanged):
            ledger.depart(KIND, where, reason, warn=False)
    except BaseException:
        exchanged.take_back()
        raise
    logger.info("%s: kernels for %s", ledger.name, exchanged)
    return exchanged


def _exchange(model: torch.nn.Module, exchanged: KernelLayers) -> Iterator[tuple[str, str]]:
    """Exchange what can be; yields what cannot, with the reason."""
    try:
        import kernels  # noqa: F401
    except ImportError as error:
        reason = f"layers take kernels by a package ({error}): pip install 'optimum-neuron-torch[kernels]'"
        yield "norms, rotary embedding and MLP", reason
        return
    for layer in list(model.modules()):
        _give_back(layer)  # to a copy of a layer that was exchanged
        variant, reason = recognise(layer)
        if variant is not None:
            reason = exchanged.exchange(layer, variant)
        if reason is not None:
            yield type(layer).__name__, reason
    for place in rotary_places(model):
        function = as_layer(place.function)
        variant, reason = recognise_rotary(function)
        if variant is not None:
            reason = exchanged.exchange(function, variant)
        if reason is None:
            place.take(function)
        else:
            yield str(place), reason
