"""What the native Neuron package itself would register or patch in PyTorch, as a table that can be undone.

`install()` is called at the end of `import torch` and must stay cheap: nothing here imports `torch._dynamo` before a
user compiles.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from .device import exchange


# True while `torch.compile` runs for a caller who named no backend.
_backend_unnamed: ContextVar[bool] = ContextVar("neuron_backend_unnamed", default=False)


@dataclass(frozen=True, eq=False)
class Patch:
    """
    One attribute of PyTorch, or one entry of a table of pickling functions, replaced.

    Args:
        owner: what holds the attribute, or the table.
        name: the attribute, or the key.
        wrap: makes the replacement from the original.
        until: what upstream change would make the patch unnecessary.
    """

    owner: Any
    name: Any
    wrap: Callable[[Any], Any]
    until: str

    def read(self) -> Any:
        return self.owner.get(self.name) if isinstance(self.owner, MutableMapping) else getattr(self.owner, self.name)

    def write(self, value: Any) -> None:
        if not isinstance(self.owner, MutableMapping):
            setattr(self.owner, self.name, value)
        elif value is None:
            del self.owner[self.name]
        else:
            self.owner[self.name] = value


def _compile_without_named_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(model: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("backend") is not None:
            return original(model, **kwargs)
        if model is None:
            return functools.partial(compile, **kwargs)
        if _names_neuron_option(kwargs.get("options")):
            return original(model, **{**kwargs, "backend": "neuron"})
        token = _backend_unnamed.set(True)
        try:
            return original(model, **kwargs)
        finally:
            _backend_unnamed.reset(token)

    return compile


def _names_neuron_option(options: Mapping[str, Any] | None) -> bool:
    from optimum_neuron_torch.emulator.compiler.options import OPTION_KEYS

    return bool(options) and any(key in OPTION_KEYS for key in options)


def _remember_whether_named(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, mode: Any, *args: Any, **kwargs: Any) -> None:
        original(self, mode, *args, **kwargs)
        self._yields_to_neuron = _backend_unnamed.get()
        self._mode = mode

    return __init__


def _yield_to_neuron(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: Any, model_: Any, inputs_: Sequence[Any], **kwargs: Any) -> Any:
        if not _involves_neuron(model_, inputs_):
            return original(self, model_, inputs_, **kwargs)
        if not getattr(self, "_yields_to_neuron", False):
            raise RuntimeError(
                "torch.compile(backend='inductor') has no code generator for the neuron device, neither here nor on "
                "Trainium. Name backend='neuron', or none at all (in Transformers: CompileConfig(backend='neuron', "
                "mode='default', dynamic=False))."
            )
        from optimum_neuron_torch.emulator.compiler import neuron

        return neuron(model_, inputs_, mode=self._mode)

    return __call__


def _involves_neuron(gm: Any, inputs: Sequence[Any]) -> bool:
    """Whether a Dynamo graph takes or makes tensors on neuron."""
    if any(isinstance(value, torch.Tensor) and value.device.type == "neuron" for value in inputs):
        return True
    return any(
        torch.device(device).type == "neuron"
        for node in gm.graph.nodes
        if isinstance(device := node.kwargs.get("device"), (str, torch.device))
    )


_SHARING = "a hook by which a backend says how its storages are shared between processes"

_PATCHES = (
    Patch(
        torch,
        "compile",
        _compile_without_named_backend,
        until="a default backend per device; torch._dynamo.backends.registry.set_default_backend knows one for all",
    ),
    Patch(torch._TorchCompileInductorWrapper, "__init__", _remember_whether_named, until="as above"),
    Patch(torch._TorchCompileInductorWrapper, "__call__", _yield_to_neuron, until="as above"),
    *(
        Patch(ForkingPickler._extra_reducers, kind, exchange.send_copies, until=_SHARING)
        for kind in (torch.Tensor, torch.nn.Parameter)
    ),
    Patch(ForkingPickler._extra_reducers, torch.UntypedStorage, exchange.refuse_storages, until=_SHARING),
    Patch(torch.UntypedStorage, "share_memory_", exchange.refuse_sharing, until=_SHARING),
    Patch(torch.UntypedStorage, "is_shared", exchange.never_shared, until=_SHARING),
    Patch(
        copyreg.dispatch_table,
        torch.Generator,
        exchange.pickle_state,
        until="torch.Generator.__reduce__ that asks only generators with an offset for it",
    ),
    Patch(
        torch.Tensor,
        "__dlpack_device__",
        exchange.name_dlpack_device,
        until="Tensor.__dlpack_device__ that knows the name a backend was given and whose memory is pinned",
    ),
)
_originals: dict[Patch, Any] = {}


def install() -> None:
    """Apply all patches; a second call does nothing."""
    for patch in _PATCHES:
        if patch not in _originals:
            _originals[patch] = patch.read()
            patch.write(patch.wrap(_originals[patch]))


def uninstall() -> None:
    """Put the originals back."""
    while _originals:
        patch, original = _originals.popitem()
        patch.write(original)


def make_guards_portable() -> None:
    """
    Let guards of Transformers' models be stored (`aot_compile`): their key-order guard on a registry fails to load.

    Called with the first compilation, since it needs `torch._dynamo`. Upstream: a key-order guard for dictionaries
    whose owner is dropped.
    """
    from torch._dynamo import guards

    original = guards.pickle_guards_state
    if getattr(original, "_is_neuron_wrapper", False):
        return

    @functools.wraps(original)
    def pickle_guards_state(state: Any, *args: Any, **kwargs: Any) -> bytes:
        if hasattr(getattr(state, "output_graph", None), "guard_on_key_order"):
            with _without_key_order(state.output_graph):
                return original(state, *args, **kwargs)
        return original(state, *args, **kwargs)

    pickle_guards_state._is_neuron_wrapper = True  # type: ignore[attr-defined]
    guards.pickle_guards_state = pickle_guards_state


@contextmanager
def _without_key_order(output_graph: Any) -> Iterator[None]:
    """Empties `guard_on_key_order` of a guards state while it is pickled."""
    kept = output_graph.guard_on_key_order
    output_graph.guard_on_key_order = set()
    try:
        yield
    finally:
        output_graph.guard_on_key_order = kept


def is_recompile_refused() -> bool:
    """Whether a new graph is an error now: strict kind `recompile`, after the device was marked warm."""
    from optimum_neuron_torch.emulator import device
    from optimum_neuron_torch.emulator.device import extension

    return "recompile" in device.strict_kinds() and extension.load().is_warm()
