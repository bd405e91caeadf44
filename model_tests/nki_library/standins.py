"""What nki-library's tests import and nobody publishes, made from the simulator and `ml_dtypes`.

Their simulation mode loads a private package, `nki_cpu_simulator`, and puts its modules in place of `nki`; here that
package is the simulator. `neuron_dtypes` casts arrays of the host; `neuronxcc` is asked for annotations and for the
same cast. `perf_analysis_private` and the scripts that lock cores belong to modes of theirs that do not run here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from optimum_neuron_torch.emulator.nki import install
from optimum_neuron_torch.emulator.nki.dtypes import ALL_DTYPES, DType, as_dtype, convert, to_float32


ALIASES = {
    "nki_cpu_simulator.nki": "nki",
    "nki_cpu_simulator.nki.builtin": "nki",
    "nki_cpu_simulator.nki.compiler": "nki.compiler",
    "nki_cpu_simulator.nki.isa": "nki.isa",
    "nki_cpu_simulator.nki.isa.constants": "nki.isa.constants",
    "nki_cpu_simulator.nki.language": "nki.language",
    "nki_cpu_simulator.nki.language.dtypes": "nki.dtype",
    "nki_cpu_simulator.nki.tensor": "nki.tensor",
    "nki_cpu_simulator.nki.typing": "nki.typing",
    "neuronxcc.nki.typing": "nki.typing",
}

# The types of one element of the packed types.
_ELEMENTS = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}


def install_standins() -> None:
    """Puts them into `sys.modules`, and teaches NumPy the names of the types that only `ml_dtypes` has."""
    install()
    for alias, name in ALIASES.items():
        _place(alias, importlib.import_module(name))
    _place("neuron_dtypes", _neuron_dtypes())
    _place("neuronxcc.starfish.support.dtype", _module("dtype", static_cast=static_cast))
    _place("test.utils.perf_analysis_private", _module("perf_analysis_private", analyze_trace=None))
    _place("test.utils.scripts", _module("scripts", __path__=[]))
    locks = _module("remote_lock_scripts", LockResult=None, LockStatus=None)
    _place("test.utils.scripts.remote_lock_scripts", locks)
    for dtype in ALL_DTYPES:
        # Their tests make arrays of `nl.bfloat16` and its like.
        if str(dtype) not in np.sctypeDict:
            np.sctypeDict[str(dtype)] = packed_storage(dtype) if dtype.is_packed else dtype.storage.type


def _place(name: str, module: ModuleType) -> None:
    """Adds a module, and empty packages above it where there are none; `test` is a real package of theirs."""
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if not parent or parent.startswith("test"):
        return
    if parent not in sys.modules:
        _place(parent, _module(parent, __path__=[]))
    setattr(sys.modules[parent], child, module)


def _module(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(contents)
    return module


def _neuron_dtypes() -> ModuleType:
    return _module(
        "neuron_dtypes",
        static_cast=static_cast,
        sizeinbytes=lambda dtype: as_dtype(dtype).itemsize,
        is_float_type=lambda dtype: as_dtype(dtype).is_float if _is_known(dtype) else np.dtype(dtype).kind == "f",
        finfo=lambda dtype: ml_dtypes.finfo(as_dtype(dtype).storage),
        **{str(dtype): packed_storage(dtype) if dtype.is_packed else dtype for dtype in ALL_DTYPES},
    )


def static_cast(values: Any, dtype: Any) -> np.ndarray:
    """`values` as another type; a packed type holds four neighbours of the last axis in one element."""
    values = np.asarray(values)
    source = as_dtype(values.dtype) if _is_known(values.dtype) else None
    if source is not None and source.is_packed:
        values = _unpacked(values, source)
    if not _is_known(dtype):
        return values.astype(dtype)
    target = as_dtype(dtype)
    if target.is_packed:
        return _packed(values.astype(np.float32), target)
    return _element_cast(target)(values)


def _element_cast(target: DType) -> Callable[[np.ndarray], np.ndarray]:
    if target.is_float:
        return lambda values: values.astype(target.storage)
    return lambda values: convert(values if values.dtype.kind in "iub" else values.astype(np.float32), target)


def _is_known(dtype: Any) -> bool:
    try:
        as_dtype(dtype)
    except ValueError:
        return False
    return True


def packed_storage(dtype: DType) -> np.dtype:
    """A packed type as NumPy has it: a structure of one field of that name."""
    return np.dtype([(str(dtype), dtype.storage)])


def _unpacked(values: np.ndarray, source: DType) -> np.ndarray:
    raw = np.ascontiguousarray(values).view(source.storage)
    if source.itemsize == 4:
        elements = raw.view(_ELEMENTS[source])
        return to_float32(elements, as_dtype(elements.dtype))
    nibbles = (raw[..., None] >> np.arange(0, 16, 4, dtype=np.uint16)) & 0xF
    return nibbles.astype(np.uint8).view(_ELEMENTS[source]).astype(np.float32).reshape(*raw.shape[:-1], -1)


def _packed(values: np.ndarray, target: DType) -> np.ndarray:
    elements = np.ascontiguousarray(values.astype(_ELEMENTS[target])).view(np.uint8)
    if target.itemsize == 4:
        return elements.view(np.uint32).view(packed_storage(target))
    nibbles = elements.reshape(*values.shape[:-1], -1, 4).astype(np.uint16)
    raw = (nibbles << np.arange(0, 16, 4, dtype=np.uint16)).sum(axis=-1, dtype=np.uint16)
    return np.ascontiguousarray(raw).view(packed_storage(target))
