"""Compiled calls at exact shapes: for modules whose axes cannot be padded without changing the result.

One graph for each (method, shapes, constants). A call takes tensors from any device, runs where the module is, and
answers where it was asked from.
"""

import contextlib
import dis
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.utils import BaseOutput

from .. import runtime
from ..buckets.flat import Form, NotFlatError, flatten, rebuild
from ..buckets.graphs import Graphs
from ..buckets.modes import autocast_dtype, outside_inference_mode
from ..buckets.notes import counting
from ..buckets.shell import borrowed, shell_of
from ..config import DEVICE_STRICT_KINDS, NeuronConfig
from ..report import Ledger


def moved(value: Any, device: torch.device) -> Any:
    """`value` (tensors, containers, model outputs, latent distributions) with its tensors on `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, DiagonalGaussianDistribution):
        return DiagonalGaussianDistribution(value.parameters.to(device), value.deterministic)
    if isinstance(value, (dict, BaseOutput)):
        return type(value)(**{name: moved(part, device) for name, part in value.items()})
    if type(value) in (list, tuple):
        return type(value)(moved(part, device) for part in value)
    return value


# ---- compiled calls -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallSpec:
    """What is static about a call: the method's name and the form of its arguments."""

    method: str
    arguments: Form


def run(module: torch.nn.Module, spec: CallSpec, *tensors: torch.Tensor) -> Any:
    """The compiled function: `method` of `module` on arguments made from flat tensors."""
    return getattr(type(module), spec.method)(module, **rebuild(spec.arguments, tensors))


class ExactCalls:
    """Runs methods of one module as compiled functions at exact shapes.

    `reason` is what the report says about exact shapes. `normalise` may change a call's arguments (by name) first.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        config: NeuronConfig,
        ledger: Ledger,
        *,
        reason: str,
        normalise: Callable[[torch.nn.Module, dict[str, Any]], dict[str, Any]],
    ) -> None:
        self.module, self.config, self.ledger = module, config, ledger
        self.reason, self.normalise = reason, normalise
        self.graphs = Graphs(ledger, config)
        self.shell = shell_of(module)
        self._device_kinds = tuple(kind for kind in config.strict if kind in DEVICE_STRICT_KINDS)
        self._uncompilable: dict[tuple, str] = {}

    def replacement(self, method: str) -> Callable:
        """A function for the module's own attribute `method`: name, documentation and signature stay."""
        stock = getattr(self.module, method)
        parameters = inspect.signature(stock)
        ignored = {"generator"} if _ignores(stock, "generator") else set()

        @wraps(stock)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            if not self.is_active():
                return stock(*args, **kwargs)
            arguments = _by_name(parameters, args, kwargs)
            return self._call(method, stock, {name: arguments[name] for name in arguments if name not in ignored})

        return compiled

    def is_active(self) -> bool:
        """Whether calls are compiled: in eval mode, on a neuron device, outside the user's own tracing."""
        is_traced = torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing()
        return not (self.module.training or is_traced) and device_of(self.module).type == runtime.DEVICE_TYPE

    def _call(self, method: str, stock: Callable, arguments: dict[str, Any]) -> Any:
        device = device_of(self.module)
        arguments = self.normalise(self.module, arguments)
        tensors: list[torch.Tensor] = []
        try:
            spec = CallSpec(method, flatten(arguments, tensors))
        except NotFlatError as error:
            return self._run_stock(method, stock, arguments, str(error))
        home = tensors[0].device if tensors else device
        with self._strict_device(), outside_inference_mode():
            key = self._key(spec, tensors, device)
            if key in self._uncompilable:
                return self._run_stock(method, stock, arguments, self._uncompilable[key])
            try:
                output = self._run(spec, key, [_plain(tensor.to(device)) for tensor in tensors])
            except torch._dynamo.exc.Unsupported as error:
                self._uncompilable[key] = f"it does not compile as one graph ({str(error).splitlines()[0]})"
                return self._run_stock(method, stock, arguments, self._uncompilable[key])
            return moved(output, home)

    def _run(self, spec: CallSpec, key: tuple, tensors: list[torch.Tensor]) -> Any:
        if not self.graphs.has(spec.method, key):
            self._state_exact_shapes(spec.method)
        with borrowed(self.shell, self.module) as shell:
            output = self.graphs.call(spec.method, key, run, shell, spec, *tensors)
        positions = tensors[0].numel() if tensors else 1
        self.ledger.used(spec.method, _bucket(tensors), positions, positions)
        return output

    def _run_stock(self, method: str, stock: Callable, arguments: dict[str, Any], reason: str) -> Any:
        self.ledger.depart("stock_path", method, reason)
        device = device_of(self.module)
        home = next((value.device for value in arguments.values() if isinstance(value, torch.Tensor)), device)
        with counting(self.ledger.attention):
            return moved(stock(**moved(arguments, device)), home)

    def _key(self, spec: CallSpec, tensors: list[torch.Tensor], device: torch.device) -> tuple:
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        return spec, shapes, self.module.dtype, device.index, torch.is_grad_enabled(), autocast_dtype(device)

    def _state_exact_shapes(self, method: str) -> None:
        # A fact of the model and no event: reported without a warning, an error only where the user asked for it.
        self.ledger.depart("exact_shapes", method, self.reason, warn=False)

    def _strict_device(self) -> contextlib.AbstractContextManager:
        return runtime.strict_device(*self._device_kinds) if self._device_kinds else contextlib.nullcontext()


def device_of(module: torch.nn.Module) -> torch.device:
    """The device of the module's first tensor."""
    tensors = (tensor for group in (module.parameters(), module.buffers()) for tensor in group)
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _by_name(parameters: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(parameters.bind(*args, **kwargs).arguments)
    for parameter in parameters.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(parameter.name, {}))
    return arguments


def _ignores(function: Callable, name: str) -> bool:
    """Whether `function` takes `name` and never reads it, as autoencoders do with `generator`."""
    if name not in inspect.signature(function).parameters:
        return False
    code = inspect.unwrap(function).__code__
    loads = (i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_FAST"))
    is_read = any(name in names if isinstance(names, tuple) else name == names for names in loads)
    return not is_read and name not in code.co_cellvars


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.is_inference() else tensor


# Names of the axes of a call's first tensor, by rank; None is left out.
_AXES: dict[int, tuple[str | None, ...]] = {
    3: ("batch", "sequence", None),
    4: ("batch", None, "height", "width"),
    5: ("batch", None, "frames", "height", "width"),
}


def _bucket(tensors: list[torch.Tensor]) -> dict[str, int]:
    """The sizes that name a call in the report: those of its first tensor, and the length of a text beside it."""
    if not tensors:
        return {}
    first, *rest = tensors
    names = _AXES.get(first.dim(), tuple(f"axis{i}" for i in range(first.dim())))
    bucket = {name: size for name, size in zip(names, first.shape, strict=True) if name is not None}
    text = next((tensor for tensor in rest if tensor.dim() == 3), None)
    return bucket if text is None else {**bucket, "encoder_sequence": text.shape[1]}
