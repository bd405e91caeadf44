"""How tensors and generators of the device leave their process or PyTorch: queues, shared memory, pickles, DLPack.

Each function makes the replacement of one of PyTorch's from the original; `emulator/wiring.py` puts them in place.
Memory of the device belongs to one process. A tensor that goes through a queue or to a new process is copied, by way
of the host's shared memory, and what can only work on memory that two processes share is refused.
"""

import functools
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch import nn
from torch.utils.dlpack import DLDeviceType


def send_copies(original: Callable[[torch.Tensor], tuple]) -> Callable[[torch.Tensor], tuple]:
    """For `torch.multiprocessing`'s reduction of a tensor."""

    @functools.wraps(original)
    def reduce_tensor(tensor: torch.Tensor) -> tuple:
        if tensor.device.type != "neuron" or (
            tensor.requires_grad and not tensor.is_leaf
        ):  # the latter: refused there
            return original(tensor)
        host = tensor.detach().cpu()
        _keep_until_started(host)
        return _copy_to_core, (host, tensor.device.index, type(tensor), tensor.requires_grad)

    return reduce_tensor


def _keep_until_started(host: torch.Tensor) -> None:
    """A process that is being spawned inherits the file of the shared memory: it must stay open until then."""
    process = get_spawning_popen()
    if process is not None:
        vars(process).setdefault("_neuron_copies", []).append(host)


def _copy_to_core(host: torch.Tensor, core: int, kind: type[torch.Tensor], requires_grad: bool) -> torch.Tensor:
    copy = host.to(torch.device("neuron", core))
    return nn.Parameter(copy, requires_grad) if kind is nn.Parameter else copy.requires_grad_(requires_grad)


def refuse_storages(original: Callable[[torch.UntypedStorage], tuple]) -> Callable[[torch.UntypedStorage], tuple]:
    """For `torch.multiprocessing`'s reduction of a storage."""

    @functools.wraps(original)
    def reduce_storage(storage: torch.UntypedStorage) -> tuple:
        if storage.device.type == "neuron":
            raise NotImplementedError(
                f"A storage of {storage.device} cannot be sent to another process. Send a tensor: it is copied."
            )
        return original(storage)

    return reduce_storage


def refuse_sharing(original: Callable[..., torch.UntypedStorage]) -> Callable[..., torch.UntypedStorage]:
    """For `UntypedStorage.share_memory_`, which would do nothing and say nothing."""

    @functools.wraps(original)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
        if self.device.type == "neuron":
            raise NotImplementedError(
                f"Processes cannot share memory of {self.device}. Share the tensor or module on the CPU "
                "(x.cpu().share_memory_()) and copy it to the device in each process; tensors that are sent through "
                "torch.multiprocessing are copied."
            )
        return original(self, *args, **kwargs)

    return share_memory_


def never_shared(original: Callable[[torch.UntypedStorage], bool]) -> Callable[[torch.UntypedStorage], bool]:
    """For `UntypedStorage.is_shared`, which is true for every device but the CPU."""

    def is_shared(self: torch.UntypedStorage) -> bool:
        return self.device.type != "neuron" and original(self)

    return is_shared


def pickle_state(original: Callable[[torch.Generator], tuple] | None) -> Callable[[torch.Generator], tuple]:
    """For pickling and deepcopy of generators: the original asks those of all devices but the CPU for an offset."""

    def reduce_generator(generator: torch.Generator) -> tuple:
        if generator.device.type != "neuron":
            return original(generator) if original else generator.__reduce__()
        return _generator_from_state, (generator.device.index, generator.get_state())

    return reduce_generator


def _generator_from_state(core: int, state: torch.Tensor) -> torch.Generator:
    return torch.Generator(torch.device("neuron", core)).set_state(state)


def name_dlpack_device(original: Callable[[torch.Tensor], tuple]) -> Callable[[torch.Tensor], tuple]:
    """
    For `Tensor.__dlpack_device__`, which knows the place of out-of-tree devices by its old name only.

    And it takes pinned memory for CUDA's, whatever the accelerator is: other libraries refuse it then.
    """

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple:
        if self.device.type == "neuron":
            return DLDeviceType.kDLExtDev, self.device.index
        if self.device.type == "cpu":
            return DLDeviceType.kDLCPU, 0
        return original(self)

    return __dlpack_device__
