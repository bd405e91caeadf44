"""Keeps the graphs of each compilation as files, where TorchNeuron keeps them: for reading what was compiled.

`TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS=1` asks for it, `TORCH_NEURONX_DEBUG_DIR` names the directory. Below it
are `fx_graphs/proc_<rank>/<graph>.fx.txt` and `stablehlo/proc_<rank>/<graph>.stablehlo.mlir`. There are no NEFFs.
Files appear whole: processes of one rank may share the directory, and the last one's graph of a name stays.
"""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path

from torch import fx

from optimum_neuron_torch.emulator import logs
from optimum_neuron_torch.emulator.compiler.graph_files import save_fx_graph_txt, save_mlir
from optimum_neuron_torch.emulator.compiler.metrics import GraphRecord, get_rank
from optimum_neuron_torch.emulator.compiler.stablehlo import StableHlo


SWITCH = "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS"
DIRECTORY = "TORCH_NEURONX_DEBUG_DIR"
DEFAULT_DIRECTORY = "/tmp/neuron_backend"


def is_text_wanted() -> bool:
    """Whether the environment or TORCH_LOGS asks for the text of graphs; then none may come from the cache."""
    return _is_on() or any(map(logs.is_wanted, (logs.GRAPHS, logs.STABLEHLO, logs.HOST_GRAPHS)))


def _is_on() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("1", "true")


def keep(gm: fx.GraphModule, lowered: StableHlo | None, record: GraphRecord) -> None:
    """Writes the graph, and its StableHLO if it was lowered, if the environment asks for that."""
    if not _is_on():
        return
    directory = Path(os.environ.get(DIRECTORY) or DEFAULT_DIRECTORY)
    process, name = f"proc_{get_rank()}", record.graph_name.replace(os.sep, "_")
    try:
        save_fx_graph_txt(gm, directory / "fx_graphs" / process / f"{name}.fx.txt")
        if lowered is not None:
            save_mlir(lowered.module, directory / "stablehlo" / process / f"{name}.stablehlo.mlir")
    except OSError as error:
        _warn(directory, str(error))


@functools.cache
def _warn(directory: Path, reason: str) -> None:
    """Once for a directory, not for each of its graphs."""
    warnings.warn(f"{SWITCH}: graphs are not kept in {directory} ({reason}). {DIRECTORY} names another.", stacklevel=3)
