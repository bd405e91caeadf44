"""What a compiled function depends on beside the sizes of its inputs: the state of the module it was traced from.

Two questions, of very different price. Has anything changed since the last call (asked at every call, some ten
microseconds)? And what is the state, as a text that is the same in every process (asked when something changed)?
"""

import copy
import enum
import functools
import hashlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

import torch

from .capturing import captured_key


_INTERNAL = frozenset(torch.nn.Module().__dict__) - {"training"} | {"_is_hf_initialized"}
# Attributes that no graph depends on: where a model came from, how tokens are chosen, what was warned about.
_UNRELATED = frozenset(
    {
        "generation_config",
        "name_or_path",
        "warnings_issued",
        "hf_device_map",
        "model_tags",
        "_output_capturing_hooks_installed",
    }
)
# Half of a transformer's attributes, and its forward reads none of them.
_UNREAD = {torch.nn.Linear: frozenset({"in_features", "out_features", "training"})}
_UNRELATED_OF_CONFIG = frozenset(
    {"_name_or_path", "_commit_hash", "transformers_version", "_diffusers_version", "architectures"}
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, slice, range)
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_DEEPEST = 6

_dtype_of = operator.attrgetter("dtype")
_requires_grad_of = operator.attrgetter("requires_grad")


class ModuleState:
    """The state of one module and all below it, as `digest()`: equal digests mean that one graph serves both."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._digest = ""
        self._look()

    def digest(self) -> str:
        """The digest of the module's present state; cheap while nothing changed."""
        if not self._is_unchanged():
            self._look()
        return self._digest

    def _look(self) -> None:
        modules = list(self._module.modules())
        self._attributes = [module.__dict__ for module in modules]
        self._sizes = list(map(len, self._attributes))
        self._hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self._hook_counts, self._has_hooks = list(map(len, self._hooks)), any(self._hooks)
        self._children = [module._modules for module in modules if module._modules]
        self._child_copies = [dict(children) for children in self._children]
        self._tensor_dicts = [
            tensors for module in modules for tensors in (module._parameters, module._buffers) if tensors
        ]
        self._empty = [
            held for module in modules for held in (module._modules, module._parameters, module._buffers) if not held
        ]
        self._tensors = list(chain.from_iterable(map(dict.values, self._tensor_dicts)))
        self._real_tensors = [tensor for tensor in self._tensors if tensor is not None]
        self._dtypes = list(map(_dtype_of, self._real_tensors))
        self._grads = list(map(_requires_grad_of, self._real_tensors))
        self._shapes = list(map(torch.Tensor.size, self._real_tensors))
        self._strided = [tensor for tensor in self._real_tensors if tensor.layout is torch.strided]
        self._strides = list(map(torch.Tensor.stride, self._strided))
        self._place = self._device()
        self._watch_attributes(modules)
        self._digest = hashlib.sha256(repr(list(_describe_module(self._module))).encode()).hexdigest()

    def _watch_attributes(self, modules: list[torch.nn.Module]) -> None:
        watched = [(module.__dict__, name) for module in modules for name in _state_names(module)]
        self._owners, self._names = [owner for owner, _ in watched], [name for _, name in watched]
        self._values = list(map(operator.getitem, self._owners, self._names))
        # Objects that are edited in place: identity says nothing about them.
        configs = {id(config): config for value in self._values for config in _configs_in(value)}
        edited = [vars(config) for config in configs.values()]
        edited += [value for value in self._values if type(value) in (list, dict, set) and _is_plain(value)]
        self._edited, self._edited_copies = edited, [_copy_of(value) for value in edited]

    def _is_unchanged(self) -> bool:
        try:
            return (
                list(map(len, self._attributes)) == self._sizes
                and (list(map(len, self._hooks)) == self._hook_counts if self._has_hooks else not any(self._hooks))
                and not any(self._empty)
                and self._children == self._child_copies
                and all(map(operator.is_, chain.from_iterable(map(dict.values, self._tensor_dicts)), self._tensors))
                and list(map(_dtype_of, self._real_tensors)) == self._dtypes
                and list(map(torch.Tensor.size, self._real_tensors)) == self._shapes
                and list(map(torch.Tensor.stride, self._strided)) == self._strides
                and (not torch.is_grad_enabled() or list(map(_requires_grad_of, self._real_tensors)) == self._grads)
                and self._device() == self._place
                and list(map(operator.getitem, self._owners, self._names)) == self._values
                and self._edited == self._edited_copies
            )
        except Exception:  # a key that is gone, a value whose comparison is no truth value
            return False

    def _device(self) -> torch.device | None:
        return self._real_tensors[0].device if self._real_tensors else None


def describe(value: Any, depth: int = 0) -> Any:
    """`value` as plain data whose repr is the same in every process that would trace it alike."""
    if isinstance(value, enum.Enum):
        return f"{_name_of(type(value))}.{value.name}"
    if isinstance(value, (*_PLAIN, *_TORCH_CONSTANTS)):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, type) or hasattr(value, "__code__"):
        return _name_of(value)
    if isinstance(value, functools.partial):
        return ["partial", *(describe(part, depth + 1) for part in (value.func, value.args, value.keywords))]
    if depth > _DEEPEST or isinstance(value, torch.nn.Module):
        return _name_of(type(value))
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(describe(part, depth + 1) for part in value)]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, *sorted(repr(describe(part, depth + 1)) for part in value)]
    if isinstance(value, dict):
        return [type(value).__name__, *((describe(k, depth + 1), describe(v, depth + 1)) for k, v in value.items())]
    # Not only a dataclass's fields: configurations keep the attention implementation beside them.
    attributes = dict(vars(value)) if hasattr(value, "__dict__") else {}
    if is_dataclass(value) and not attributes:  # one with slots
        attributes = {field.name: getattr(value, field.name) for field in fields(value)}
    unrelated = _UNRELATED_OF_CONFIG if _is_config(value) else ()
    return [
        _name_of(type(value)),
        *((name, describe(part, depth + 1)) for name, part in attributes.items() if name not in unrelated),
    ]


def _describe_module(root: torch.nn.Module) -> Iterator[Any]:
    seen: dict[int, str] = {}
    for path, module in root.named_modules():
        attributes = {name: module.__dict__[name] for name in _state_names(module)}
        yield path, _name_of(type(module)), describe(attributes)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            # Tensors that are one tensor are one input of the graph.
            first = None if tensor is None else seen.setdefault(id(tensor), f"{path}.{name}")
            yield name, first, None if tensor is None else _describe_tensor(tensor)
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            # Those that Transformers leaves on a model record what a call asks for, which is in the key of its graph.
            hooks = [hook for hook in hooks.values() if captured_key(hook) is None]
            if hooks:
                yield "hooks", describe(hooks)


def _describe_tensor(tensor: torch.Tensor) -> list[Any]:
    is_strided = tensor.layout is torch.strided
    return [
        _name_of(type(tensor)),
        tuple(tensor.shape),
        tensor.stride() if is_strided else str(tensor.layout),
        str(tensor.dtype),
        str(tensor.device),
        tensor.requires_grad,
    ]


def _state_names(module: torch.nn.Module) -> list[str]:
    """The instance attributes that a trace may depend on."""
    unread = _UNREAD.get(type(module), ())
    return [
        name
        for name in module.__dict__
        if name not in _INTERNAL and name not in _UNRELATED and name not in unread and not name.startswith("_neuron_")
    ]


def _is_config(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module))


def _configs_in(value: Any) -> Iterator[Any]:
    if _is_config(value):
        yield value
        for part in vars(value).values():
            yield from _configs_in(part)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return isinstance(value, (*_PLAIN, *_TORCH_CONSTANTS))


def _copy_of(value: Any) -> Any:
    """A copy that later edits of plain containers do not reach; other objects in it are the same objects."""
    if _is_plain(value):
        return copy.deepcopy(value)
    if isinstance(value, dict):
        return {name: _copy_of(part) for name, part in value.items()}
    return value


def _name_of(value: type | Callable) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
