"""`import nki` is the simulator here, whatever is installed."""

import pytest

from optimum_neuron_torch.emulator.nki import install
from optimum_neuron_torch.emulator.nki.presence import SWITCH


@pytest.fixture(scope="session", autouse=True)
def _simulator():
    patch = pytest.MonkeyPatch()
    patch.setenv(SWITCH, "1")
    install()
    yield
    patch.undo()
