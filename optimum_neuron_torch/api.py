"""prepare(), unprepare(), warmup() and strict(): the verbs of the public API."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from . import runtime
from .config import DEVICE_STRICT_KINDS, PLUGIN_STRICT_KINDS, Buckets, NeuronConfig
from .report import pop_strict, push_strict


if TYPE_CHECKING:
    from .integrations.warm_steps import WarmupStep

T = TypeVar("T")


def prepare(
    model_or_pipeline: T, config: NeuronConfig | None = None, *, tokenizer: Any = None, verify: bool | None = None
) -> T:
    """Make a model or pipeline run in static-shape buckets on the neuron device; returns the same object.

    Args:
        model_or_pipeline: a Transformers or Diffusers model, a pipeline of either, or a module that contains
            Transformers models. One that is not on a neuron device is moved to the current one.
        config: None is the configuration it was loaded with, else `NeuronConfig()`.
        tokenizer: gives the pad token where the model's configuration has none.
        verify: True raises ValueError where the self check finds a difference, False skips it; None leaves it to the
            configuration.

    Preparing again with another configuration replaces the first. Raises NeuronNotAvailableError without a device,
    TypeError for an object that is none of these, ValueError for bucket axes the model does not have.
    """
    from .integrations.modules import attach, detach, prepared_of
    from .integrations.sentence_transformers import attach_sentence_model, is_sentence_model

    if config is not None and not isinstance(config, NeuronConfig):
        raise TypeError(f"config={config!r}: expected NeuronConfig(...) or None")
    parts = _models_of(model_or_pipeline)
    if _is_diffusers(model_or_pipeline, "DiffusionPipeline"):
        from .integrations.diffusers import prepare_pipeline

        return prepare_pipeline(model_or_pipeline, _with_verify(config or NeuronConfig(), verify))
    for model in parts:
        if _is_diffusers(model, "ModelMixin"):
            from .integrations.diffusers import prepare_model

            _move_to_device(model)
            prepare_model(model, _with_verify(config or NeuronConfig(), verify))
            continue
        _refuse_quantised(model)
        previous = prepared_of(model)
        wanted = (
            config
            or (previous.config if previous else None)
            or getattr(model, "_neuron_config", None)
            or NeuronConfig()
        )
        wanted = _with_verify(wanted, verify)
        if previous is not None and previous.config == wanted:
            continue
        detach(model)
        _move_to_device(model)
        _adopt_pad_token(model, tokenizer)
        (attach_sentence_model if is_sentence_model(model) else attach)(model, wanted)
        if verify is True and prepared_of(model).generation is not None:
            prepared_of(model).generation.get()
        elif verify is True:
            prepared_of(model).module.check_ahead()
    return model_or_pipeline


def unprepare(obj: T) -> T:
    """Take back what prepare() did to `obj`, except for moving it to the device; returns the same object."""
    from .integrations.modules import detach

    if _is_diffusers(obj, "DiffusionPipeline"):
        from .integrations.diffusers import unprepare_pipeline

        return unprepare_pipeline(obj)
    for model in _models_of(obj):
        if _is_diffusers(model, "ModelMixin"):
            from .integrations.diffusers import unprepare_model

            unprepare_model(model)
        else:
            detach(model)
    return obj


def warmup(
    obj: Any,
    buckets: Buckets | None = None,
    *,
    dry_run: bool = False,
    progress: bool = True,
    gradients: bool = False,
) -> "list[WarmupStep]":
    """Compile the buckets of a prepared model ahead of use, the smallest first.

    Args:
        obj: a prepared model or pipeline, on a neuron device.
        buckets: which ones. None takes explicit lists whole; of automatic axes what the model's manifest has met, else
            batch 1 and sequences up to 512. Sizes between buckets stand for the bucket that serves them.
        dry_run: compile nothing and leave the device alone: say of each bucket whether it is cached or missing.
        progress: draw a bar with the time that is left, from what earlier compilations took.
        gradients: also the graphs of calls with gradients enabled (in eval mode), forward and backward. Without it the
            graphs serve `no_grad` and `inference_mode` alike.

    Returns the steps: `.function`, `.bucket`, `.gradients`, `.state` ("ready", "cached" or "missing" in a dry run;
    "ready", "loaded" or "compiled" after one), `.seconds`. The next call in one of them compiles nothing.

    Raises ValueError for a model that was not prepared, that has no such axes, or that is not on a neuron device, and
    BucketOverflowError for a size that its buckets do not serve.
    """
    from .integrations.sentence_transformers import is_sentence_model
    from .integrations.warmup import warm

    if buckets is not None and not isinstance(buckets, Buckets):
        raise TypeError(f"buckets={buckets!r}: expected Buckets(...) or None")
    steps = (
        warm(model, buckets, dry_run=dry_run, progress=progress, gradients=gradients)
        for model in ([obj] if is_sentence_model(obj) else _models_of(obj))
    )
    return [step for of_model in steps for step in of_model]


@contextmanager
def strict(*kinds: str) -> Iterator[None]:
    """Within the block, make errors of what would only be reported: kinds of the device and of NeuronConfig.strict."""
    unknown = sorted(set(kinds) - PLUGIN_STRICT_KINDS - DEVICE_STRICT_KINDS)
    if unknown:
        raise ValueError(
            f"unknown strict kinds {unknown}: expected some of {sorted(PLUGIN_STRICT_KINDS | DEVICE_STRICT_KINDS)}"
        )
    own = frozenset(kinds) & PLUGIN_STRICT_KINDS if "all" not in kinds else PLUGIN_STRICT_KINDS
    device = sorted(set(kinds) & DEVICE_STRICT_KINDS)
    push_strict(own)
    try:
        if device:
            with runtime.strict_device(*device):
                yield
        else:
            yield
    finally:
        pop_strict(own)


def export_cache(path: str | Path, obj: Any = None, *, isa: str | None = None, threads: int | None = None) -> Path:
    """Write compiled graphs into one file, for machines that only load them.

    Args:
        path: the file to write, a zip; it appears when it is whole.
        obj: a prepared model or pipeline, whose graphs are written; None writes the whole cache.
        isa: a named level of vector instructions ("avx2", "avx512") that all those machines have; kernels for it are
            compiled where they are missing. None takes what this process compiles for, which is this CPU alone unless
            NEURON_EMULATOR_ISA says otherwise.
        threads: the number of threads they will run with, which is part of a graph; None takes this process's.

    Returns the path. Raises ValueError where there is nothing to write, for an ISA that is not known or that this CPU
    does not have, and for a number of threads that nothing was compiled for.
    """
    from .buckets import archive

    models = None if obj is None else _models_of(obj)
    return archive.write(Path(path), models, isa=isa, threads=threads)


def import_cache(path: str | Path, *, trust: bool = False) -> int:
    """Take the graphs in a file of export_cache() into the compile cache.

    Compiled graphs are code. What the file holds is checked against its own digests, which shows damage and not who
    made it: `trust=True` says that you trust its origin as you trust a program that you run.

    Returns the number of compiled functions taken. Raises PermissionError without `trust`, and
    ValueError for a file that is damaged, that is for other versions or another kind of machine, or that is none of
    ours; nothing of it is kept then. Kernels for another CPU are no error: they are compiled again, with a warning.
    """
    from .buckets import archive

    if not trust:
        raise PermissionError(
            f"import_cache({str(path)!r}) takes code from that file, which runs when a model is called (kernels, "
            "pickled graphs). Where you trust who made it: import_cache(path, trust=True)."
        )
    return archive.read(Path(path))


# ---- helpers --------------------------------------------------------------------------------------------------------


def _is_diffusers(obj: Any, base_name: str) -> bool:
    """Whether `obj` is an instance of a Diffusers class, asked without importing Diffusers."""
    return any(base.__module__.startswith("diffusers.") and base.__name__ == base_name for base in type(obj).__mro__)


def _models_of(obj: Any) -> list[torch.nn.Module]:
    """The models prepare() works on: the object, a pipeline's model, or the Transformers models inside a module."""
    if _is_diffusers(obj, "DiffusionPipeline"):
        return [part for part in obj.components.values() if isinstance(part, torch.nn.Module)]
    from .integrations.sentence_transformers import is_sentence_model

    if not isinstance(obj, torch.nn.Module):
        obj_model = getattr(obj, "model", None)
        if isinstance(obj_model, torch.nn.Module):
            return [obj_model]
        raise TypeError(
            f"cannot prepare a {type(obj).__name__}: expected a model, or a pipeline of Transformers or Diffusers"
        )
    if hasattr(obj, "_orig_mod"):
        raise TypeError(
            "this module was compiled with torch.compile already: prepare the model itself, then compile it"
        )
    models = list(_outermost_models(obj)) or [obj]
    return [*models, obj] if is_sentence_model(obj) and obj not in models else models


def _outermost_models(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The module if it is a Transformers or Diffusers model, else those inside it (SentenceTransformer, PEFT)."""
    if any(base.__name__ in ("PreTrainedModel", "ModelMixin") for base in type(module).__mro__):
        yield module
        return
    for child in module.children():
        yield from _outermost_models(child)


def _with_verify(config: NeuronConfig, verify: bool | None) -> NeuronConfig:
    if verify is None:
        return config
    return NeuronConfig(**{**vars(config), "verify": "raise" if verify else False})


def _refuse_quantised(model: torch.nn.Module) -> None:
    """Raises ValueError for a model whose weights a quantiser has packed: their kernels are for other devices."""
    method = getattr(model, "quantization_method", None)
    if method is None:
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.dim() > 1 and _is_packed(tensor):
            raise ValueError(
                f"this {type(model).__name__} is quantised by {getattr(method, 'value', method)} ({name} is "
                f"{tensor.dtype}), whose kernels neuron does not have: load it without quantisation, or call "
                "model.dequantize() first"
            )


def _is_packed(tensor: torch.Tensor) -> bool:
    """Whether it holds what quantisers make: small or packed integers, or 8-bit floats."""
    if tensor.is_floating_point():
        return tensor.dtype.itemsize < 2
    return tensor.dtype not in (torch.bool, torch.int64)


def _move_to_device(model: torch.nn.Module) -> None:
    first = next(model.parameters(), None)
    if first is not None and first.is_meta:
        raise ValueError(
            f"this {type(model).__name__} is on the meta device, without weights: load it with from_pretrained(), or "
            "fill it (model.to_empty(device='neuron'), load_state_dict) first"
        )
    if first is None or not runtime.is_neuron(first):
        model.to(runtime.resolve_device())


def _adopt_pad_token(model: torch.nn.Module, tokenizer: Any) -> None:
    config = getattr(model, "config", None)
    if tokenizer is not None and config is not None and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = getattr(tokenizer, "pad_token_id", None)
