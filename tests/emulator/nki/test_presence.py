"""Which `nki` a process gets, by what is installed, by the switch, and by what was imported first. All in children."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optimum_neuron_torch.emulator.nki.presence import installed_nki


INSTALL = "from optimum_neuron_torch.emulator.nki import install; install()"
WHICH = "import nki, sys; print('simulator' if 'emulator/nki/modules' in nki.__file__ else nki.WHO)"


def placeholder(folder: Path) -> None:
    (folder / "nki").mkdir()
    (folder / "nki" / "__init__.py").write_text("WHO = 'placeholder'\n")


def single_file(folder: Path) -> None:
    (folder / "nki.py").write_text("WHO = 'single file'\n")


def real(folder: Path, suffix: str = ".py") -> None:
    """Something like the Neuron SDK's package: what tells is that its `isa` knows an instruction."""
    (folder / "nki" / "isa").mkdir(parents=True)
    (folder / "nki" / "__init__.py").write_text("WHO = 'real'\njit = lambda function: function\n")
    (folder / "nki" / "isa" / "__init__.py").write_text("")
    (folder / "nki" / "isa" / f"tensor_engine{suffix}").write_text("def nc_matmul(dst): ...\n")


def nothing(folder: Path) -> None:
    pass


def run(code: str, folder: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "NEURON_EMULATOR_NKI"}
    path = os.pathsep.join(filter(None, [str(folder), environment.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, "PYTHONPATH": path, **variables},
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("package", "switch", "expected"),
    [
        (nothing, "", "simulator"),
        (placeholder, "", "simulator"),
        (single_file, "", "simulator"),
        (real, "", "real"),
        (nothing, "1", "simulator"),
        (placeholder, "1", "simulator"),
        (real, "1", "simulator"),
        (nothing, "0", "ModuleNotFoundError: No module named 'nki'"),
        (placeholder, "0", "placeholder"),
        (real, "0", "real"),
    ],
)
def test_without_torch(tmp_path, package, switch, expected):
    package(tmp_path)
    assert run(f"{INSTALL}; {WHICH}; assert 'torch' not in sys.modules", tmp_path, NEURON_EMULATOR_NKI=switch) == (
        expected
    )


@pytest.mark.parametrize(
    ("package", "before", "expected"),
    [
        (nothing, "import torch", "simulator"),
        (placeholder, "import torch", "simulator"),
        (real, "import torch", "real"),
        (placeholder, "import nki; import torch", "simulator"),
        (real, "import nki; import torch", "real"),
        (nothing, "import optimum_neuron_torch, torch", "simulator"),
    ],
)
def test_with_torch(tmp_path, package, before, expected):
    package(tmp_path)
    assert run(f"{before}; {WHICH}", tmp_path) == expected


def test_without_torch_and_without_asking_there_is_none(tmp_path):
    assert run("import nki", tmp_path) == "ModuleNotFoundError: No module named 'nki'"


def test_a_placeholder_imported_before_is_forgotten_with_its_modules(tmp_path):
    placeholder(tmp_path)
    (tmp_path / "nki" / "language.py").write_text("WHO = 'placeholder'\n")
    code = f"import nki.language as nl; {INSTALL}; import nki.language as nl; print(hasattr(nl, 'ndarray'))"
    assert run(code, tmp_path) == "True"


def test_installing_twice_adds_one_finder_and_uninstalling_removes_it(tmp_path):
    code = f"""
import sys
{INSTALL}; install()
print(sum(type(finder).__name__ == 'NkiFinder' for finder in sys.meta_path))
from optimum_neuron_torch.emulator.nki import uninstall
uninstall()
print(sum(type(finder).__name__ == 'NkiFinder' for finder in sys.meta_path))
try:
    import nki
except ModuleNotFoundError:
    print('none')
"""
    assert run(code, tmp_path).split() == ["1", "0", "none"]


@pytest.mark.parametrize("switch", ["yes", "2", "true"])
def test_a_switch_that_means_nothing(tmp_path, switch):
    message = run(f"{INSTALL}; import nki", tmp_path, NEURON_EMULATOR_NKI=switch)
    assert f"NEURON_EMULATOR_NKI={switch}" in message and "1 means the simulator" in message


def test_the_modules_that_kernels_import(tmp_path):
    code = f"""
{INSTALL}
import nki.isa as nisa
import nki.language as nl
import nki, nki.collectives, nki.compiler, nki.dtype, nki.tensor, nki.typing
from nki.isa.constants import dge_mode, engine, oob_mode
from nki.language import NKIObject, bfloat16
from nki import jit, simulate
assert nisa.dge_mode is dge_mode and nki.isa is nisa and nki.language is nl and nki.jit is jit
assert nki.typing.tensor is nki.tensor.NkiTensor is nl.NkiTensor
assert nki.dtype.bfloat16 is bfloat16
assert issubclass(nisa.NkiValidationError, Exception)
print('all')
"""
    assert run(code, tmp_path) == "all"


def test_names_that_do_not_exist_are_import_errors(tmp_path):
    assert run(f"{INSTALL}; import nki.nothing", tmp_path) == "ModuleNotFoundError: No module named 'nki.nothing'"
    assert "cannot import name 'nothing'" in run(f"{INSTALL}; from nki.isa import nothing", tmp_path)
    assert run(f"{INSTALL}; import nki.isa; print(hasattr(nki.isa, 'nothing'))", tmp_path) == "False"


def test_kernels_do_not_wake_the_plugin(tmp_path):
    """`import torch` loads the emulator without the plugin, and so must a kernel that runs on it."""
    kernels = tmp_path / "my_kernels.py"
    kernels.write_text(
        """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def copy(x):
    tile, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""
    )
    code = """
import sys, torch, my_kernels
x = torch.ones(4, 4, device='neuron')
assert my_kernels.copy(x).device == x.device
print('optimum_neuron_torch.wiring' in sys.modules)
"""
    assert run(code, tmp_path) == "False"


@pytest.mark.parametrize("suffix", [".py", ".pyi", ".pyc", ".so"])
def test_the_real_package_is_known_by_what_it_holds(tmp_path, suffix):
    real(tmp_path, suffix)
    assert installed_nki([str(tmp_path)]) == tmp_path / "nki"


@pytest.mark.parametrize("package", [nothing, placeholder, single_file])
def test_what_is_no_package_of_instructions(tmp_path, package):
    package(tmp_path)
    assert installed_nki([str(tmp_path)]) is None


def test_a_package_that_cannot_be_read_is_none(tmp_path):
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text("")
    (tmp_path / "nki" / "isa.py").symlink_to(tmp_path / "missing.py")
    assert installed_nki([str(tmp_path)]) is None
