"""`torch_neuronx.neuron_dynamo_backend`: the compile backend's helpers, under TorchNeuron's names.

`get_graph_breaks` exists only here, never on the native package.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optimum_neuron_torch.emulator.compiler.background import finish_compilations, pending_compilations
from optimum_neuron_torch.emulator.compiler.errors import LoweringError
from optimum_neuron_torch.emulator.compiler.errors import NeuronCompilerError as NEFFCompilationError
from optimum_neuron_torch.emulator.compiler.errors import NeuronExecutionError as NEFFExecutionError
from optimum_neuron_torch.emulator.compiler.graph_breaks import get_graph_breaks
from optimum_neuron_torch.emulator.compiler.graph_files import (
    fx_to_mlir_string,
    load_mlir,
    save_fx_as_mlir,
    save_fx_graph_all_formats,
    save_fx_graph_txt,
    save_mlir,
)
from optimum_neuron_torch.emulator.compiler.metrics import (
    get_dynamo_metrics,
    get_model_name,
    get_rank,
    reset_dynamo_metrics,
    set_model_name,
)


__all__ = [
    "LoweringError",
    "NEFFCompilationError",
    "NEFFExecutionError",
    "compiler_version",
    "create_neuron_backend",
    "finish_compilations",
    "fx_to_mlir_string",
    "get_dynamo_metrics",
    "get_graph_breaks",
    "get_model_name",
    "get_rank",
    "graph_directory",
    "graph_programs",
    "load_mlir",
    "neuron_backend",  # noqa: F822 (resolved below, on first use)
    "pending_compilations",
    "reset_dynamo_metrics",
    "save_fx_as_mlir",
    "save_fx_graph_all_formats",
    "save_fx_graph_txt",
    "save_mlir",
    "set_model_name",
    "usable_programs",
]


def create_neuron_backend() -> Callable[..., Any]:
    """The function that `torch.compile(backend="neuron")` uses, to be passed as `backend=` itself."""
    from optimum_neuron_torch.emulator.compiler import neuron

    return neuron


def compiler_version(options: Mapping[str, Any] | None = None) -> str:
    """What compiled graphs depend on beside the traced program: compiler, passes, and `options` over their defaults.

    The emulator's own; no such function is known of the native package.
    """
    from optimum_neuron_torch.emulator.compiler.cache import compiler_version
    from optimum_neuron_torch.emulator.compiler.options import CompileOptions

    return compiler_version(CompileOptions.parse(options))


def graph_directory() -> Path | None:
    """Where compiled graphs for this machine are kept. The emulator's own.

    None where they are not kept, or where their text is wanted, which what is kept does not have.
    """
    from optimum_neuron_torch.emulator.compiler.artifacts import is_text_wanted
    from optimum_neuron_torch.emulator.compiler.cache import graph_directory

    return None if is_text_wanted() else graph_directory()


def graph_programs(
    digests: Sequence[str], *, isa: str | None = None, threads: int | None = None, build_missing: bool = True
) -> list[Path]:
    """The folders of graphs' compiled programs below `graph_directory()`, made where they are missing. The emulator's
    own; see `programs.folders`.
    """
    from optimum_neuron_torch.emulator.compiler import programs

    return programs.folders(digests, name=isa, threads=threads, build_missing=build_missing)


def usable_programs() -> list[str]:
    """Names of the folders of compiled programs that this process can run. The emulator's own."""
    from optimum_neuron_torch.emulator.compiler import isa

    return isa.usable_tags()


def __getattr__(name: str) -> Any:
    if name == "neuron_backend":
        from optimum_neuron_torch.emulator.compiler import neuron

        return neuron
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
