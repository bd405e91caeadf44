"""Loops: over plain numbers, which unroll, and over registers, which the chip counts while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..core import current, warn_once
from ..errors import NkiError
from ..registers import VirtualRegister, is_register


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`, for kernels of older versions."""
    return _numbers("affine_range", start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`, for kernels of older versions."""
    return _numbers("sequential_range", start, stop, step)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`, for kernels of older versions."""
    return _numbers("static_range", start, stop, step)


def _numbers(call: str, start: Any, stop: Any, step: Any) -> range:
    bounds = (0, start, step) if stop is None else (start, stop, step)
    if any(is_register(bound) for bound in bounds):
        raise NkiError("its bounds are numbers; nl.fori_loop takes registers", op=f"nl.{call}")
    try:
        return range(*bounds)
    except TypeError:
        raise NkiError(f"its bounds are integers, but got {bounds}", op=f"nl.{call}") from None


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """The loop over registers of NKI before 0.7, which `fori_loop` replaces: it still runs, with a warning."""
    warn_once(
        "nl.dynamic_range is gone as of NKI 0.7: write nl.fori_loop(lower, upper, body), with the body as a function"
    )
    lower, upper = (0, start) if stop is None else (start, stop)
    return _turns("nl.dynamic_range", lower, upper, step)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """Calls `body_fun(i)` for i = lower, lower + step, ... below upper; the bounds are integers or registers.

    `i` is a register, and writing to it does not change the loop. In trace mode the body runs once where a bound is
    not known.
    """
    if not callable(body_fun):
        raise NkiError(f"body_fun is a function of the register, but got {body_fun!r}", op="nl.fori_loop")
    for register in _turns("nl.fori_loop", lower, upper, step):
        body_fun(register)


def _turns(call: str, lower: Any, upper: Any, step: Any) -> Iterator[VirtualRegister]:
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise NkiError(f"the step is a positive integer known in advance, but got {step!r}", op=call)
    with _loop_on_chip(call):
        if _is_unknown(lower) or _is_unknown(upper):
            yield VirtualRegister.unknown()
            return
        for number in range(_number(call, lower), _number(call, upper), step):
            current().run.count_step()
            yield VirtualRegister(number)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """Calls `body_fun(register)` while the register is not zero, each time with the one that it returned.

    In trace mode the body runs once where the register is not known.
    """
    call = "nl.while_loop"
    if not is_register(init):
        raise NkiError(f"init is a register, but got {init!r}: nisa.register_alloc makes one", op=call)
    with _loop_on_chip(call):
        condition = init
        while _is_unknown(condition) or condition.number() != 0:
            current().run.count_step()
            is_last = _is_unknown(condition)
            # By value: what the body does to its register shows only in what it returns.
            passed = VirtualRegister.unknown() if is_last else VirtualRegister(condition.number())
            condition = body_fun(passed)
            if not is_register(condition):
                raise NkiError(f"the body returns the next condition, a register, but returned {condition!r}", op=call)
            if is_last:
                return


def _is_unknown(bound: Any) -> bool:
    return is_register(bound) and bound.is_unknown


def _number(call: str, bound: Any) -> int:
    if is_register(bound):
        return bound.number()
    try:
        return bound.__index__()
    except AttributeError:
        raise NkiError(f"bounds are integers or registers, but got {bound!r}", op=call) from None


@contextmanager
def _loop_on_chip(call: str) -> Iterator[None]:
    core = current()
    if core.ordered_depth:
        raise NkiError("loops on registers do not go inside nl.no_reorder: unroll it with range", op=call)
    core.loop_depth += 1
    try:
        yield
    finally:
        core.loop_depth -= 1


@contextmanager
def no_reorder() -> Iterator[None]:
    """`with nl.no_reorder():` keeps the order of the instructions inside, which the simulator always does."""
    core = current()
    core.ordered_depth += 1
    try:
        yield
    finally:
        core.ordered_depth -= 1
