"""`optimum-cli neuron env`: versions, the device and its limits, the cache, and the variables that are set.

It is what a bug report needs, so it answers in a broken environment too: each part that fails says so in its place.
"""

import json
import os
import platform
from argparse import ArgumentParser
from importlib import metadata
from typing import Any

from optimum.commands.base import CommandInfo

from .sizes import format_bytes
from .verb import NeuronVerb


DISTRIBUTIONS = (
    "optimum-neuron-torch",
    "torch",
    "torch-neuronx",
    "nki",
    "transformers",
    "diffusers",
    "accelerate",
    "optimum",
    "peft",
    "sentence-transformers",
    "torch-mlir",
    "jaxlib",
)
VARIABLE_PREFIXES = ("NEURON_", "TORCH_NEURONX_", "OPTIMUM_NEURON_", "NKI_", "TORCH_DEVICE_BACKEND_AUTOLOAD")


class EnvCommand(NeuronVerb):
    COMMAND = CommandInfo(name="env", help="Print versions, the device and its limits, the cache directory.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")

    def execute(self) -> int:
        facts = environment()
        if self.args.json:
            print(json.dumps(facts, indent=2))
        else:
            _print_table(facts)
        return 0


def environment() -> dict[str, Any]:
    """All facts, as plain JSON values."""
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in DISTRIBUTIONS},
        "device": _device(),
        "cache": _cache(),
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLE_PREFIXES)},
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _device() -> dict[str, Any]:
    from .. import runtime

    try:
        device = runtime.resolve_device()
    except Exception as error:
        return {"available": False, "reason": str(error)}
    return {
        "available": True,
        "kind": "emulated" if runtime.is_emulated() else "native",
        "current": str(device),
        "logical_cores": runtime.device_count(),
        **_memory(device),
    }


def _memory(device: Any) -> dict[str, int]:
    """Free bytes of HBM and the limit in force; nothing where the device does not say, or is not the current one."""
    import torch

    current = torch.accelerator.current_accelerator()
    if current is None or current.type != device.type:
        return {}
    try:
        free, total = torch.accelerator.get_memory_info(device)
    except (RuntimeError, NotImplementedError):
        return {}
    return {"hbm_free_bytes": free, "hbm_limit_bytes": total}


def _cache() -> dict[str, Any]:
    from ..runtime import cache_dir
    from .cache import measure

    directory = cache_dir()
    return {"directory": str(directory), "bytes": measure(directory).size if directory.is_dir() else 0}


def _print_table(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("python", f"{facts['python']} on {facts['platform']}")
    for name, version in facts["versions"].items():
        table.add_row(name, version or "not installed", style=None if version else "dim")
    for name, value in facts["device"].items():
        shown = format_bytes(value) if name.endswith("_bytes") else str(value)
        table.add_row(f"device: {name.removesuffix('_bytes').replace('_', ' ')}", shown)
    table.add_row("cache", f"{facts['cache']['directory']} ({format_bytes(facts['cache']['bytes'])})")
    for name, value in facts["variables"].items():
        table.add_row(name, value)
    Console(soft_wrap=True, highlight=False, markup=False).print(table)
