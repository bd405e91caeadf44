"""`import nki` is the simulator here, whatever is installed."""

from tests.emulator.nki.conftest import _simulator  # noqa: F401
