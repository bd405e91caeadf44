"""What the emulator patches in PyTorch: taken back whole, and put in place again."""

import copy
import copyreg
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.multiprocessing import reductions

from optimum_neuron_torch.emulator import wiring


def test_patches_say_what_would_remove_them():
    assert all(len(patch.until) > 7 for patch in wiring._TABLE.patches)


def test_patches_are_taken_back_and_put_in_place_again():
    generator, x = torch.Generator("neuron"), torch.ones(2, device="neuron")
    patched = [patch.read() for patch in wiring._TABLE.patches]
    wiring.uninstall()
    try:
        assert all(
            now is not before for now, before in zip([p.read() for p in wiring._TABLE.patches], patched, strict=True)
        )
        assert torch.Generator not in copyreg.dispatch_table
        assert ForkingPickler._extra_reducers[torch.Tensor] is reductions.reduce_tensor
        assert x.share_memory_() is x
        with pytest.raises(SystemError):
            copy.deepcopy(generator)
        wiring.uninstall()  # a second call does nothing
    finally:
        wiring.install()
    wiring.install()
    assert copy.deepcopy(generator).device == generator.device
    with pytest.raises(NotImplementedError):
        x.share_memory_()
