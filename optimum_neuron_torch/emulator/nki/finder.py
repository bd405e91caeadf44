"""Makes `import nki` find the simulator's modules, without installing a top-level package of that name.

The finder comes first in `sys.meta_path`, as a placeholder called nki may be installed; it answers for this one name
only, and asks at the first import whether an installed NKI is to win.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

from ..facade import package_spec
from .presence import uses_simulator


MODULES_DIR = Path(__file__).resolve().parent / "modules"
PACKAGE = "nki"
OLD_PACKAGE = "neuronxcc"  # NKI 0.1 was `neuronxcc.nki`


class NkiFinder(MetaPathFinder):
    """Finds `nki` in the directory `modules`; its submodules are then found as usual."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == OLD_PACKAGE:
            _refuse_in_kernels()
        if fullname != PACKAGE or not uses_simulator():
            return None
        return package_spec(MODULES_DIR, fullname)


def _refuse_in_kernels() -> None:
    """Kernels may not use the old namespace since NKI 0.4; outside kernels its import is none of our business."""
    core = sys.modules.get(f"{__package__}.core")
    if core is not None and core.is_running():
        from .errors import OldNamespaceError

        raise OldNamespaceError("neuronxcc.nki is gone: import nki, nki.language and nki.isa instead")


def install() -> None:
    """Adds the finder, once. A placeholder that was imported already is forgotten."""
    if not any(isinstance(finder, NkiFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, NkiFinder())
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None and not hasattr(loaded, "jit") and uses_simulator():
        for name in [name for name in sys.modules if name == PACKAGE or name.startswith(PACKAGE + ".")]:
            del sys.modules[name]


def uninstall() -> None:
    """Removes the finder; modules that were imported stay."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, NkiFinder)]
