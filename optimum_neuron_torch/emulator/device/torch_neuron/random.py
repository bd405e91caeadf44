"""Random numbers of `torch.neuron`. `torch.manual_seed` seeds all cores too; each then draws the CPU's numbers."""

from collections.abc import Iterable

import torch

from .. import extension
from .devices import Device, device_count, index_of


def manual_seed(seed: int) -> None:
    """Seeds the generator of the current core."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generators of all cores. Does nothing where the device cannot be used: torch.manual_seed calls it."""
    for index in range(device_count()):
        _generator(index).manual_seed(int(seed))


def seed() -> int:
    """Seeds the generator of the current core with a random number and returns it."""
    return _generator(None).seed()


def seed_all() -> int:
    """Seeds the generators of all cores with one random number and returns it."""
    chosen = seed()
    manual_seed_all(chosen)
    return chosen


def initial_seed() -> int:
    """The seed of the generator of the current core."""
    return _generator(None).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """The state of a core's generator, a CPU tensor of bytes."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of the first cores, one each.

    Raises:
        ValueError: there are more states than cores; none is set then.
    """
    states = list(new_states)
    if len(states) > device_count():
        raise ValueError(f"Got {len(states)} random states for {device_count()} cores: pass one for each core.")
    for index, state in enumerate(states):
        set_rng_state(state, index)


def _generator(device: Device) -> torch.Generator:
    return extension.load().default_generator(index_of(device))
