"""Copies of arguments on one device or the other, with the strides, offsets and sharing of memory that they have."""

from typing import Any

import torch
from torch.utils import _pytree as pytree


def place(tree: Any, device: torch.device) -> Any:
    """A copy of `tree` with its tensors, and its mentions of the CPU, on `device`.

    Tensors that share memory share it in the copy too. Those that require gradients become leaves.
    """
    storages: dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _place_tensor(value, device, storages).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return type(value)(str(device) if torch.device(value).type == "cpu" else str(value))
        return value

    return pytree.tree_map(move, tree)


def _place_tensor(tensor: torch.Tensor, device: torch.device, storages: dict[int, torch.Tensor]) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.clone().to(device)
    if tensor.is_conj():
        return _place_tensor(tensor.conj(), device, storages).conj()
    if tensor.is_neg():
        return torch._neg_view(_place_tensor(torch._neg_view(tensor), device, storages))
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    if storage.data_ptr() not in storages:
        storages[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage).clone().to(device)
    copy = storages[storage.data_ptr()].untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device=device)
    return empty.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())
