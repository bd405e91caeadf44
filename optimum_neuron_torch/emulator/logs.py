"""Where the compiler says what it did: one Python logger, and names for PyTorch's own `TORCH_LOGS`.

Messages go to the Python logger `LOGGER`. Where `TORCH_LOGS` (or `torch._logging.set_logs`) names "neuron" they go
to PyTorch's handlers instead, in PyTorch's format, so that no line comes twice. Artifacts (the text of graphs) exist
under `TORCH_LOGS` only.

Imported at the end of `import torch`: nothing here loads the compiler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch._logging
from torch._logging import _internal


LOGGER = "optimum_neuron_torch.emulator.compiler"
SETTING = "neuron"
_TORCH_LOGGER = "torch.neuron"

GRAPHS, STABLEHLO, HOST_GRAPHS, RECOMPILES = (
    "neuron_graphs",
    "neuron_stablehlo",
    "neuron_host_graphs",
    "neuron_recompiles",
)

# Name -> what it prints, and whether only naming it switches it on ("+neuron" switches on the others).
_ARTIFACTS = {
    GRAPHS: ("The graphs that AOTAutograd hands to the neuron backend, as Python code.", False),
    STABLEHLO: ("The StableHLO that graphs for neuron are lowered to.", True),
    HOST_GRAPHS: ("The graphs that an executor of the emulated neuron device runs, as Python code.", True),
    RECOMPILES: ("Why a graph for neuron was compiled again: every guard that failed.", False),
}


def register() -> None:
    """Make the names known to PyTorch, before it reads `TORCH_LOGS`."""
    torch._logging._internal.register_log(SETTING, _TORCH_LOGGER)
    for name, (description, by_name_only) in _ARTIFACTS.items():
        torch._logging._internal.register_artifact(name, description, visible=True, off_by_default=by_name_only)


def logger() -> logging.Logger:
    """The logger that messages go to: PyTorch's where the user set it, else the Python one."""
    torch_logger = logging.getLogger(_TORCH_LOGGER)
    return logging.getLogger(LOGGER) if torch_logger.level == logging.NOTSET else torch_logger


def is_wanted(artifact: str) -> bool:
    """Whether `TORCH_LOGS` asks for an artifact."""
    log = _artifact_logger(artifact)
    return log.propagate and log.isEnabledFor(logging.DEBUG)


def emit(artifact: str, text: Callable[[], str]) -> None:
    """Print an artifact if it is asked for; `text` is called only then."""
    if is_wanted(artifact):
        _artifact_logger(artifact).debug("%s", text())


def _artifact_logger(name: str) -> logging.Logger:
    return _internal.getArtifactLogger(_TORCH_LOGGER, name)
