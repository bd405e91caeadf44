"""Makes `import torch_neuronx` find the emulator's stand-in, without installing a top-level package of that name.

A real one would be overwritten by it; so the package is found through `sys.meta_path`, after everything else, and only
in processes where the emulated device is active.
"""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType


FACADE_DIR = Path(__file__).resolve().parent


class FacadeFinder(MetaPathFinder):
    """Finds the packages of this directory as top-level ones; their submodules are then found as usual."""

    packages = frozenset({"torch_neuronx"})

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.packages:
            return None
        return package_spec(FACADE_DIR, fullname)


def package_spec(directory: Path, name: str) -> importlib.machinery.ModuleSpec | None:
    """A package of `directory` as the top-level package `name`."""
    package_dir = directory / name
    return importlib.util.spec_from_file_location(
        name, package_dir / "__init__.py", submodule_search_locations=[str(package_dir)]
    )


def install() -> None:
    if not any(isinstance(finder, FacadeFinder) for finder in sys.meta_path):
        sys.meta_path.append(FacadeFinder())
