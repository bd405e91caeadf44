"""What the native Neuron package itself would register or patch in PyTorch, as a table that can be undone.

`install()` is called at the end of `import torch` and must stay cheap: nothing here imports `torch._dynamo` before a
user compiles.
"""

from __future__ import annotations

import copyreg
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from .device import exchange
from .patches import Patch, PatchTable


_COMPILER = "optimum_neuron_torch.emulator.compiler"
_NKI = "optimum_neuron_torch.emulator.nki.kernel"

# True while `torch.compile` runs for a caller who named no backend.
_backend_unnamed: ContextVar[bool] = ContextVar("neuron_backend_unnamed", default=False)


def _choose_neuron_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where no backend is named, neuron tensors choose ours; what it cannot take is refused at the call."""

    @functools.wraps(original)
    def compile(model: Any = None, **kwargs: Any) -> Any:
        backend = kwargs.get("backend")
        if _is_neuron(backend) or (backend is None and _names_neuron_option(kwargs.get("options"))):
            _check_arguments(**kwargs)
            _watch_dynamo()
            return original(model, **{**kwargs, "backend": backend or "neuron"})
        if backend is not None:
            if _NKI in sys.modules:
                _watch_dynamo()  # kernels are one node for every backend
            return original(model, **kwargs)
        _watch_dynamo()
        if model is None:
            return functools.partial(compile, **kwargs)
        token = _backend_unnamed.set(True)
        try:
            return original(model, **kwargs)
        finally:
            _backend_unnamed.reset(token)

    return compile


def _is_neuron(backend: Any) -> bool:
    """Whether a backend is ours, by its name or as the function itself."""
    return backend == "neuron" or getattr(backend, "__module__", None) == _COMPILER


def _check_arguments(
    *, dynamic: bool | None = None, mode: str | None = None, options: Any = None, **_others: Any
) -> None:
    from optimum_neuron_torch.emulator.compiler.options import check_arguments

    check_arguments(dynamic=dynamic, mode=mode, options=options)


def _watch_dynamo() -> None:
    """Before the first frame is traced, since a graph may break before a backend is called."""
    from optimum_neuron_torch.emulator.compiler import dynamo_watch

    dynamo_watch.install()


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

_TABLE = PatchTable(
    (
        Patch(
            torch,
            "compile",
            _choose_neuron_backend,
            until="a default backend per device (set_default_backend of Dynamo's registry knows one for all)",
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
)


def install() -> None:
    """Apply all patches; a second call does nothing."""
    _TABLE.install()


def uninstall() -> None:
    """Put the originals back."""
    _TABLE.uninstall()
