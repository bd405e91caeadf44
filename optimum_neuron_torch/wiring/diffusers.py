"""Entries for Diffusers: loading onto neuron, and the host loop of prepared pipelines.

The integration is imported when a replacement is first called: an entry is applied while Diffusers is still importing
its modules.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

from .entries import Entry, Undo, put, replace


def _integration() -> ModuleType:
    from ..integrations import diffusers

    return diffusers


def _load_with(owner: str, load: str) -> Callable[[ModuleType], Undo]:
    """Replaces `owner.from_pretrained` with the integration's `load`, which gets the stock one as first argument."""

    def make(stock: classmethod) -> classmethod:
        @wraps(stock.__func__)
        def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
            return getattr(_integration(), load)(partial(stock.__func__, cls), *args, **kwargs)

        return classmethod(from_pretrained)

    return lambda module: replace(getattr(module, owner), "from_pretrained", make)


def _loop_on_host(module: ModuleType) -> Undo:
    def make(stock: property) -> property:
        return property(lambda pipe: _integration().loop_device(pipe, stock.fget(pipe)), doc=stock.__doc__)

    return replace(module.DiffusionPipeline, "_execution_device", make)


def _name_attention(module: ModuleType) -> Undo:
    """Adds "nki" to the backends: the native one, whose call of PyTorch's function reaches the kernels.

    An Enum has no way to gain a member. Undone, the name is gone, and models that have it still run.
    """
    names, registry = module.AttentionBackendName, module._AttentionBackendRegistry
    member = str.__new__(names, "nki")
    member._name_, member._value_, member._sort_order_ = "NKI", "nki", len(names.__members__)
    for mapping in (registry._backends, registry._constraints, registry._supported_arg_names):
        mapping[member] = mapping[names.NATIVE]
    undo = [put(names._member_map_, "NKI", member), put(names._value2member_map_, "nki", member)]
    names._member_names_.append("NKI")

    def take_back() -> None:
        names._member_names_.remove("NKI")
        for each in undo:
            each()
        if registry._active_backend is member:
            registry.set_active_backend(names.NATIVE)

    return take_back


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "diffusers.DiffusionPipeline.from_pretrained",
        "diffusers.pipelines.pipeline_utils",
        _load_with("DiffusionPipeline", "load_pipeline"),
        "diffusers #11555 and #6857 (device_map 'auto' for pipelines), and a loading hook for accelerator plugins",
    ),
    Entry(
        "diffusers.DiffusionPipeline._execution_device",
        "diffusers.pipelines.pipeline_utils",
        _loop_on_host,
        "a hook by which a pipeline's models choose the device of its loop (Diffusers has one for offloading only)",
    ),
    Entry(
        "diffusers.ModelMixin.from_pretrained",
        "diffusers.models.modeling_utils",
        _load_with("ModelMixin", "load_model"),
        "a loading hook for accelerator plugins in ModelMixin.from_pretrained",
    ),
    Entry(
        "diffusers: attention backend nki",
        "diffusers.models.attention_dispatch",
        _name_attention,
        "a public way to register attention backends by name (AttentionBackendName is a closed Enum)",
    ),
)
