"""
Runs the kernels of the Neuron SDK's NKI tutorials on the simulator, unmodified, from a checkout of its documentation.

    python -m model_tests.nki_tutorials PATH [NAME ...]

PATH is the folder `nki` of aws-neuron/aws-neuron-sdk. Most scripts compare their kernels with PyTorch or NumPy and say
whether they match; the kernels of the others are called and compared here. Ends with 1 where one differs or fails.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


PROJECT = Path(__file__).resolve().parents[1]

# What the scripts print of a comparison.
_DIFFERS = re.compile(r"differ\b|pass\? False|matches\? False")
_MATCHES = re.compile(r"\bmatch\b|pass\? True|matches\? True")

# Scripts that cannot run as they stand, whatever runs them.
BROKEN = {
    "layout-loop.py": "uses a name that it does not define, and a decorator of an older torch_neuronx",
}


def _add(kernel: Callable[..., Any]) -> None:
    a, b = _normal((4, 3), np.float16), _normal((4, 3), np.float16)
    np.testing.assert_array_equal(kernel(a, b), a + b)


def _add_tiled(kernel: Callable[..., Any]) -> None:
    a, b = _normal((256, 1024)), _normal((256, 1024))
    np.testing.assert_array_equal(kernel(a, b), a + b)


def _split(kernel: Callable[..., Any]) -> None:
    values = _normal((4, 5))
    even, odd = kernel(values)
    np.testing.assert_array_equal(even, values[:, ::2])
    np.testing.assert_array_equal(odd, values[:, 1::2])


def _max_pool(kernel: Callable[..., Any]) -> None:
    values = _normal((2, 6, 6))
    np.testing.assert_array_equal(kernel(values, 2), values.reshape(2, 3, 2, 3, 2).max(axis=(2, 4)))


def _exponential(kernel: Callable[..., Any]) -> None:
    values = _normal((128, 512))
    np.testing.assert_allclose(kernel(values), np.exp(values), rtol=1e-6)


def _too_many_partitions(kernel: Callable[..., Any]) -> None:
    from optimum_neuron_torch.emulator.nki.errors import NkiError

    try:
        kernel(_normal((256, 512)))
    except NkiError as error:
        assert "128" in str(error), error
    else:
        raise AssertionError("256 partitions were accepted")


# File: the kernel in it that nothing else compares, and how.
CHECKS: dict[str, tuple[str, Callable[..., None]]] = {
    "getting_started_baremetal.py": ("nki_tensor_add_kernel", _add),
    "getting_started_jax.py": ("nki_tensor_add_kernel", _add),
    "getting_started_torch.py": ("nki_tensor_add_kernel", _add),
    "index-case-1.py": ("tensor_split_kernel_", _split),
    "index-case-3.py": ("tensor_maxpool_kernel_", _max_pool),
    "layout-pass.py": ("tensor_exp_kernel_", _exponential),
    "layout-violation.py": ("tensor_exp_kernel_", _too_many_partitions),
    "tensor_addition_nki_kernels.py": ("nki_tensor_add", _add_tiled),
}

# Scripts that check themselves without a word: they end with an error where they differ.
SILENT = {"nki_simulate_example.py"}

# Files that others import.
PARTS = {"matrix_multiplication_nki_kernels.py", "mx_cpu_utils.py", "mx_kernels.py", "mx_kernel_utils.py"}


def _normal(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m model_tests.nki_tutorials")
    parser.add_argument("folder", type=Path, help="the folder nki of a checkout of aws-neuron/aws-neuron-sdk")
    parser.add_argument("names", nargs="*", help="only files whose path has one of these in it")
    parser.add_argument("--seconds", type=int, default=600, help="time limit of one script")
    options = parser.parse_args(arguments)
    scripts = [file for part in ("examples", "deep-dives") for file in sorted((options.folder / part).rglob("*.py"))]
    scripts = [file for file in scripts if not options.names or any(name in str(file) for name in options.names)]
    if not scripts:
        print(f"error: {options.folder} holds no tutorials (examples/, deep-dives/) of these names", file=sys.stderr)
        return 2
    outcomes = {}
    for file in scripts:
        if file.name not in PARTS:
            name = str(file.relative_to(options.folder))
            outcomes[name] = run_script(file, options.seconds)
            print(f"{name:75} {outcomes[name]}", flush=True)
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


def run_script(file: Path, seconds: int) -> str:
    """Runs a copy of the script's folder, as some write beside themselves; returns what became of it in a line."""
    if file.name in BROKEN:
        return f"not run: {BROKEN[file.name]}"
    text = file.read_text()
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f"not run: Python cannot parse it, line {error.lineno}: {error.msg}"
    if re.search(r"^\s*import jax", text, re.MULTILINE) and file.name not in CHECKS:
        if importlib.util.find_spec("jax") is None:
            return "not run: needs jax"
    with tempfile.TemporaryDirectory(prefix="nki-tutorial-") as folder:
        copy = Path(shutil.copytree(file.parent, Path(folder) / "copy")) / file.name
        target = "trn3" if "mxfp" in str(file) else "trn2"
        variables = {**os.environ, "PYTHONPATH": str(PROJECT), "NEURON_PLATFORM_TARGET_OVERRIDE": target}
        code = "import sys; from model_tests.nki_tutorials import run_here; run_here(sys.argv[1])"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, str(copy)],
                cwd=copy.parent,
                env=variables,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return f"FAILED: more than {seconds} s"
    return _judged(file.name, done)


def _judged(name: str, done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return f"FAILED: {' '.join(lines[-3:])[:500]}"
    if _DIFFERS.search(done.stdout):
        return "FAILED: it says that the kernel differs"
    matches = len(_MATCHES.findall(done.stdout))
    if matches:
        return f"passed: {matches} comparisons"
    return "passed: compared here" if name in CHECKS else "passed" if name in SILENT else "FAILED: compares nothing"


def run_here(path: str) -> None:
    """In the child process: runs a script as the main program, or compares its kernel."""
    from optimum_neuron_torch.emulator.nki import install

    install()
    file = Path(path)
    sys.path.insert(0, str(file.parent))
    sys.modules["torch_xla"] = _torch_xla()
    sys.argv = [path]
    if file.name in CHECKS:
        name, check = CHECKS[file.name]
        check(runpy.run_path(path, run_name="tutorial")[name])
    else:
        runpy.run_path(path, run_name="__main__")


def _torch_xla() -> ModuleType:
    """The tensors stay on the CPU, where the simulator takes them."""
    import torch

    module = ModuleType("torch_xla")
    module.device = lambda: torch.device("cpu")
    module.sync = lambda: None
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
