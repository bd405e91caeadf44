"""A module without the plugin's hooks: what compiled functions take in the model's place."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


HOOKS = "_neuron_hooks"


def shell_of(module: torch.nn.Module) -> torch.nn.Module:
    """An object of the module's class that shares its parameters, buffers and submodules, but not the attributes we
    added.

    Compiled functions must not see the hooked `forward` (it would call itself), and stored artifacts must not pickle
    it.
    """
    shell = object.__new__(type(module))
    shell.__dict__.update(visible_attributes(module))
    return shell


def visible_attributes(module: torch.nn.Module) -> dict:
    """The instance attributes without those the plugin put there."""
    hidden = module.__dict__.get(HOOKS, ())
    return {
        name: value
        for name, value in module.__dict__.items()
        if name not in hidden and not name.startswith("_neuron_")
    }


@contextmanager
def borrowed(shell: torch.nn.Module, module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The shell, with what was set on `module` since; what running it sets (as that hooks are installed) goes back to
    the module.
    """
    current = visible_attributes(module)
    for name in shell.__dict__.keys() - current.keys():
        del shell.__dict__[name]
    for name, value in current.items():
        if shell.__dict__.get(name) is not value:
            shell.__dict__[name] = value
    try:
        yield shell
    finally:
        for name in shell.__dict__.keys() - current.keys():
            module.__dict__[name] = shell.__dict__[name]
