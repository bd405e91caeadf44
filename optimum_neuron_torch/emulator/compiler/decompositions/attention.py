"""Flash attention as matrix products: StableHLO has no attention operator."""

from __future__ import annotations

from optimum_neuron_torch.emulator.compiler.passes.attention import (
    FLASH,
    FLASH_BACKWARD,
    flash_as_math,
    flash_backward_as_math,
)


DECOMPOSITIONS = {FLASH: flash_as_math, FLASH_BACKWARD: flash_backward_as_math}
