"""Dynamo's view of NKI kernels: a call of one is one node of the graph, and none of its Python is traced.

Dynamo has no hook for objects of a class of ours. What it has for Triton's kernels is done here for NKI's: a variable
that stands for the kernel, entered in the tables by which Dynamo chooses variables.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NoReturn

from torch._dynamo import exc
from torch._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.types import FrameAction, FrameExecStrategy
from torch._dynamo.utils import proxy_args_kwargs
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder, wrap_fx_proxy
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from optimum_neuron_torch.emulator.nki import operation, torch_calls
from optimum_neuron_torch.emulator.nki.calls import with_tensors
from optimum_neuron_torch.emulator.nki.dtypes import DType
from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.kernel import Kernel, simulate
from optimum_neuron_torch.emulator.nki.operators import Operator
from optimum_neuron_torch.emulator.patches import Patch, PatchTable


_CONSTANTS = (DType, Operator, enum.Enum)


class KernelVariable(VariableTracker):
    """A kernel, as it is called or with its number of cores chosen."""

    def __init__(self, kernel: Kernel, **options: Any) -> None:
        super().__init__(**options)
        self.kernel = kernel

    def python_type(self) -> type:
        return type(self.kernel)

    def as_python_constant(self) -> Kernel:
        return self.kernel

    def is_python_constant(self) -> bool:
        return False  # else `kernel[3]` is computed before anyone can say what is wrong with it

    def mp_subscript_impl(self, tx: Any, key: VariableTracker) -> VariableTracker:
        try:
            return KernelVariable(self.kernel[key.as_python_constant()])
        except (NkiError, NotImplementedError) as error:
            _break(self.kernel, error)

    def call_method(
        self, tx: Any, name: str, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        if name == "__getitem__":
            return self.mp_subscript_impl(tx, *args)
        if name == "__call__":
            return self.call_function(tx, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def call_function(
        self, tx: Any, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker:
        reading = _Reading(tx, self.kernel)
        values = [reading.value_of(argument) for argument in args]
        named = {name: reading.value_of(argument) for name, argument in kwargs.items()}
        try:
            prepared = torch_calls.prepare_call(self.kernel.func, self.kernel.lnc, tuple(values), named)
        except NkiError as error:
            _break(self.kernel, error)
        tensors = [reading.tensors[id(tensor)] for tensor in prepared.tensors]
        operands, _ = proxy_args_kwargs(tensors, {})
        made = tx.output.create_proxy("call_function", operation.OPERATOR, (list(operands), prepared.call.text()), {})
        results = wrap_fx_proxy(tx, made).items
        first = len(results) - len(prepared.call.written)
        for position, result in zip(prepared.call.written, results[first:], strict=True):
            tensors[position].call_method(tx, "copy_", [result], {})
        return _variable_of(tx, self.kernel, with_tensors(prepared.returned, results, tensors))


class _Reading:
    """The arguments of one call as Python values, in which Dynamo's fake tensors stand for tensors."""

    def __init__(self, tx: Any, kernel: Kernel) -> None:
        self.tx, self.kernel = tx, kernel
        self.tensors: dict[int, TensorVariable] = {}

    def value_of(self, variable: VariableTracker) -> Any:
        variable = LazyVariableTracker.realize_all(variable)
        if isinstance(variable, TensorVariable):
            fake = variable.as_proxy().node.meta["example_value"]
            return self.tensors.setdefault(id(fake), variable) and fake
        if isinstance(variable, SymNodeVariable):
            return variable.evaluate_expr()
        if isinstance(variable, BaseListVariable):
            items, kind = [self.value_of(item) for item in variable.items], variable.python_type()
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        if isinstance(variable, ConstDictVariable):
            return {key.vt.as_python_constant(): self.value_of(item) for key, item in variable.items.items()}
        if isinstance(variable, UserDefinedObjectVariable):
            return self._object(variable)
        try:
            return variable.as_python_constant()
        except NotImplementedError:
            _break(self.kernel, f"an argument is {variable}, of which Dynamo does not know the value")

    def _object(self, variable: UserDefinedObjectVariable) -> Any:
        value = variable.value
        if isinstance(value, _CONSTANTS):
            if variable.source is not None:
                install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
            return value
        if dataclasses.is_dataclass(value):
            made = object.__new__(type(value))
            for name in vars(value):
                object.__setattr__(made, name, self.value_of(variable.var_getattr(self.tx, name)))
            return made
        _break(self.kernel, f"an argument is a {type(value).__qualname__}, which cannot be part of a compiled graph")


def _variable_of(tx: Any, kernel: Kernel, returned: Any) -> VariableTracker:
    if dataclasses.is_dataclass(returned) or hasattr(returned, "_fields"):
        _break(
            kernel, f"it returns a {type(returned).__qualname__}; return tensors, or tuples, lists or dicts of them"
        )
    return SourcelessBuilder.create(tx, returned)


def _break(kernel: Kernel, reason: Any) -> NoReturn:
    exc.unimplemented(
        gb_type="NKI kernel that cannot be part of a graph",
        context=str(kernel),
        explanation=f"{kernel}: {reason}",
        hints=["Without fullgraph=True the kernel is called between two graphs."],
    )


def _kernel_with_source(builder: Any, value: Kernel) -> VariableTracker:
    builder.install_guards(GuardBuilder.ID_MATCH)
    return KernelVariable(value, source=builder.source)


def _kernel_without_source(tx: Any, value: Kernel) -> VariableTracker:
    return KernelVariable(value)


def _entry(entry: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda original: entry


_UNTIL = "a registry of Dynamo for calls that are one operator, beside the one for functions (allow_in_graph)"
_TABLE = PatchTable(
    tuple(
        Patch(table, kind, _entry(entry), until=_UNTIL)
        for kind in (Kernel, simulate)
        for table, entry in (
            (VariableBuilder._type_dispatch(), _kernel_with_source),
            (SourcelessBuilder._type_handlers, _kernel_without_source),
        )
    )
)


def install() -> None:
    """Enter kernels in Dynamo's tables, and have it leave alone what runs them; a second call does nothing."""
    _TABLE.install()
    for code in (Kernel.__call__.__code__, operation.run.__code__):
        set_code_exec_strategy(code, FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))


def uninstall() -> None:
    """Take them out again."""
    _TABLE.uninstall()
