"""Facts about the NeuronCores, each with its public source."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    name: str
    generation: int
    partitions: int
    sbuf_partition_bytes: int
    psum_partition_bytes: int


CHIPS = {
    2: Chip("Trn1 (NeuronCore-v2)", 2, 128, 192 * 1024, 16 * 1024),
    3: Chip("Trn2 (NeuronCore-v3)", 3, 128, 224 * 1024, 16 * 1024),
    4: Chip("Trn3 (NeuronCore-v4)", 4, 128, 256 * 1024, 16 * 1024),
}


def current_chip() -> Chip:
    target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or os.environ.get("NKI_NC_VERSION") or "trn2"
    return CHIPS[{"trn1": 2, "gen2": 2, "trn2": 3, "gen3": 3, "trn3": 4, "gen4": 4}[target]]
