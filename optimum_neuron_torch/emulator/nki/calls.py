"""Calls of kernels as text: what a graph keeps of one, and how another process runs it again.

A call names its kernel and the digest of the kernel's source, the number of cores, the chip, the arguments that are no
tensors, and what comes out. Nothing here knows PyTorch: tensors are told apart by `is_tensor`.
"""

import dataclasses
import enum
import importlib
import json
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .chips import Chip, current_chip
from .conversion import is_container, rebuilt
from .dtypes import DType, as_dtype
from .errors import NkiError
from .hosts import TensorSpec
from .kernel import Kernel
from .operators import OPERATORS, Operator
from .sources import source_digest, source_file
from .tracing import trace


class CallError(NkiError):
    """A call that cannot be part of a graph, or not in this process."""


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel, without its tensors.

    Args:
        kernel: "module:name" of its function; with "#..." at the end where only this process knows it.
        digest: of its source.
        lnc: on how many cores it runs.
        chip: the generation of the chip that it runs on.
        arguments: positional and keyword arguments as `encode` writes them.
        results: shape and dtype of each tensor it makes; first what it returns, then the new values of `written`.
        written: the positions of the tensors that it writes to.
    """

    kernel: str
    digest: str
    lnc: int
    chip: int
    arguments: Any
    results: tuple[TensorSpec, ...]
    written: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's own name, e.g. "flash_attention_kernel"."""
        return self.kernel.partition(":")[2].partition("#")[0].rpartition(".")[2]

    def text(self) -> str:
        """What `KernelCall.parse` reads. Equal calls have equal texts, in every process."""
        results = [[str(result.dtype), list(result.shape)] for result in self.results]
        return json.dumps({**vars(self), "results": results, "written": list(self.written)})

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> "KernelCall":
        fields = json.loads(text)
        fields["results"] = tuple(TensorSpec(shape, dtype) for dtype, shape in fields["results"])
        return KernelCall(**{**fields, "written": tuple(fields["written"])})

    def function(self) -> Callable[..., Any]:
        """The kernel's function.

        Raises:
            CallError: there is none of that name here, or its source is another one.
        """
        return resolve(self.kernel, self.digest)


@dataclass(frozen=True)
class Result:
    """Stands for a tensor that a call makes."""

    position: int


@dataclass(frozen=True)
class Argument:
    """Stands for a tensor among a call's arguments."""

    position: int


@dataclass(frozen=True)
class PreparedCall:
    """A call for a graph, its tensors, and what the kernel returns, in terms of `Result` and `Argument`."""

    call: KernelCall
    tensors: tuple[Any, ...]
    returned: Any


def prepare(
    function: Callable[..., Any],
    lnc: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_tensor: Callable[..., Any],
) -> PreparedCall:
    """
    Args:
        is_tensor: gives the `TensorSpec` of a tensor, None of anything else.

    Raises:
        CallError: an argument cannot be written down.
        NkiError: the kernel breaks a rule.
    """
    tensors: dict[int, Any] = {}

    def position(value: Any) -> int | None:
        if is_tensor(value) is None:
            return None
        tensors.setdefault(id(value), value)
        return list(tensors).index(id(value))

    arguments = [encode(args, position, "the arguments"), encode(kwargs, position, "the arguments")]
    specs = tuple(is_tensor(tensor) for tensor in tensors.values())
    name, digest = register(function)
    call, returned = _traced(name, digest, lnc, current_chip(), json.dumps(arguments), specs)
    return PreparedCall(call, tuple(tensors.values()), returned)


@lru_cache(maxsize=1024)
def _traced(
    name: str, digest: str, lnc: int, chip: Chip, arguments: str, specs: tuple[TensorSpec, ...]
) -> tuple[KernelCall, Any]:
    """Runs the kernel without data, once for each kind of call: graphs are traced several times over."""
    specs = tuple(TensorSpec(spec.shape, spec.dtype) for spec in specs)  # objects of its own, told apart by identity
    positions = {id(spec): position for position, spec in enumerate(specs)}
    encoded = json.loads(arguments)
    args, kwargs = decode(encoded, specs)
    traced = trace(resolve(name, digest), *args, lnc=lnc, chip=chip, **kwargs)
    results: list[TensorSpec] = []

    def place(value: Any, where: str) -> Any:
        if not isinstance(value, TensorSpec):
            return rebuilt(value, where, place)
        if value.argument is not None:
            return Argument(positions[id(value.argument)])
        results.append(value)
        return Result(len(results) - 1)

    returned = place(traced.outputs, "the result")
    written = tuple(sorted(positions[id(spec)] for spec in traced.written_arguments()))
    results += [specs[position] for position in written]
    call = KernelCall(name, digest, lnc, chip.generation, encoded, tuple(results), written)
    return call, returned


def tensors_of(returned: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """The tensors in what a kernel returned, in the order in which `Result`s are counted."""
    found: list[Any] = []

    def collect(value: Any, where: str) -> Any:
        if not is_tensor(value):
            return rebuilt(value, where, collect)
        found.append(value)
        return value

    collect(returned, "")
    return found


def with_tensors(returned: Any, results: Sequence[Any], tensors: Sequence[Any]) -> Any:
    """`PreparedCall.returned` with tensors in their places."""

    def fill(value: Any, where: str) -> Any:
        if isinstance(value, Result):
            return results[value.position]
        if isinstance(value, Argument):
            return tensors[value.position]
        return rebuilt(value, where, fill)

    return fill(returned, "")


# Names of functions

_PROCESS = uuid.uuid4().hex[:12]
_known: dict[tuple[str, str], Callable[..., Any]] = {}
_names: dict[int, tuple[str, str]] = {}


def register(function: Callable[..., Any]) -> tuple[str, str]:
    """The name and the digest by which `resolve` finds a function.

    One that cannot be imported by its name, as it was made inside of another function, or that is in no file, gets a
    name that no other process has.
    """
    known = _names.get(id(function))
    if known is not None:
        return known
    name = f"{function.__module__}:{function.__qualname__}"
    digest = source_digest(function)
    is_another = _known.get((name, digest), function) is not function
    if _imported(name) is not function or source_file(function) is None or is_another:
        name = f"{name}#{_PROCESS}-{len(_known)}"
    _known[name, digest] = function  # kept, so that its id stays its own
    _names[id(function)] = name, digest
    return name, digest


def resolve(name: str, digest: str) -> Callable[..., Any]:
    """The function of a name and a digest of its source.

    Raises:
        CallError: there is none.
    """
    known = _known.get((name, digest))
    if known is not None:
        return known
    plain, _, process = name.partition("#")
    if process:
        raise CallError(
            f"the kernel {plain} was made inside of a function of another process, where nobody else finds it: define "
            "it at the top of a module, or compile the graph again"
        )
    function = _imported(name)
    if function is None:
        raise CallError(f"there is no kernel {name}, which a compiled graph calls: compile the graph again")
    if source_digest(function) != digest:
        raise CallError(f"the source of the kernel {name} has changed since a graph was compiled: compile it again")
    _known[name, digest] = function
    return function


def digest_of(name: str) -> str:
    """The digest of the source of the function of a name, as it is in this process; "" where there is none."""
    if "#" in name:
        return next((digest for known, digest in _known if known == name), "")
    function = _imported(name)
    return "" if function is None else source_digest(function)


def _imported(name: str) -> Any:
    """What a name leads to, as a plain function; None for nothing."""
    module, _, path = name.partition(":")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found.func if isinstance(found, Kernel) else found


# Arguments


def encode(value: Any, position: Callable[[Any], int | None], where: str) -> Any:
    """An argument for JSON; `position` gives a tensor's place among the tensors of the call, and None for the rest.

    Raises:
        CallError: nothing can be written down for it that another process would understand.
    """
    if (place := position(value)) is not None:
        return {"tensor": place}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, DType):
        return {"dtype": str(value)}
    if isinstance(value, Operator):
        return {"operator": value.name}
    if isinstance(value, enum.Enum):
        return {"enum": _global_name(type(value), where), "member": value.name}
    if isinstance(value, np.generic):
        return {"number": _dtype_name(value.dtype), "value": value.item()}
    if isinstance(value, np.dtype):
        return {"numpy.dtype": _dtype_name(value)}
    if isinstance(value, slice):
        return {"slice": [encode(item, position, where) for item in (value.start, value.stop, value.step)]}
    if is_container(value):
        return _encode_container(value, position, where)
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return {"torch.dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Kernel) or callable(value):
        return _encode_function(value, where)
    raise _refusal(value, where)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Dtypes that are not NumPy's own, as bfloat16, have a name and no code."""
    return dtype.name if dtype.kind == "V" else dtype.str


def _encode_container(value: Any, position: Callable[[Any], int | None], where: str) -> Any:
    if type(value) is list:
        return [encode(item, position, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        items = [encode(item, position, f"{where}[{i}]") for i, item in enumerate(value)]
        is_plain = type(value) is tuple or not hasattr(value, "_fields")
        return {"tuple": items} if is_plain else {"named": _global_name(type(value), where), "items": items}
    if type(value) is dict:
        entries = [
            [encode(key, position, where), encode(item, position, f"{where}[{key!r}]")] for key, item in value.items()
        ]
        return {"dict": entries}
    if dataclasses.is_dataclass(value):
        fields = {name: encode(item, position, f"{where}.{name}") for name, item in vars(value).items()}
        return {"record": _global_name(type(value), where), "fields": fields}
    raise _refusal(value, where)


def _encode_function(value: Any, where: str) -> Any:
    if isinstance(value, type):
        return {"global": _global_name(value, where)}
    function = value.func if isinstance(value, Kernel) else value
    if not hasattr(function, "__qualname__") or not hasattr(function, "__module__"):
        raise _refusal(value, where)
    name, digest = register(function)
    return {"function": name, "digest": digest, "lnc": value.lnc if isinstance(value, Kernel) else 0}


def _global_name(value: Any, where: str) -> str:
    name = f"{value.__module__}:{value.__qualname__}"
    if _imported(name) is not value:
        raise _refusal(value, where)
    return name


def _refusal(value: Any, where: str) -> CallError:
    return CallError(
        f"{where} is a {type(value).__qualname__} ({value!r:.60}), which cannot be part of a compiled graph: besides "
        "tensors that takes numbers, strings, None, dtypes, enums, functions, and tuples, lists, dicts and "
        "dataclasses of them, with classes from the top of a module"
    )


def decode(value: Any, tensors: Sequence[Any]) -> Any:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    return _DECODERS[next(iter(value))](value, tensors) if isinstance(value, dict) else value


def _decode_named(value: dict[str, Any], tensors: Sequence[Any]) -> Any:
    return _imported(value["named"])(*decode(value["items"], tensors))


def _decode_record(value: dict[str, Any], tensors: Sequence[Any]) -> Any:
    kind = _imported(value["record"])
    made = object.__new__(kind)
    for name, item in value["fields"].items():
        object.__setattr__(made, name, decode(item, tensors))
    return made


def _decode_function(value: dict[str, Any], tensors: Sequence[Any]) -> Any:
    function = resolve(value["function"], value["digest"])
    return Kernel(function, value["lnc"]) if value["lnc"] else function


def _decode_torch_dtype(value: dict[str, Any], tensors: Sequence[Any]) -> Any:
    import torch

    return getattr(torch, value["torch.dtype"])


_DECODERS: dict[str, Callable[[dict[str, Any], Sequence[Any]], Any]] = {
    "tensor": lambda value, tensors: tensors[value["tensor"]],
    "dtype": lambda value, tensors: as_dtype(value["dtype"]),
    "operator": lambda value, tensors: OPERATORS[value["operator"]],
    "enum": lambda value, tensors: _imported(value["enum"])[value["member"]],
    "number": lambda value, tensors: np.dtype(value["number"]).type(value["value"]),
    "numpy.dtype": lambda value, tensors: np.dtype(value["numpy.dtype"]),
    "torch.dtype": _decode_torch_dtype,
    "slice": lambda value, tensors: slice(*decode(value["slice"], tensors)),
    "tuple": lambda value, tensors: tuple(decode(value["tuple"], tensors)),
    "named": _decode_named,
    "dict": lambda value, tensors: {decode(k, tensors): decode(v, tensors) for k, v in value["dict"]},
    "record": _decode_record,
    "global": lambda value, tensors: _imported(value["global"]),
    "function": _decode_function,
}
