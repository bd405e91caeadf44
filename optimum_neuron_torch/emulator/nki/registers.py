"""Registers of an engine: numbers that the chip knows only while it runs."""

import numbers
import operator
from typing import Any

from .errors import NkiError
from .objects import NKIObject


class VirtualRegister(NKIObject):
    """A register. Its number is `value`; None before anything was loaded, and always in trace mode.

    Arithmetic gives a new register. Python control flow on a register (`while register:`) is gone since NKI 0.7, where
    `nl.fori_loop` and `nl.while_loop` loop on registers: here it still runs, with a warning, for older kernels.
    """

    __slots__ = ("value", "is_unknown")

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        self.value, self.is_unknown = state, False

    @classmethod
    def unknown(cls) -> "VirtualRegister":
        """A register of trace mode, which stands for any number."""
        register = cls(0)
        register.is_unknown = True
        return register

    def number(self) -> int:
        """The number in it.

        Raises:
            NkiError: nothing was loaded.
        """
        if self.value is None:
            raise NkiError("this register was never loaded: use nisa.register_load or nisa.register_move first")
        return self.value

    def _combine(self, other: Any, operation: Any) -> "VirtualRegister":
        is_unknown = self.is_unknown or getattr(other, "is_unknown", False)
        result = VirtualRegister(operation(self.number(), other.number() if is_register(other) else int(other)))
        result.is_unknown = is_unknown
        return result

    def __add__(self, other: Any) -> "VirtualRegister":
        return self._combine(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> "VirtualRegister":
        return self._combine(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> "VirtualRegister":
        return self._combine(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> "VirtualRegister":
        return self._combine(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> "VirtualRegister":
        return self._combine(other, lambda a, b: a // b)

    def __mod__(self, other: Any) -> "VirtualRegister":
        return self._combine(other, lambda a, b: a % b)

    def __bool__(self) -> bool:
        self._refuse_if_unknown("if or while")
        from .core import current

        current().run.count_step()  # `while register:` may never end
        return bool(self.number())

    def __index__(self) -> int:
        self._refuse_if_unknown("int(), range() or as an index")
        return self.number()

    __int__ = __index__

    def _compare(self, other: Any, operation: Any) -> Any:
        if not (is_register(other) or isinstance(other, numbers.Real)):
            return NotImplemented
        self._refuse_if_unknown("comparisons")
        if is_register(other):
            other._refuse_if_unknown("comparisons")
        return operation(self.number(), other.number() if is_register(other) else other)

    # Without these, `register == 2` would be False whatever is in it: Python compares identities.
    def __eq__(self, other: Any) -> Any:
        return True if other is self else self._compare(other, operator.eq)

    def __ne__(self, other: Any) -> Any:
        return False if other is self else self._compare(other, operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, operator.ge)

    __hash__ = object.__hash__

    def _refuse_if_unknown(self, where: str) -> None:
        from .core import warn_once

        advice = (
            "use nl.fori_loop for counted loops, nl.while_loop for those that end on data, and nl.ds(register, size) "
            "to index"
        )
        if self.is_unknown:
            raise NkiTypeError(
                f"a register's value is known only while the kernel runs: it cannot be used in Python's {where}; "
                f"{advice}"
            )
        warn_once(f"a register in Python's {where} does not compile any more as of NKI 0.7: {advice}")

    def __repr__(self) -> str:
        return f"VirtualRegister({'?' if self.is_unknown else self.value})"


class NkiTypeError(NkiError, TypeError):
    """Python asked for the value of a register."""


def is_register(value: Any) -> bool:
    return isinstance(value, VirtualRegister)
