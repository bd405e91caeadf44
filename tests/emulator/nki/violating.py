"""Tests whose body is a kernel that breaks a rule: `@refused(...)` runs it, checks what the error says, and where."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from optimum_neuron_torch.emulator.nki import install
from optimum_neuron_torch.emulator.nki.chips import current_chip
from optimum_neuron_torch.emulator.nki.errors import NkiError
from optimum_neuron_torch.emulator.nki.kernel import run_kernel


install()

MARK = "# <- here"


def refused(
    *words: str,
    op: str | None = None,
    target: str = "trn2",
    lnc: int = 1,
    is_strict: bool | None = None,
    given: Callable[[], tuple[Any, ...]] = tuple,
    raises: type[BaseException] = NkiError,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """The kernel below, called with `given()`, raises an error with all of `words`.

    Where `op` is named, the error names it too, as "nisa.<op>". The error's line is the one that ends in `# <- here`;
    a kernel without that mark breaks a rule of calls, which have no line of the kernel.
    """

    def make_test(kernel: Callable[..., Any]) -> Callable[..., None]:
        def test(monkeypatch: pytest.MonkeyPatch) -> None:
            monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
            with pytest.raises(raises) as caught:
                run_kernel(kernel, lnc, given(), {}, chip=current_chip(), is_strict=is_strict)
            error, message = caught.value, str(caught.value)
            missing = [word for word in words if word not in message]
            assert not missing, f"{missing} not in: {message}"
            assert error.op == (op and f"nisa.{op}"), message
            marked = marked_line(kernel)
            if marked is not None:
                assert error.location == f"{inspect.getsourcefile(kernel)}:{marked}", message
                assert error.location in message and error.source in message

        test.__name__, test.__doc__, test.__module__ = kernel.__name__, kernel.__doc__, kernel.__module__
        return test

    return make_test


def marked_line(kernel: Callable[..., Any]) -> int | None:
    """The number of the line of `kernel` that ends in the mark."""
    lines, first = inspect.getsourcelines(kernel)
    marked = [first + i for i, line in enumerate(lines) if line.rstrip().endswith(MARK)]
    return marked[0] if marked else None
