"""`nki_op` and `wrap_nki`: how PyTorch code calls NKI kernels."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


def nki_op(
    name: str, fn: Callable[..., Any] | None = None, *, mutates_args: str | Iterable[str] = ()
) -> Callable[..., Any]:
    """Makes a custom operator of a typed Python function that launches an NKI kernel.

    The function is both the implementation and the fake implementation, so it must be traceable; for training, call
    `.register_autograd` of the result. Usable as a decorator: `@nki_op("namespace::name", mutates_args={"out"})`.

    Args:
        name: "namespace::name".
        fn: the function; None returns a decorator.
        mutates_args: the names of the arguments that the kernel writes to.

    Raises:
        ValueError: `name` has no namespace.
    """
    if "::" not in name:
        raise ValueError(f"nki_op() takes a name with its namespace, e.g. 'mylib::{name}', but got {name!r}.")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        operator = torch.library.custom_op(name, function, mutates_args=mutates_args)
        operator.register_fake(function)
        return operator

    return register if fn is None else register(fn)


def wrap_nki(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A raw NKI kernel, or the function that `nki.jit` would make one of, to be called as `wrap_nki(kernel)[2](...)`.

    Here kernels take neuron tensors as they are, and are one node of a compiled graph.

    Raises:
        TypeError: this is no kernel.
    """
    from optimum_neuron_torch.emulator.nki.kernel import Kernel, jit

    if isinstance(kernel, Kernel):
        return kernel
    if not callable(kernel):
        raise TypeError(f"wrap_nki() takes an NKI kernel, but got {kernel!r}.")
    return jit(kernel)
