"""Which `nki` a process gets: the real package where it is installed, else the simulator."""

import importlib.machinery
import os
import re
from collections.abc import Sequence
from pathlib import Path


SWITCH = "NEURON_EMULATOR_NKI"


def uses_simulator(path: Sequence[str] | None = None) -> bool:
    """Whether `import nki` is to find the simulator: what `NEURON_EMULATOR_NKI` says, else unless NKI is installed.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    switch = os.environ.get(SWITCH, "").strip()
    if switch not in ("", "0", "1"):
        raise ValueError(f"{SWITCH}={switch}: 1 means the simulator, 0 means never; unset, an installed nki wins")
    return switch == "1" or (switch == "" and installed_nki(path) is None)


def installed_nki(path: Sequence[str] | None = None) -> Path | None:
    """The directory of an installed NKI, found without importing it.

    Placeholders of that name exist, so what counts is the content: an `isa` module that knows `nc_matmul`.
    """
    spec = importlib.machinery.PathFinder.find_spec("nki", path)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        if any(_knows_matmul(file) for file in _isa_files(Path(location))):
            return Path(location)
    return None


def _isa_files(package: Path) -> list[Path]:
    files = [*package.glob("isa*"), *package.glob("isa/*")]
    return [file for file in files if file.is_file() and file.suffix in (".py", ".pyi", ".so", ".pyc")]


def _knows_matmul(file: Path) -> bool:
    try:
        return re.search(rb"\bnc_matmul\b", file.read_bytes()) is not None
    except OSError:
        return False
