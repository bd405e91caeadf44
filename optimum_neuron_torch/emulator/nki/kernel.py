"""`nki.jit` and `nki.simulate`: calling a kernel on arrays of the host."""

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .chips import Chip, current_chip
from .conversion import Arguments
from .core import Run, is_running, running
from .errors import NkiError
from .hosts import NoDataError
from .measuring.capacity import check_capacity
from .measuring.report import PerformanceReport


LNC_SIZES = (1, 2)

# Of all threads: PyTorch computes gradients on a device in a thread of its own.
_collectors: list[list[PerformanceReport]] = []


class Kernel:
    """An `@nki.jit` function. `kernel[2](...)` runs it on the two cores of a logical NeuronCore.

    On the emulator every call runs in the simulator: on host tensors and arrays, with results of the same kind. Where
    PyTorch traces a graph it becomes part of that. Inside another kernel a call is an ordinary function call.
    """

    def __init__(self, function: Callable[..., Any], lnc: int = 1, **options: Any) -> None:
        functools.update_wrapper(self, function)
        self.func, self.lnc, self.options = function, lnc, options

    def __getitem__(self, lnc: Any) -> "Kernel":
        return type(self)(self.func, lnc=lnc_size(lnc), **self.options)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_running():
            return self.func(*args, **kwargs)
        if hasattr(sys.modules.get("torch"), "library"):
            from . import torch_calls

            return torch_calls.call(self.func, self.lnc, args, kwargs)
        return run_kernel(self.func, self.lnc, args, kwargs)

    def __repr__(self) -> str:
        return f"<nki kernel {self.func.__qualname__}{f'[{self.lnc}]' if self.lnc > 1 else ''}>"


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Makes a kernel of a function; `@nki.jit` and `@nki.jit(...)` both do."""
    if fn is None:
        return lambda function: jit(function, **options)
    if isinstance(fn, Kernel):
        return fn
    if not callable(fn):
        raise NkiError(f"nki.jit takes a function, but got {fn!r}")
    if "platform_target" in options:
        raise NkiError(
            f"nki.jit(platform_target={options['platform_target']!r}) is gone as of NKI 0.3: the environment variable "
            "NEURON_PLATFORM_TARGET_OVERRIDE names the chip"
        )
    return Kernel(fn, **{name: value for name, value in options.items() if name != "lnc"})


class simulate(Kernel):
    """`nki.simulate(kernel)[lnc](*args)`: runs a kernel in the simulator; a plain function will do."""

    def __init__(self, kernel: Callable[..., Any], lnc: int | None = None, **options: Any) -> None:
        function = kernel.func if isinstance(kernel, Kernel) else kernel
        if not callable(function):
            raise NkiError(f"nki.simulate takes a kernel, but got {kernel!r}")
        super().__init__(function, lnc or getattr(kernel, "lnc", 1), **options)


def lnc_size(lnc: Any) -> int:
    if isinstance(lnc, tuple) and len(lnc) == 1:
        lnc = lnc[0]
    if isinstance(lnc, bool) or not isinstance(lnc, int) or lnc not in LNC_SIZES:
        raise NkiError(f"kernel[{lnc!r}]: a logical NeuronCore has 1 or 2 cores, so kernel[1] or kernel[2]")
    return lnc


def run_kernel(
    function: Callable[..., Any],
    lnc: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    chip: Chip | None = None,
    is_strict: bool | None = None,
) -> Any:
    """Runs a kernel on arrays or tensors of the host; what it returns is of the same kind.

    Where PyTorch passes fake or meta tensors the kernel is traced, and the results are such tensors too.

    Raises:
        NkiError: the kernel breaks a rule. Arguments that it wrote to before keep what was written.
    """
    run = new_run(function, lnc, chip or current_chip(), is_strict=is_strict)
    arguments = Arguments(run)
    try:
        bound_args, bound_kwargs = bound_arguments(function, args, kwargs, arguments)
    except NoDataError:
        from .tracing import trace

        return trace(function, *args, lnc=lnc, chip=run.chip, **kwargs).empty_outputs()
    try:
        returned = execute(run, function, bound_args, bound_kwargs)
        with running(run.cores[0]), blaming(function):
            arguments.write_back()
            result = arguments.unwrap(returned)
    finally:
        run.release()
    run.seconds = time.perf_counter() - run.started
    for reports in tuple(_collectors):
        reports.append(PerformanceReport(run))
    return result


def new_run(function: Callable[..., Any], lnc: int, chip: Chip, **options: Any) -> Run:
    """
    Raises:
        NkiError: this is no function that can run on `lnc` cores of `chip`.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        kind = "generator" if inspect.isgeneratorfunction(function) else "coroutine"
        raise NkiError(f"kernel {name} is a {kind} function: a kernel runs to its end and returns its results")
    if lnc > 1 and chip.generation < 3:
        raise NkiError(
            f"kernel[{lnc}] of {name}: {chip.name} pairs no cores, NeuronCore-v3 and later do; use kernel[1]"
        )
    run = Run(name, chip, lnc, **options)
    run.definition = _definition(function)
    return run


def bound_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call as the kernel sees them.

    Raises:
        NkiError: they do not fit the kernel's signature, or are none that a kernel can take.
    """
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise NkiError(f"kernel {function.__qualname__}{signature}: {error}") from None
    for name, value in bound.arguments.items():
        bound.arguments[name] = arguments.wrap(value, f"argument {name}")
    return bound.args, bound.kwargs


@contextmanager
def blaming(function: Callable[..., Any]) -> Iterator[None]:
    """Errors from inside name the kernel's first line: they are about all of it, and none of its lines runs."""
    try:
        yield
    except NkiError as error:
        definition = _definition(function)
        if definition is not None:
            error.place(*definition)
        raise


def _definition(function: Callable[..., Any]) -> tuple[str, int] | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def execute(run: Run, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel's own return value; with two cores that of the first.

    Raises:
        NkiError: the kernel breaks a rule, or needs more memory than its cores have.
    """
    if run.lnc == 1:
        with running(run.cores[0]):
            returned = function(*args, **kwargs)
    else:
        from .lnc import execute_together

        returned = execute_together(run, function, args, kwargs)
    for core in run.cores:
        check_capacity(core)
    return returned


@contextmanager
def simulation() -> Iterator[list[PerformanceReport]]:
    """Every kernel that ends inside, in whatever thread, leaves its `PerformanceReport` in the list, in that order."""
    reports: list[PerformanceReport] = []
    _collectors.append(reports)
    try:
        yield reports
    finally:
        # By identity: equal lists of nested blocks are not the same.
        _collectors[:] = [other for other in _collectors if other is not reports]
