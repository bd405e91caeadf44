"""`nki.collectives`: names only. Communication between devices is not simulated."""

from typing import Any

from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.objects import NKIObject


class ReplicaGroup(NKIObject):
    """Which ranks take part."""

    def __init__(self, groups: Any = None) -> None:
        self.groups = groups


def _refused(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise NkiError(f"nki.collectives.{name} needs several devices; the simulator runs one logical NeuronCore")

    refuse.__name__ = name
    return refuse


all_reduce = _refused("all_reduce")
all_gather = _refused("all_gather")
all_gather_v = _refused("all_gather_v")
reduce_scatter = _refused("reduce_scatter")
all_to_all = _refused("all_to_all")
all_to_all_v = _refused("all_to_all_v")
collective_permute = _refused("collective_permute")
collective_permute_implicit = _refused("collective_permute_implicit")
collective_permute_implicit_reduce = _refused("collective_permute_implicit_reduce")
collective_permute_implicit_current_processing_rank_id = _refused(
    "collective_permute_implicit_current_processing_rank_id"
)
rank_id = _refused("rank_id")
