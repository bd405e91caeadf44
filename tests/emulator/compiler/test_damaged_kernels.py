"""Inductor's part of the compile cache, damaged between two processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


CODE = """
import torch
function = torch.compile(lambda x: torch.softmax(x * 2 + 1, -1), backend="neuron")
x = torch.arange(12.0).view(3, 4)
torch.testing.assert_close(function(x.to("neuron")).cpu(), torch.softmax(x * 2 + 1, -1))
print("equal")
"""
DAMAGES = {
    "half of it": lambda content: content[: len(content) // 2],
    "nothing": lambda content: b"",
    "no text": lambda content: b"\xff" * 64 + content[64:],
}


def run(cache: Path) -> str:
    """What a process that uses `cache` says besides."""
    environment = {**os.environ, "OPTIMUM_NEURON_CACHE": str(cache), "NEURON_EMULATOR_EXECUTOR": "inductor"}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert done.stdout == "equal\n", done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that one process filled."""
    cache = tmp_path_factory.mktemp("filled")
    run(cache)
    return cache


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_load_is_compiled_anew(filled, tmp_path, damage):
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    kernels = [path for path in tmp_path.rglob("programs/*/*/*") if path.is_file()]
    assert {path.suffix for path in kernels} == {".pickle", ".so", ".json"}
    for path in [*kernels, *tmp_path.rglob("aotautograd/*/*")]:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert "compiled anew" in run(tmp_path)
    assert "compiled anew" not in run(tmp_path)
