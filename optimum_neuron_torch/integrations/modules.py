"""Attaching the bucketed forward to one module, and taking it off again.

Only attributes of the one object change: its class, its state_dict and the signature of its forward stay as they are.
While it trains, is traced by the user's own torch.compile, or lives on another device, the object behaves as if
nothing had been attached.
"""

import contextlib
import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import torch
import torch.utils._pytree as pytree

from .. import runtime
from ..buckets.graphs import Graphs
from ..buckets.inputs import TOKENS
from ..buckets.module import BucketedModule, ExactShapesError, NoGraphError
from ..buckets.notes import counting
from ..buckets.probing import POSITIONAL
from ..buckets.shell import shell_of
from ..config import DEVICE_STRICT_KINDS, Buckets, NeuronConfig
from ..nki.modes import check_simulator
from ..report import Ledger
from .attention import NAME, asks_for_sdpa, ignores_attention_name
from .attention_check import AttentionCheck
from .checkpointing import simulating_again
from .hooks import put_hooks, remove_hooks, saving
from .kernel_layers import KernelLayers, layers_by_kernels
from .moving import moved
from .noticing import unwatch


PREPARED = "_neuron_prepared"


@dataclass
class Prepared:
    """What prepare() keeps on a module: its configuration, ledger, bucketed forward and (for text decoders) bucketed
    generation, and what its attention was before.
    """

    config: NeuronConfig
    ledger: Ledger
    module: BucketedModule
    generation: "LazyGeneration | None"
    attention: AttentionCheck
    attention_lock: Any = field(default_factory=threading.RLock)
    # Arguments of a call at (batch, sequence), for a module that does not take tokens by the usual names.
    sample: Callable[[int, int], dict[str, Any]] | None = None
    # Where kernels run: the layers that run them.
    layers: KernelLayers | None = None


class LazyGeneration:
    """Bucketed generation, made and checked when it is first needed; `reason` says why there is none."""

    def __init__(self, model: torch.nn.Module, config: NeuronConfig, ledger: Ledger, graphs: Graphs) -> None:
        self._model, self._config, self._ledger, self._graphs = model, config, ledger, graphs
        self._bucketed: Any = None
        self._lock = threading.Lock()
        self._is_settled = False
        self.reason: str | None = None

    def get(self) -> Any | None:
        """The BucketedGeneration, or None where the model takes the stock path (reported). Raises ValueError under
        verify="raise".
        """
        with self._lock:
            if not self._is_settled:
                self._settle()
                self._is_settled = True
            if self._bucketed is not None and self._bucketed.untraceable is not None:
                self.reason, self._bucketed = self._bucketed.untraceable, None
        if self._bucketed is None:
            self._ledger.depart("stock_path", "generate()", self.reason)
        return self._bucketed

    def _settle(self) -> None:
        from ..generation.check import check
        from ..generation.encoder_decoder import bucketed_generation
        from ..generation.errors import NotBucketableError

        try:
            bucketed = bucketed_generation(self._model, self._config, self._ledger, self._graphs)
        except NotBucketableError as error:
            self.reason = str(error)
            return
        if self._config.verify is not False:
            prepared = prepared_of(self._model)
            self.reason = check(
                bucketed,
                plain_attention=None if prepared is None else prepared.attention.previous,
                trace=self._config.verify == "raise",
            )
            if self.reason is not None and self._config.verify == "raise":
                raise ValueError(
                    f"{type(self._model).__name__}: {self.reason}; verify='warn' takes the stock path instead"
                )
        if self.reason is None:
            self._bucketed = bucketed


def _generation_of(prepared: Prepared) -> Any | None:
    prepared.attention.settle()
    return prepared.generation.get()


def prepared_of(module: Any) -> Prepared | None:
    return getattr(module, "__dict__", {}).get(PREPARED)


def attach(
    module: torch.nn.Module,
    config: NeuronConfig,
    *,
    function: str | None = None,
    further: dict[str, Callable] | None = None,
    again: Callable | None = None,
) -> torch.nn.Module:
    """Give `module` its bucketed forward and generation; returns the same object.

    `function` names the forward's graphs; `further` are methods of the module to be replaced beside it, by name;
    `again` attaches to a copy of the module (None: this function).
    """
    check_axes(module, config.buckets)
    if config.nki == "simulate":
        check_simulator()
    unwatch(module)
    ledger = Ledger(type(module).__name__, config.strict)
    graphs = Graphs(ledger, config)
    layers = layers_by_kernels(module, config, ledger)
    previous = _set_attention(module, config, ledger)
    can_generate = callable(getattr(module, "can_generate", None)) and module.can_generate()
    prepared = Prepared(
        config,
        ledger,
        BucketedModule(module, config, ledger, graphs, function=function),
        LazyGeneration(module, config, ledger, graphs) if can_generate else None,
        AttentionCheck(module, previous, config, ledger),
        layers=layers,
    )
    hooks: dict[str, Callable] = {
        "forward": _forward_hook(module, prepared),
        "__deepcopy__": _deepcopy_hook(module, prepared, again or attach),
        **(further or {}),
    }
    if hasattr(module, "save_pretrained"):
        hooks["save_pretrained"] = saving(module, config)
    if can_generate:
        from .generation import generation_hooks

        hooks |= generation_hooks(
            module,
            lambda: _generation_of(prepared) if is_active(module) else None,
            lambda **arguments: _encode(module, prepared, arguments),
        )
    put_hooks(module, hooks, ledger, **{PREPARED: prepared})
    prepared.module.shell = shell_of(module)
    return module


def detach(module: torch.nn.Module) -> torch.nn.Module:
    """Take off what `attach` put on; returns the same object."""
    prepared = prepared_of(module)
    if prepared is None:
        return module
    remove_hooks(module)
    if prepared.layers is not None:
        prepared.layers.take_back()
    if prepared.attention.previous is not None:
        module.set_attn_implementation(prepared.attention.previous)
    return module


def is_active(module: torch.nn.Module) -> bool:
    """Whether calls take the bucketed path: in eval mode, on a neuron device, outside the user's own tracing."""
    # Not torch.compiler.is_compiling(): that is true for all threads while one of them compiles.
    if module.training or torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing():
        return False
    parameter = next(module.parameters(), None)
    return parameter is not None and runtime.is_neuron(parameter)


def check_axes(module: torch.nn.Module, buckets: Buckets) -> None:
    """Raises ValueError for axes that a text model cannot have, and for `dims` that name no input of the module."""
    name = type(module).__name__
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    placed = {axis for dims in buckets.dims.values() for axis in dims.values()}
    unknown = sorted(set(buckets.other_axes) - placed)
    if unknown and getattr(module, "main_input_name", next(iter(names), None)) in TOKENS:
        raise ValueError(
            f"unknown bucket axes {unknown} for {name}: its inputs have the axes {list(Buckets.AXES)}; where it has "
            f"others, name their dimensions: Buckets(..., dims={{'<input>': {{1: {unknown[0]!r}}}}})"
        )
    # Inputs inside containers are named by their own keys, which a signature does not show.
    if all(map(_is_tensor, parameters)) and (strange := sorted(buckets.dims.keys() - set(names))):
        raise ValueError(f"dims of {strange}: {name} takes the inputs {names}")


def _is_tensor(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (torch.Tensor, torch.LongTensor, torch.FloatTensor)


def _set_attention(module: torch.nn.Module, config: NeuronConfig, ledger: Ledger) -> str | None:
    """Switch the attention implementation; returns the previous one, or None where nothing was changed."""
    wanted = config.attn_implementation
    current = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if wanted is None or current is None or wanted == current or not hasattr(module, "set_attn_implementation"):
        return None
    if ignores_attention_name(module):
        ledger.depart(
            "attention",
            type(module).__name__,
            f"its code does not ask for an attention implementation: {wanted!r} has no effect",
        )
        return None
    method = asks_for_sdpa(module) if wanted == NAME else None
    if method is not None:
        ledger.depart(
            "attention",
            type(module).__name__,
            f"{method} does more for 'sdpa' than for attentions it does not know: {current!r} is kept",
        )
        return None
    module.set_attn_implementation(wanted)
    return current


# ---- the hooks ------------------------------------------------------------------------------------------------------


def _forward_hook(module: torch.nn.Module, prepared: Prepared) -> Callable:
    stock = module.forward
    signature = inspect.signature(stock)
    device_kinds = tuple(kind for kind in prepared.config.strict if kind in DEVICE_STRICT_KINDS)
    named, required = _names(signature)
    simulates = prepared.config.nki == "simulate"

    @wraps(stock)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not simulates:
            return run(*args, **kwargs)
        with runtime.simulating():
            if not module.training or torch.compiler.is_dynamo_compiling():
                return run(*args, **kwargs)
            with simulating_again(module):
                return run(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        if not is_active(module):
            if torch.compiler.is_dynamo_compiling():
                return stock(*args, **kwargs)
            with counting(prepared.ledger.attention):
                return stock(*args, **kwargs)
        by_name = not args and required <= kwargs.keys() <= named
        arguments = dict(kwargs) if by_name else _bound(signature, args, kwargs)
        if arguments is None or _has_fakes(arguments):
            return stock(*args, **kwargs)
        prepared.attention.settle()
        with (
            runtime.strict_device(*device_kinds) if device_kinds else contextlib.nullcontext(),
            _with_weights(module, prepared, arguments),
        ):
            return _bucketed_forward(module, prepared, stock, arguments)

    return forward


@contextlib.contextmanager
def _with_weights(module: torch.nn.Module, prepared: Prepared, arguments: dict[str, Any]) -> Iterator[None]:
    """The model's own attention where a call asks for attention weights, which ours does not keep."""
    wanted = arguments.get("output_attentions")
    wanted = getattr(getattr(module, "config", None), "output_attentions", False) if wanted is None else wanted
    if not wanted or prepared.attention.previous is None or module.config._attn_implementation != NAME:
        yield
        return
    with prepared.attention_lock:
        current, previous = module.config._attn_implementation, prepared.attention.previous
        reason = f"attention weights were asked for, which {current!r} does not keep: {previous!r} attends"
        if previous != "eager":
            reason += "; set_attn_implementation('eager') gives them"
        prepared.ledger.depart("attention", "forward()", reason)
        module.set_attn_implementation(previous)
        try:
            yield
        finally:
            module.set_attn_implementation(current)


def _names(signature: inspect.Signature) -> tuple[frozenset[str], frozenset[str]]:
    """The parameters that can be given by name, and those that must be; none where some can only be given by place."""
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters):
        return frozenset(), frozenset()
    named = [
        parameter
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    required = frozenset(parameter.name for parameter in named if parameter.default is parameter.empty)
    return frozenset(parameter.name for parameter in named), required


def _bound(signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments by name, or None for a call that does not fit the signature (forward itself will say so)."""
    if "past_key_values" in kwargs:  # the older name of `cache`
        kwargs = {**{k: v for k, v in kwargs.items() if k != "past_key_values"}, "cache": kwargs["past_key_values"]}
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    flat = dict(bound)
    kinds = {parameter.kind: name for name, parameter in signature.parameters.items()}
    rest = kinds.get(inspect.Parameter.VAR_POSITIONAL)
    if flat.get(rest) or inspect.Parameter.POSITIONAL_ONLY in kinds:
        by_position = [
            flat.pop(name)
            for name, parameter in signature.parameters.items()
            if name in flat and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        flat = {POSITIONAL: (*by_position, *flat.pop(rest, ())), **flat}
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(flat.pop(name, {}))
    return flat


def _has_fakes(arguments: dict[str, Any]) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return any(isinstance(value, FakeTensor) for value in pytree.tree_leaves(arguments))


def _bucketed_forward(module: torch.nn.Module, prepared: Prepared, stock: Callable, arguments: dict[str, Any]) -> Any:
    cache = arguments.get("cache")
    if prepared.generation is not None and (cache is not None or _wants_cache(module, arguments)):
        answer = _cached_forward(module, prepared, stock, arguments, cache)
        return _call_stock(module, prepared, stock, arguments) if answer is None else answer
    return _uncached_forward(module, prepared, stock, arguments)


def _uncached_forward(module: torch.nn.Module, prepared: Prepared, stock: Callable, arguments: dict[str, Any]) -> Any:
    try:
        try:
            return prepared.module.forward(arguments)
        except ExactShapesError as error:
            prepared.ledger.depart("exact_shapes", "forward()", str(error))
        return _exact_forward(module, prepared, stock, arguments)
    except NoGraphError as error:
        prepared.ledger.depart("stock_path", "forward()", str(error))
    return _call_stock(module, prepared, stock, arguments)


def _encode(module: torch.nn.Module, prepared: Prepared, arguments: dict[str, Any]) -> Any:
    """A call of an encoder-decoder's encoder by generate(), whose outputs stay on the host."""
    from ..generation.encoder_decoder import on_host_throughout

    encoder, bucketed = module.get_encoder(), prepared.generation.get()
    own = replace(prepared, module=bucketed.encoder, generation=None)
    arguments = bucketed.encoder_arguments(arguments)
    return on_host_throughout(_uncached_forward(encoder, own, encoder.forward, arguments))


def _of_encoder(module: torch.nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of a model's arguments that its encoder takes."""
    taken = inspect.signature(type(module.get_encoder()).forward).parameters
    return {name: value for name, value in arguments.items() if name in taken and name != "use_cache"}


def _exact_forward(module: torch.nn.Module, prepared: Prepared, stock: Callable, arguments: dict[str, Any]) -> Any:
    """A call that has no bucket rule: compiled at its own shapes, or eagerly where it cannot be compiled."""
    returns_more = arguments.get("use_cache") is True
    runs_eagerly = returns_more or torch.is_grad_enabled() or prepared.config.compile is False
    if not runs_eagerly:
        try:
            return prepared.module.exact(arguments)
        except ExactShapesError as error:
            prepared.ledger.depart("stock_path", "forward()", str(error))
    return _call_stock(module, prepared, stock, arguments)


def _call_stock(module: torch.nn.Module, prepared: Prepared, stock: Callable, arguments: dict[str, Any]) -> Any:
    """The module's own forward, with host tensors moved to its device: bucketed calls take them from either."""
    device = next(module.parameters()).device
    moved = {
        name: pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)
        for name, value in arguments.items()
    }
    with counting(prepared.ledger.attention):
        return stock(*moved.pop(POSITIONAL, ()), **moved)


def _wants_cache(module: torch.nn.Module, arguments: dict[str, Any]) -> bool:
    """Whether a direct call of a text decoder would return a cache."""
    use_cache = arguments.get("use_cache")
    use_cache = getattr(module.config, "use_cache", False) if use_cache is None else use_cache
    # A decoder beside an encoder that is given no tokens makes up its own.
    names = ("decoder_input_ids",) if module.config.is_encoder_decoder else ("input_ids", "inputs_embeds")
    has_prompt = any(arguments.get(name) is not None for name in names)
    return bool(use_cache) and has_prompt and arguments.get("labels") is None


# Arguments that decide what a cache holds, and those that only decide what else a call returns.
PROMPT = frozenset({"input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids"})
OUTPUTS = frozenset(
    {
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "logits_to_keep",
        "use_cache",
        "return_dict",
    }
)


def _cached_forward(
    module: torch.nn.Module, prepared: Prepared, stock: Callable, arguments: dict[str, Any], cache: Any
) -> Any | None:
    """A call with a cache of ours, or one that starts one; None for what the stock path has to serve."""
    from ..generation.cache import BucketCache
    from ..generation.errors import NotBucketableError

    bucketed = _owner_of(cache, module) if isinstance(cache, BucketCache) else prepared.generation.get()
    if bucketed is None:
        return None
    if cache is not None and not isinstance(cache, BucketCache):
        prepared.ledger.depart("stock_path", "forward()", f"the caller brought a {type(cache).__name__}")
        return None
    is_tuple = arguments.get("return_dict", getattr(module.config, "return_dict", True)) is False
    if module.config.is_encoder_decoder:
        if cache is None:
            return _forward_then_cache(module, prepared, stock, arguments, bucketed, is_tuple)
        if arguments.get("encoder_outputs") is None:
            arguments = {**arguments, "encoder_outputs": _encode(module, prepared, _of_encoder(module, arguments))}
    returns_more = arguments.get("output_router_logits", getattr(module.config, "output_router_logits", False))
    if cache is None and (torch.is_grad_enabled() or returns_more) and arguments.keys() <= PROMPT | OUTPUTS:
        return _forward_then_cache(module, prepared, stock, arguments, bucketed, is_tuple)
    try:
        given = bucketed.main_input(arguments)
        output = bucketed.forward(cache if cache is not None else BucketCache(bucketed, given.shape[1]), arguments)
    except NotBucketableError as error:
        if cache is not None:
            raise
        prepared.ledger.depart("stock_path", "forward()", str(error))
        return None
    if given.device.type != "cpu":
        for name in output:
            if name != "cache":
                output[name] = moved(output[name], given.device)
    return output.to_tuple() if is_tuple else output


def _owner_of(cache: Any, module: torch.nn.Module) -> Any:
    if cache.owner.model is not module:
        raise ValueError(
            f"this cache was filled by another prepared {type(cache.owner.model).__name__}: pass a cache of the model "
            "that reads it, or one of your own (cache=DynamicCache())"
        )
    return cache.owner


def _forward_then_cache(
    module: torch.nn.Module,
    prepared: Prepared,
    stock: Callable,
    arguments: dict[str, Any],
    bucketed: Any,
    is_tuple: bool,
) -> Any:
    """A call with gradients, or with outputs that a cached step does not have: the plain forward, and a cache that is
    filled when a later call uses it.
    """
    from ..generation.cache import BucketCache

    plain = {**arguments, "use_cache": False, "return_dict": True}
    output = _uncached_forward(module, prepared, stock, plain)
    batch, length = bucketed.main_input(arguments).shape[:2]
    cache = BucketCache(bucketed, length)
    cache.length, cache.rows_in_batch = length, batch
    cache.prompt = {name: value for name, value in arguments.items() if name.removeprefix(bucketed.prefix) in PROMPT}
    if bucketed.prefix:
        cache.prompt["encoder_outputs"] = (output["encoder_last_hidden_state"],)
    else:
        cache.prompt["logits_to_keep"] = 1
    output = type(output)(**{**output, "cache": cache})
    return output.to_tuple() if is_tuple else output


def _deepcopy_hook(module: torch.nn.Module, prepared: Prepared, again: Callable) -> Callable:
    def deepcopy(memo: dict) -> torch.nn.Module:
        twin = copy.deepcopy(shell_of(module), memo)
        memo[id(module)] = twin
        attached = again(twin, prepared.config)
        prepared_of(attached).attention.previous = prepared.attention.previous
        return attached

    return deepcopy
