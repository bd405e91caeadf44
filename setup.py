"""Builds the emulator's C++ extension, if it can be built; nearly all else is in pyproject.toml.

A host with a native `neuron` device needs no extension and often has no compiler, so a build that is not possible,
or that fails, leaves the extension out with a message and the package installs all the same. The first use of the
emulated device then says what is missing.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info


DEVICE_DIR = Path(__file__).parent / "optimum_neuron_torch" / "emulator" / "device"
EXTENSION = "optimum_neuron_torch.emulator.device._C"
BUILD_COMMAND = "python -m optimum_neuron_torch.emulator.device.build"
SKIP_VARIABLE = "OPTIMUM_NEURON_SKIP_EXTENSION"


class BuildEmulator(build_ext):
    """Hands the build to the module that also builds the extension after the install."""

    def run(self) -> None:
        reason = self._reason_not_to_build()
        if reason is None:
            try:
                self._build()
            except Exception as error:
                reason = f"its build failed ({type(error).__name__}: {error})"
        if reason is not None:
            print(
                f"optimum-neuron-torch: the emulated neuron device is left out: {reason}. "
                f"To add it later: {BUILD_COMMAND}",
                file=sys.stderr,
            )
            self.extensions = []

    def get_output_mapping(self) -> dict[str, str]:
        """Editable installs ask which built file belongs to which source: here it is in its place already."""
        return {}

    def get_outputs(self) -> list[str]:
        return [str(path) for path in self._built_files(Path(self.build_lib))] if not self.inplace else []

    def _reason_not_to_build(self) -> str | None:
        if os.environ.get(SKIP_VARIABLE, "0") not in ("", "0"):
            return f"{SKIP_VARIABLE} is set"
        if importlib.util.find_spec("torch") is None:
            return "no torch in the build's environment (install torch first, then use pip's --no-build-isolation)"
        return None

    def _build(self) -> None:
        _load_builder().build()
        if not self.inplace and not self.editable_mode:
            target = Path(self.build_lib) / DEVICE_DIR.relative_to(Path(__file__).parent)
            target.mkdir(parents=True, exist_ok=True)
            for built in self._built_files(Path(__file__).parent):
                shutil.copy2(built, target)

    @staticmethod
    def _built_files(root: Path) -> list[Path]:
        device_dir = root / DEVICE_DIR.relative_to(Path(__file__).parent)
        return sorted(path for path in device_dir.glob("_C*") if path.is_file())


class EggInfo(egg_info):
    """Leaves the shared namespace `optimum` out of the names that the distribution claims.

    Who asks which distribution `optimum` belongs to should hear Optimum: Diffusers takes the first that claims it,
    with a warning at every import.
    """

    def run(self) -> None:
        super().run()
        claimed = Path(self.egg_info) / "top_level.txt"
        names = claimed.read_text().split()
        claimed.write_text("".join(f"{name}\n" for name in names if name != "optimum"))


def _load_builder():
    """Loads the builder by its path: importing it as a part of the package could load what is about to be built."""
    # The build imports torch, which would load an older, possibly unloadable emulator through its entry point.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    spec = importlib.util.spec_from_file_location("_emulator_build", DEVICE_DIR / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


setup(ext_modules=[Extension(EXTENSION, sources=[])], cmdclass={"build_ext": BuildEmulator, "egg_info": EggInfo})
