"""Graphs as files: FX graphs as text, and what Torch-MLIR makes of them, under TorchNeuron's function names.

The graphs are those that Torch-MLIR imports: AOTAutograd's or `torch.export`'s, with a value for every node
(`node.meta["val"]`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from torch import fx

from optimum_neuron_torch.emulator.compiler import stablehlo


RAW, STABLEHLO = "raw", "stablehlo"


def save_fx_graph_txt(gm: fx.GraphModule, path: str | Path) -> Path:
    """Writes a graph as readable text; gives the path back."""
    return _write(gm.print_readable(print_output=False), path)


def fx_to_mlir_string(
    gm: fx.GraphModule, output_type: Any = RAW, verbose: bool = False, enable_ir_printing: bool = False
) -> str:
    """A graph as MLIR: in the Torch dialect ("raw", as imported), or lowered to "stablehlo".

    `output_type` may also be a member of Torch-MLIR's `OutputType`.

    Raises:
        NotImplementedError: Torch-MLIR is not installed.
    """
    torch_mlir_fx = _torch_mlir("fx")
    module = torch_mlir_fx.stateless_fx_import(
        gm, output_type=output_type, verbose=verbose, enable_ir_printing=enable_ir_printing
    )
    return str(module)


def save_mlir(mlir_str: str, path: str | Path) -> Path:
    """Writes MLIR text; gives the path back."""
    return _write(mlir_str, path)


def save_fx_as_mlir(
    gm: fx.GraphModule,
    path: str | Path,
    output_type: Any = RAW,
    verbose: bool = False,
    enable_ir_printing: bool = False,
) -> Path:
    """`fx_to_mlir_string`, written to a file; gives the path back."""
    return save_mlir(fx_to_mlir_string(gm, output_type, verbose, enable_ir_printing), path)


def load_mlir(path: str | Path, context: Any = None) -> Any:
    """The module in a file of MLIR text, parsed: a `torch_mlir.ir.Module`.

    Raises:
        FileNotFoundError: there is no such file.
        NotImplementedError: Torch-MLIR is not installed.
    """
    ir = _torch_mlir("ir")
    return ir.Module.parse(Path(path).read_text(), context=_context(ir) if context is None else context)


def save_fx_graph_all_formats(
    gm: fx.GraphModule,
    base_path: str | Path,
    save_txt: bool = True,
    save_raw_mlir: bool = True,
    save_stablehlo_mlir: bool = False,
) -> dict[str, Path]:
    """Writes `base_path` + `.fx.txt`, `.raw.mlir`, `.stablehlo.mlir`, as asked for; gives the paths back by format."""
    files: dict[str, Path] = {}
    if save_txt:
        files["txt"] = save_fx_graph_txt(gm, f"{base_path}.fx.txt")
    if save_raw_mlir:
        files["raw_mlir"] = save_fx_as_mlir(gm, f"{base_path}.raw.mlir", RAW)
    if save_stablehlo_mlir:
        files["stablehlo_mlir"] = save_fx_as_mlir(gm, f"{base_path}.stablehlo.mlir", STABLEHLO)
    return files


def _write(text: str, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o644)
    os.replace(file.name, path)
    return path


def _torch_mlir(module: str) -> Any:
    if not stablehlo.is_available():
        raise NotImplementedError(
            "MLIR of a graph needs torch-mlir, which is not installed. Install it (pip install torch-mlir, from "
            "its own index), or save the graph as text: save_fx_graph_txt()."
        )
    import importlib

    return importlib.import_module(f"torch_mlir.{module}")


def _context(ir: Any) -> Any:
    """One that knows the dialects of both kinds of file."""
    from torch_mlir._mlir_libs import _stablehlo as stablehlo_dialect
    from torch_mlir.dialects import torch as torch_dialect

    context = ir.Context()
    torch_dialect.register_dialect(context)
    stablehlo_dialect.register_dialect(context)
    return context
