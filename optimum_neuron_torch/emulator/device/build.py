"""Builds the C++ half of the emulated device, `_C`, in place against the installed torch.

    python -m optimum_neuron_torch.emulator.device.build

Objects stay in `_build/`, so that a second build compiles only what changed, and one of an unchanged tree returns at
once. Beside the library goes `_C.json`, which says what it was built for: torch's C++ interface has no stable ABI, and
loading the library into another torch would crash. setup.py loads this file by its path, so it imports nothing of the
package.
"""

import hashlib
import importlib.machinery
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path


DEVICE_DIR = Path(__file__).resolve().parent
SOURCE_DIR = DEVICE_DIR / "csrc"
BUILD_DIR = DEVICE_DIR / "_build"
LIBRARY = DEVICE_DIR / f"_C{importlib.machinery.EXTENSION_SUFFIXES[0]}"
SIDECAR = DEVICE_DIR / "_C.json"

# Without debug symbols, which would make the library forty times as large.
COMPILER_FLAGS = ["-O2", "-g0", "-fvisibility=hidden", "-Wall"]
# Kineto's headers, which torch installs, format with fmt; the symbols of fmt are not in torch's libraries.
PROFILER_FLAGS = ["-DUSE_KINETO", "-DFMT_HEADER_ONLY"]
LINKER_FLAGS = ["-Wl,--strip-all"]


def source_digest() -> str:
    """A digest of everything that goes into the library, this file with its compiler flags included."""
    digest = hashlib.sha256()
    for path in [Path(__file__).resolve(), *sorted(SOURCE_DIR.glob("*.[hc]*"))]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build_description() -> dict[str, str]:
    """What a library built now is built for and from."""
    import torch

    return {"torch": torch.__version__, "python": sysconfig.get_config_var("SOABI"), "sources": source_digest()}


def is_up_to_date() -> bool:
    try:
        return LIBRARY.exists() and json.loads(SIDECAR.read_text()) == build_description()
    except (OSError, ValueError):
        return False


def build() -> Path:
    """Builds `_C` unless it is up to date, and returns the library's path.

    Raises whatever the compilation raises: no compiler, or an error in the sources, whose text is on stderr.
    """
    # Importing torch must not load the `_C` that is about to be replaced.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if is_up_to_date():
        return LIBRARY
    # Before the compilation: a source that is edited meanwhile makes the next build begin again.
    description = build_description()
    built = _compile()
    # Replaced, not overwritten: a process that has the old library loaded keeps it.
    temporary = LIBRARY.with_suffix(".tmp")
    shutil.copy2(built, temporary)
    os.replace(temporary, LIBRARY)
    temporary.write_text(json.dumps(description, indent=1) + "\n")
    os.replace(temporary, SIDECAR)
    return LIBRARY


def _compile() -> Path:
    import torch
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    # A virtual environment that is not activated has its ninja beside its interpreter, but not on the path.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    has_kineto = torch.autograd.kineto_available()
    kineto_headers = [str(Path(torch.__file__).parent / "include" / "kineto")]
    extension = CppExtension(
        "_C",
        sources=sorted(str(path) for path in SOURCE_DIR.glob("*.cpp")),
        include_dirs=[str(SOURCE_DIR), *(kineto_headers if has_kineto else [])],
        extra_compile_args=[*COMPILER_FLAGS, *(PROFILER_FLAGS if has_kineto else [])],
        extra_link_args=LINKER_FLAGS,
    )
    distribution = Distribution({"ext_modules": [extension], "cmdclass": {"build_ext": BuildExtension}})
    command = distribution.get_command_obj("build_ext")
    command.build_lib = str(BUILD_DIR)
    command.build_temp = str(BUILD_DIR / "objects")
    command.ensure_finalized()
    command.run()
    return BUILD_DIR / LIBRARY.name


if __name__ == "__main__":
    was_up_to_date = is_up_to_date()
    library = build()
    print(f"{library} {'is up to date' if was_up_to_date else 'is built'}")
