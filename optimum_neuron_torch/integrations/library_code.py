"""Whether a generate() call runs any code of the user's between two tokens: a streamer, a processor, a hook.

Where it does not, nothing can change the model before the call is over, and one look at it is enough.
"""

from typing import Any

import torch
from torch.nn.modules import module as torch_module

from ..buckets.shell import visible_attributes


_LIBRARIES = frozenset({"transformers", "torch", __name__.partition(".")[0]})
_PLAIN = (type(None), bool, int, float, str, torch.device, torch.dtype)


def is_library_value(value: Any) -> bool:
    """Whether an argument of generate() is data, or an object of Transformers' own that holds nothing else."""
    if isinstance(value, (*_PLAIN, torch.Tensor)):
        return True
    is_library_object = _is_of_library(type(value)) and not isinstance(value, torch.nn.Module)
    if isinstance(value, dict):
        return (type(value) is dict or is_library_object) and all(map(is_library_value, value.values()))
    if isinstance(value, (list, tuple)):
        return (type(value) in (list, tuple) or is_library_object) and all(map(is_library_value, value))
    return is_library_object and not any(map(_calls_back, getattr(value, "__dict__", {}).values()))


def _calls_back(attribute: Any) -> bool:
    """Whether an attribute of a library's object is code of the user's: a function given to it, a method replaced."""
    kind = attribute if isinstance(attribute, type) else type(attribute)
    return callable(attribute) and (isinstance(attribute, torch.nn.Module) or not _is_of_library(kind))


def is_library_code(model: torch.nn.Module) -> bool:
    """Whether the methods of `model` that a generate() loop calls are Transformers', and no hook runs around its
    forward.
    """
    return (
        all(_is_of_library(kind) for kind in type(model).__mro__ if kind is not object)
        and not (model._forward_hooks or model._forward_pre_hooks or torch_module._has_any_global_hook())
        and not any(
            callable(value) and not isinstance(value, torch.nn.Module) for value in visible_attributes(model).values()
        )
    )


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES
