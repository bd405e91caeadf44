"""Puts bucketed generation under the stock generate() of one Transformers model, by attributes of that one object.

The loop reads signatures (what forward takes, what prepare_inputs_for_generation takes), so every replacement keeps
them.
"""

import contextlib
import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import wrapt
from transformers import GenerationMixin
from transformers.generation import GenerationMode

from .. import runtime
from ..buckets.undisturbed import undisturbed
from ..generation.bucketed import BucketedGeneration
from ..generation.cache import BucketCache
from ..generation.errors import NotBucketableError
from .library_code import is_library_code, is_library_value
from .modules import is_active
from .moving import first_device, moved


class _OnHost(wrapt.CallableObjectProxy):
    """The model, saying that it lives where the loop's tensors are.

    Transformers' prepare_inputs_for_generation moves what forward takes to `self.device`, at exact shapes. Under
    buckets the tensors have to stay on the host until they are padded.
    """

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


def _on_host_throughout(model: torch.nn.Module) -> _OnHost:
    """The same for a method of the model and all that it calls of `self`, but for what is replaced on the object."""
    own = {
        name: member
        for kind in reversed(type(model).__mro__)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("__") and name not in vars(model)
    }
    return type(type(model).__name__, (_OnHost,), own)(model)


def _has_own_generate(model: torch.nn.Module) -> bool:
    return type(model).generate is not GenerationMixin.generate


class _CallsEncoder:
    """Stands in for the model where generate() calls its encoder: `call` runs in the encoder's place."""

    def __init__(self, model: torch.nn.Module, call: Callable) -> None:
        self.config, self.main_input_name = model.config, model.main_input_name
        self._encoder = _Called(model.get_encoder(), call)

    def get_encoder(self) -> Any:
        return self._encoder


class _Called(wrapt.CallableObjectProxy):
    """An encoder, with its signature, that is called in buckets."""

    def __init__(self, encoder: torch.nn.Module, call: Callable) -> None:
        super().__init__(encoder)
        self._self_call = call

    def __call__(self, **arguments: Any) -> Any:
        return self._self_call(**arguments)


class _WithoutPrompt(wrapt.ObjectProxy):
    """A streamer that was given the prompt already."""

    def __init__(self, streamer: Any) -> None:
        super().__init__(streamer)
        self._self_has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._self_has_prompt:
            self.__wrapped__.put(value)
        self._self_has_prompt = True


def generation_hooks(
    model: torch.nn.Module, find_owner: Callable[[], BucketedGeneration | None], encode: Callable
) -> dict[str, Callable]:
    """Replacements for methods of `model`, by name, under which its generate() runs in buckets.

    `find_owner()` gives the bucketed generation, or None where the model has to take the stock path; `encode` calls
    the encoder of an encoder-decoder in buckets.
    """
    forced = threading.local()  # a call that found out that it has no buckets, made again by this thread
    stock_generate, stock_prepare_cache = model.generate, model._prepare_cache_for_generation
    stock_inputs, stock_optimize = model.prepare_inputs_for_generation, model._optimize_model_for_decode
    stock_encode = model._prepare_text_encoder_decoder_kwargs_for_generation
    signature = inspect.signature(stock_generate)

    def owner() -> BucketedGeneration | None:
        return None if getattr(forced, "is_stock", False) else find_owner()

    def loop(*args: Any, **kwargs: Any) -> Any:
        # A generate() of the model's own makes tensors on `self.device`, beside those of the caller.
        if not _has_own_generate(model):
            return stock_generate(*args, **kwargs)
        return type(model).generate(_on_host_throughout(model), *args, **kwargs)

    def _stock_generate(*args: Any, **kwargs: Any) -> Any:
        # An encoder takes its inputs as they are; the loop itself moves what decoders take.
        if not (model.config.is_encoder_decoder and is_active(model)):
            return stock_generate(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound = signature.bind(**_flat(moved(bound.arguments, next(model.parameters()).device), signature))
        return stock_generate(*bound.args, **bound.kwargs)

    @wraps(stock_generate)
    def generate(*args: Any, **kwargs: Any) -> Any:
        bucketed = owner()
        if bucketed is None:
            return _stock_generate(*args, **kwargs)
        random_state = torch.get_rng_state()
        try:
            return _bucketed_generate(*args, **kwargs)
        except NotBucketableError as error:
            streamer = kwargs.get("streamer")
            if error.has_begun and (bucketed.untraceable is None or streamer is not None):
                raise
            bucketed.ledger.depart("stock_path", "generate()", str(error))
        torch.set_rng_state(random_state)
        if streamer is not None:
            kwargs["streamer"] = _WithoutPrompt(streamer)
        forced.is_stock = True
        try:
            return _stock_generate(*args, **kwargs)
        finally:
            forced.is_stock = False

    def _bucketed_generate(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        device = first_device(bound.arguments)
        stretch = undisturbed(is_library_code(model) and all(map(is_library_value, bound.arguments.values())))
        if device is None:
            with stretch:
                return loop(*args, **kwargs)
        # The loop grows ids, mask and positions token by token: on the device each length would be a compilation.
        host = moved(bound.arguments, torch.device("cpu"))
        bound = signature.bind(**_flat(host, signature))
        with stretch:
            result = loop(*bound.args, **bound.kwargs)
        return moved(result, device)

    @wraps(stock_prepare_cache)
    def _prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, batch_size, max_cache_length):
        if runtime.is_compile_only():
            # Logits are zeros: where token 0 ends a text, nothing after the first token would be compiled.
            generation_config._eos_token_tensor = None
        bucketed = owner()
        given = model_kwargs.get("cache")
        if isinstance(given, BucketCache):
            given.limit = max(given.limit, max_cache_length)
        reason = _reason_for_stock_cache(bucketed, given, generation_config, generation_mode)
        if reason is None and _is_compiled_by_user(model):
            reason = "the model's forward was compiled by the caller"
        if reason is not None:
            if bucketed is not None and not isinstance(given, BucketCache):
                bucketed.ledger.depart("stock_path", "generate()", reason)
            return stock_prepare_cache(generation_config, model_kwargs, generation_mode, batch_size, max_cache_length)
        model_kwargs["cache"] = BucketCache(bucketed, max_cache_length)
        return None

    @wraps(stock_inputs)
    def prepare_inputs_for_generation(*args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("cache")
        if not isinstance(cache, BucketCache):
            return stock_inputs(*args, **kwargs)
        next_length = kwargs.get("next_sequence_length")
        if next_length is not None and next_length <= 0 and not cache.owner.has_rows:
            kwargs["next_sequence_length"] = None  # new tokens alone, with a mask of their own
        return type(model).prepare_inputs_for_generation(_OnHost(model), *args, **kwargs)

    @wraps(stock_encode)
    def _prepare_text_encoder_decoder_kwargs_for_generation(*args: Any, **kwargs: Any) -> Any:
        if owner() is None:
            return stock_encode(*args, **kwargs)
        caller = _CallsEncoder(model, encode)
        return type(model)._prepare_text_encoder_decoder_kwargs_for_generation(caller, *args, **kwargs)

    @contextlib.contextmanager
    def _optimize_model_for_decode():
        # Switching the experts' implementation between prefill and decode would make two graphs of one bucket.
        with contextlib.nullcontext() if owner() is not None else stock_optimize():
            yield

    return {
        "generate": generate,
        "_prepare_cache_for_generation": _prepare_cache_for_generation,
        "prepare_inputs_for_generation": prepare_inputs_for_generation,
        "_optimize_model_for_decode": _optimize_model_for_decode,
        "_prepare_text_encoder_decoder_kwargs_for_generation": _prepare_text_encoder_decoder_kwargs_for_generation,
    }


def deciding_on_host(stock: Callable) -> Callable:
    """An assisted decoding that compares candidates where the ids are: under buckets that is the host, while
    Transformers moves the candidates to the model's device.
    """

    @wraps(stock)
    def _assisted_decoding(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_apart = input_ids.device.type == "cpu" and runtime.is_neuron(next(self.parameters()))
        return stock(_OnHost(self) if is_apart else self, input_ids, *args, **kwargs)

    return _assisted_decoding


def _reason_for_stock_cache(
    bucketed: BucketedGeneration | None, given: Any, generation_config: Any, generation_mode: GenerationMode
) -> str | None:
    if bucketed is None:
        return "no bucketed generation for this model"
    if given is not None:
        return f"the caller brought a {type(given).__name__}"
    if generation_config.cache_implementation is not None:
        return f"cache_implementation={generation_config.cache_implementation!r} was asked for"
    if generation_config.use_cache is False:
        return "use_cache=False was asked for"
    if generation_config.compile_config is not None:
        return "a compile_config was given"
    if generation_mode is GenerationMode.ASSISTED_GENERATION and bucketed.is_recurrent:
        return "assisted decoding takes tokens back, which states in buckets do not allow"
    return None


def _is_compiled_by_user(model: torch.nn.Module) -> bool:
    """Whether calling the model runs a torch.compile of the caller's, by model.compile() or a replaced forward."""
    return model._compiled_call_impl is not None or hasattr(model.forward, "_torchdynamo_orig_callable")


def _flat(arguments: dict[str, Any], signature: inspect.Signature) -> dict[str, Any]:
    """Bound arguments as keywords: the content of **kwargs beside the named ones."""
    flat = dict(arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(flat.pop(name, {}))
    return flat
