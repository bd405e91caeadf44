"""Keys of compiled functions: in this process, and on disk.

The guards by which Dynamo recognises a call are dropped once a function has run, so the keys hold what they held. Keys
on disk hold no weights, paths, hash seeds or process ids.
"""

import hashlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import runtime
from .aot import function_modes
from .modes import autocast_dtype
from .sources import versions
from .state import describe


_NEURON, _HOST = torch.device(runtime.DEVICE_TYPE), torch.device("cpu")
_MOST_OF_USERS = 16
_dtype_of = operator.attrgetter("dtype")
_requires_grad_of = operator.attrgetter("requires_grad")


def signature(args: Sequence[Any]) -> tuple:
    """What a graph holds of `args`, but for modules: constants, and what is static about tensors."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    constants = tuple(arg for arg in args if not isinstance(arg, (torch.Tensor, torch.nn.Module)))
    return (
        constants,
        repr(constants),  # 1, 1.0 and True are equal, and make graphs of different types
        tuple(map(torch.Tensor.size, tensors)),
        tuple(map(torch.Tensor.stride, tensors)),
        tuple(map(_dtype_of, tensors)),
        tuple(map(_requires_grad_of, tensors)) if torch.is_grad_enabled() else None,
        tensors[0].device if tensors else None,
        shared_storages(tensors),
    )


def shared_storages(tensors: Sequence[torch.Tensor]) -> tuple:
    """Which of few tensors are views of one storage, and at which offsets: a graph that writes to one holds that.

    Of more tensors than a user passes, most are a store of ours, which shares nothing.
    """
    if len(tensors) > _MOST_OF_USERS:
        return ()
    pointers = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.layout is torch.strided]
    if len(set(pointers)) == len(pointers):
        return ()
    return tuple(
        (pointers.index(pointer), tensor.storage_offset()) for pointer, tensor in zip(pointers, tensors, strict=False)
    )


def process_state() -> tuple:
    """What a graph holds of the process it was traced in."""
    return (
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        autocast_dtype(_NEURON),
        autocast_dtype(_HOST),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        function_modes(),
        runtime.kernel_target() if runtime.kernels_run() else None,
    )


def artifact_key(
    step: Callable, key: tuple, states: Sequence[str], args: Sequence[Any], options: dict[str, Any] | None
) -> str | None:
    """The name under which a compiled `step` is stored; None where the backend does not say which version it is."""
    compiler = runtime.compiler_version(runtime.compile_options("", options))
    if compiler is None:
        return None
    facts = (
        f"{step.__module__}.{step.__qualname__}",
        compiler,
        versions(),
        describe(key),
        list(states),
        [describe(arg) for arg in args],
        shared_storages([arg for arg in args if isinstance(arg, torch.Tensor)]),
        describe(process_state()),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:40]


def circumstances(state: str, options: dict[str, Any] | None) -> str:
    """What a compiled function holds beside the sizes of its bucket, in short: the module's state, the process's, and
    the versions it was made with.
    """
    compiler = runtime.compiler_version(runtime.compile_options("", options))
    facts = (state, compiler, versions(), describe(process_state()))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def why_not_storable(step: Callable, args: Sequence[Any]) -> str | None:
    """Why another process could not load what is compiled for `args`; None where nothing speaks against it."""
    modules = [module for arg in args if isinstance(arg, torch.nn.Module) for module in arg.modules()]
    for kind in (step, *{type(module) for module in modules}):
        if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
            return f"{kind.__module__}.{kind.__qualname__} cannot be imported by another process"
    return None
