"""`@instruction`: what every nisa function has in common.

A nisa function checks its operands and returns a `Step`: who executes it, what it writes and reads, and its effect.
The decorator records the step and runs the effect, except in trace mode, where nothing has data. So a function reads:

    @instruction
    def reciprocal(dst, data):
        same_elements(dst, data)
        return Step("vector", (dst,), (data,), lambda: dst.write(1 / data.read_float32()))
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from .core import _THREAD, Core, current, set_engine
from .errors import SIMULATOR_DIR, NkiError
from .objects import NKIObject
from .records import Record
from .tensor import NkiTensor


class Step(NamedTuple):
    """One checked instruction. `engine` is a name of `records.Record.engine`; `detail` is for the cost estimate."""

    engine: str
    writes: tuple[NkiTensor, ...]
    reads: tuple[NkiTensor, ...]
    effect: Callable[[], Any]
    detail: dict[str, Any] | None = None


_NO_TENSOR = "an instruction returns a handle, not a tensor: use the tensor that was given as its dst="


class NkiHandleError(NkiError, AttributeError, TypeError):
    """The handle of an instruction was used as a tensor."""


class NkiInstruction(NKIObject):
    """The handle that an instruction returns."""

    __slots__ = ("record",)

    def __init__(self, handle: Record) -> None:
        self.record = handle

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NkiHandleError(f"`.{name}`: {_NO_TENSOR}")

    def __getitem__(self, key: Any) -> Any:
        raise NkiHandleError(f"`[{key!r}]`: {_NO_TENSOR}")

    def depends_on(self, *producers: "NkiInstruction") -> "NkiInstruction":
        """This instruction starts after each of `producers` has ended."""
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise NkiError(f"depends_on takes instructions, but got {producer!r}")
        detail = self.record.detail = self.record.detail or {}
        detail["after"] = (*detail.get("after", ()), *(producer.record for producer in producers))
        return self


def instruction(function: Callable[..., Step], namespace: str = "nisa") -> Callable[..., NkiInstruction]:
    op = f"{namespace}.{function.__name__}"
    short = function.__name__

    @functools.wraps(function)
    def issue(*args: Any, name: str | None = None, **kwargs: Any) -> NkiInstruction:
        core = current()
        run = core.run
        run.count_step()
        _THREAD.op, step = op, None
        try:
            step = function(*args, **kwargs)
            frame = sys._getframe(1)
            while frame.f_code.co_filename.startswith(SIMULATOR_DIR):
                frame = frame.f_back
            index = len(core.records)
            operands = step.writes + step.reads
            indices = ()
            if indirect := [tensor for tensor in operands if tensor.indirection is not None]:
                indices = tuple([t.indirection.index for t in indirect if isinstance(t.indirection.index, NkiTensor)])
                if any(tensor.has_index("free") for tensor in indirect):
                    _check_tensor_indirection(function, args, kwargs, step)
                    set_engine(step.engine)
            for tensor in operands + indices:
                storage = tensor.storage
                if storage.home is not core and storage.home is not run:
                    raise NkiError(_foreign(tensor, core))
                usage = storage.usage
                if usage is not None:
                    if usage.first < 0:
                        usage.first = index
                    usage.last = index
            record = Record(
                short,
                step.engine,
                core.index,
                frame.f_code.co_filename,
                frame.f_lineno,
                tuple([tensor.footprint for tensor in step.writes]),
                tuple([tensor.footprint for tensor in step.reads + indices]),
                step.detail,
            )
            core.records.append(record)
            if not core.is_tracing:
                step.effect()
        except NkiError as error:
            if error.op is None:
                error.op = op
                error.operands = _operands(function, args, kwargs)
            raise
        except ValueError as error:
            if step is None or not any(map(_is_read_only, step.writes)):
                raise
            refusal = NkiError("the kernel writes to an argument that is read-only: pass a copy", op=op)
            refusal.operands = _operands(function, args, kwargs)
            raise refusal from error
        except TypeError as error:
            raise _call_error(function, op, args, kwargs, error) from error
        finally:
            _THREAD.op = None
        return NkiInstruction(record)

    return issue


def _foreign(tensor: NkiTensor, core: Core) -> str:
    home = tensor.storage.home
    if getattr(home, "run", home) is not core.run:
        return f"{tensor.describe()} was made in another call of a kernel: tensors end with the call that made them"
    return (
        f"{tensor.describe()} belongs to core {home.index}, and this is core {core.index}: cores share tensors in "
        "nl.shared_hbm alone, or send them with nisa.sendrecv"
    )


def _is_read_only(tensor: NkiTensor) -> bool:
    root = tensor.storage.data.root
    return root is not None and not root.flags.writeable


# Which operands take tensor indirection, and on which engines: Neuron documentation, nki.isa.
_TENSOR_INDIRECTION = {
    "tensor_copy": (("dst", "src"), ("vector", "scalar")),
    "tensor_copy_predicated": (("dst", "predicate"), ("vector",)),
    "nc_matmul": (("dst", "stationary", "moving"), ("tensor",)),
    "tensor_tensor": (("dst", "data1"), ("vector", "gpsimd")),
    "tensor_scalar": (("dst", "data"), ("vector", "scalar", "gpsimd")),
    "tensor_reduce": (("dst", "data"), ("vector",)),
    "tensor_scalar_cumulative": (("dst", "src"), ("vector",)),
    "activation": (("dst", "data"), ("scalar",)),
    "activation_reduce": (("dst", "data"), ("scalar",)),
    "activate2": (("dst", "data"), ("scalar",)),
    "exponential": (("dst", "src"), ("vector",)),
    "tensor_scalar_reduce": (("dst", "data"), ("vector",)),
}


def _check_tensor_indirection(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: Step
) -> None:
    allowed, engines = _TENSOR_INDIRECTION.get(function.__name__, ((), ()))
    for name, value in _arguments(function, args, kwargs).items():
        is_free = isinstance(value, NkiTensor) and value.has_index("free")
        if is_free and name not in allowed:
            takes = (
                f"{', '.join(allowed)} of this instruction do" if allowed else "no operand of this instruction does"
            )
            raise NkiError(f"{name} does not take a view made by indirect(); {takes}")
    if step.engine not in engines:
        raise NkiError(f"with a view made by indirect() this runs on {' or '.join(engines)}, not on {step.engine}")


def _arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _operands(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    given = _arguments(function, args, kwargs)
    return [f"{name}: {value.describe()}" for name, value in given.items() if isinstance(value, NkiTensor)]


# What the calls of the old dialect pass, and what to write instead.
_REMOVED = {
    "mask": "slice the operands instead of masking",
    "dtype": "the destination's dtype decides",
    "psumAccumulateFlag": "accumulate=True or False",
    "acc_flags": "accumulate=True or False",
    "dst_rmw_op": "nisa.dma_compute reads, modifies and writes",
    "unique_indices": "nisa.dma_compute takes it",
    "use_gpsimd_dma": "dma_engine=nisa.dma_engine.gpsimd_dma or nisa.dma_engine.dma",
    "imm": "src= takes a register: nisa.register_alloc(number)",
}


def _call_error(
    function: Callable[..., Any], op: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> Exception:
    """A call that does not fit the signature becomes an `NkiError`; any other TypeError stays what it is."""
    import inspect

    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as mismatch:
        hints = [f"{name}= is gone: {way}" for name, way in _REMOVED.items() if name in kwargs]
        if "dst" in signature.parameters and "dst" not in kwargs and not args:
            hints.append("instructions write to dst= and return no tensor")
        advice = "".join(f"; {hint}" for hint in hints)
        return NkiError(f"{mismatch}{advice}. It takes {signature}", op=op)
    return error
