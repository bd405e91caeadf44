"""What is installed: the files of the wheel, its entry points, and the install where the extension cannot be built."""

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.sources import ROOT, SourceFile, sources


DISTRIBUTION = "optimum-neuron-torch"
AUTOLOAD = "optimum_neuron_torch_autoload.py"
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "optimum", "optimum_neuron_torch", AUTOLOAD)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, without anything built: a build writes beside its sources."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "_build"))
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _build_wheel(checkout: Path, **variables: str) -> tuple[zipfile.ZipFile, str]:
    """The wheel as pip builds it against the installed torch, and what the build said."""
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-index"]
    shutil.rmtree(checkout / "build", ignore_errors=True)
    done = subprocess.run(
        [*command, "--wheel-dir", str(checkout / "dist"), str(checkout)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (checkout / "dist").glob("*.whl")
    return zipfile.ZipFile(wheel), done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> zipfile.ZipFile:
    return _build_wheel(checkout, OPTIMUM_NEURON_SKIP_EXTENSION="1")[0]


def test_wheel_holds_the_package_and_the_command(wheel):
    names = set(wheel.namelist())
    sources = {
        str(path.relative_to(ROOT))
        for top in ("optimum", "optimum_neuron_torch")
        for path in (ROOT / top).rglob("*.py")
    }
    assert sources <= names
    assert "optimum/commands/register/neuron.py" in names


def test_wheel_holds_the_sources_of_the_extension(wheel):
    csrc = ROOT / "optimum_neuron_torch" / "emulator" / "device" / "csrc"
    sources = {str(path.relative_to(ROOT)) for path in csrc.rglob("*") if path.is_file()}
    assert sources <= set(wheel.namelist())


def test_wheel_claims_no_name_of_others(wheel):
    """No file in another's package, no `__init__.py` in the shared namespace, no top-level `torch_neuronx`."""
    packages = {name.split("/")[0] for name in wheel.namelist() if ".dist-info" not in name}
    assert packages == {"optimum", "optimum_neuron_torch", AUTOLOAD}
    assert [name for name in wheel.namelist() if name.startswith("optimum/")] == [
        "optimum/commands/register/neuron.py"
    ]


def test_build_without_compiler_leaves_the_extension_out(checkout):
    """With nothing of that name to call, the build says what it left out and how to add it, and succeeds."""
    wheel, output = _build_wheel(checkout, CXX="no-such-compiler", CC="no-such-compiler", PATH="/nonexistent")
    assert not [name for name in wheel.namelist() if name.endswith(".so")]
    assert "emulated neuron device is left out" in output
    assert "python -m optimum_neuron_torch.emulator.device.build" in output


def test_optimum_belongs_to_optimum():
    assert metadata.packages_distributions()["optimum"] == ["optimum"]


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("torch.backends", "neuron_emulator", "optimum_neuron_torch_autoload:autoload"),
        ("torch_dynamo_backends", "neuron", "optimum_neuron_torch.emulator.compiler:neuron"),
    ],
)
def test_entry_points(group, name, value):
    (found,) = (point for point in metadata.distribution(DISTRIBUTION).entry_points if point.group == group)
    assert (found.name, found.value) == (name, value)
    assert callable(found.load())


def _requirements(*extras: str) -> set[str]:
    """Distributions that an install with `extras` names, in the normalised spelling."""
    found = set()
    for line in metadata.requires(DISTRIBUTION):
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.add(canonicalize_name(requirement.name))
            if requirement.name == DISTRIBUTION:
                found |= _requirements(*requirement.extras)
    return found


@pytest.mark.parametrize(
    ("folders", "extras"),
    [
        (["optimum_neuron_torch"], ["emulator", "kernels", "plots"]),
        (["tests", "model_tests", "examples", "benchmarks"], ["test"]),
    ],
)
def test_what_is_imported_is_required(folders, extras):
    """Each distribution that these folders import from is named by the install they promise to need."""
    owners = metadata.packages_distributions()
    imported = {
        (found.target.split(".")[0], str(path.relative_to(ROOT)))
        for path in sources(*folders)
        for found in SourceFile.read(path).imports()
    }
    required = {DISTRIBUTION, *_requirements(*extras)}
    missing = {
        f"{module} ({', '.join(owners[module])}) in {path}"
        for module, path in imported
        if module in owners and not required & {canonicalize_name(owner) for owner in owners[module]}
    }
    assert not missing
