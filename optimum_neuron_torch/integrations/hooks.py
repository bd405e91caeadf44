"""Attributes that replace methods of one object, and their removal: how behaviour is added to a module."""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..buckets.shell import HOOKS, visible_attributes
from ..config import NeuronConfig
from ..report import Ledger


_REPLACED = "_neuron_replaced"
_RECORDS = "_neuron_records"


def put_hooks(module: torch.nn.Module, hooks: dict[str, Callable], ledger: Ledger, **records: Any) -> None:
    """Set `hooks` (by method name) and `records` (by attribute name) on `module`; pickling it leaves both out."""
    hooks = {**hooks, "__getstate__": lambda: visible_attributes(module)}
    replaced = {name: vars(module)[name] for name in hooks if name in vars(module)}
    records = {"_neuron_ledger": ledger, _REPLACED: replaced, HOOKS: tuple(hooks), **records}
    vars(module).update({**records, _RECORDS: (*records, _RECORDS), **hooks})


def remove_hooks(module: torch.nn.Module) -> None:
    """Take back `put_hooks`."""
    for name in vars(module)[HOOKS]:
        vars(module).pop(name, None)
    vars(module).update(vars(module)[_REPLACED])
    for name in vars(module)[_RECORDS]:
        del vars(module)[name]


def saving(module: torch.nn.Module, config: NeuronConfig) -> Callable:
    """A save_pretrained that also writes the configuration beside the model."""
    stock = module.save_pretrained

    @wraps(stock)
    def save_pretrained(save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
        result = stock(save_directory, *args, **kwargs)
        config.save_pretrained(save_directory)
        return result

    return save_pretrained
