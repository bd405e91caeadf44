"""Compiling the buckets of a prepared model ahead of use, with a progress bar and an estimate."""

import dataclasses
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .. import runtime
from ..buckets.forecast import Forecast, progress_bar
from ..config import Buckets
from ..report import Ledger, ledger_of
from .modules import Prepared, check_axes, is_active, prepared_of
from .warm_steps import WarmupStep, looked_up, steps_of


def warm(
    model: torch.nn.Module, buckets: Buckets | None, *, dry_run: bool, progress: bool, gradients: bool
) -> list[WarmupStep]:
    """See `optimum_neuron_torch.warmup`. Raises ValueError for a model that was not prepared, or is not on neuron."""
    prepared = prepared_of(model)
    if prepared is None and ledger_of(model) is not None:
        raise ValueError(
            f"{type(model).__name__} runs at exact shapes, so there are no buckets to warm up: call it, or its "
            "pipeline, once at the sizes you need"
        )
    if prepared is None:
        raise ValueError(
            f"{type(model).__name__} was not prepared: load it with device_map='neuron' or call prepare() on it"
        )
    if buckets is not None:
        check_axes(model, buckets)
    with _in_buckets(model):
        steps = steps_of(model, prepared, buckets, gradients)
        if not steps:
            warnings.warn(
                f"nothing of {prepared.ledger.name} can be warmed up: no combination of buckets fits together, or its "
                f"input ({prepared.module.main_input}) has a size that is not known; call it once per bucket instead",
                stacklevel=3,
            )
        steps = list(looked_up(model, prepared, steps))
        if dry_run or not steps:
            return steps
        done = _compile(model, prepared, steps, progress)
    runtime.mark_warm()
    return done


def _compile(model: torch.nn.Module, prepared: Prepared, steps: list[WarmupStep], progress: bool) -> list[WarmupStep]:
    done: list[WarmupStep] = []
    forecast = Forecast([None if step.state == "ready" else step.seconds for step in steps])
    with progress_bar(f"compiling {prepared.ledger.name}", len(steps), progress, forecast) as advance:
        for step in steps:
            advance(str(step), 0)
            known, start = len(_graphs_of(prepared.ledger)), time.perf_counter()
            _run(model, prepared, step)
            seconds, made = time.perf_counter() - start, _graphs_of(prepared.ledger)[known:]
            forecast.took(seconds)
            done.append(dataclasses.replace(step, state=_state(made), seconds=seconds))
            advance(None, 1, f"{step}: {_made(made)}, {seconds:.1f} s")
    if left := runtime.pending_compilations():
        with progress_bar("compiling kernels", left, progress, Forecast([None] * left)) as advance:

            def finished(now_left: int) -> None:
                nonlocal left
                advance(None, left - now_left)
                left = now_left

            runtime.finish_compilations(finished)
    return done


def _run(model: torch.nn.Module, prepared: Prepared, step: WarmupStep) -> None:
    if step.function == "generate":
        from ..generation.warming import warm as warm_generation

        with torch.no_grad():
            warm_generation(prepared.generation.get(), step.bucket)
    else:
        with torch.inference_mode(False), torch.set_grad_enabled(step.gradients):
            _run_forward(model, prepared, step)


def _run_forward(model: torch.nn.Module, prepared: Prepared, step: WarmupStep) -> None:
    module = prepared.module
    if prepared.sample is not None:
        model(**prepared.sample(step.bucket["batch"], step.bucket[module.sequence_axis]))
        return
    ids = torch.full((step.bucket["batch"], step.bucket[module.sequence_axis]), module.pad_token, dtype=torch.long)
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in module.parameters:  # tokenizers of models that know them always give them
        arguments["token_type_ids"] = torch.zeros_like(ids)
    if "sequence" in step.bucket and module.sequence_axis != "sequence":
        arguments["decoder_input_ids"] = torch.full((ids.shape[0], step.bucket["sequence"]), module.pad_token)
    if "use_cache" in module.parameters:
        arguments["use_cache"] = False
    output = model(**arguments)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if step.gradients and trained and output[0].requires_grad:
        # The backward graph is made by the first backward; this one leaves no .grad behind.
        torch.autograd.grad(output[0].float().sum(), trained, allow_unused=True)


def _graphs_of(ledger: Ledger) -> list[dict[str, Any]]:
    return [record for record in runtime.graph_records() if record.get("model_name") == ledger.name]


def _state(records: list[dict[str, Any]]) -> str:
    if not records:
        return "ready"
    return "loaded" if all(record.get("cached") for record in records) else "compiled"


def _made(records: list[dict[str, Any]]) -> str:
    """`2 graphs compiled, 1 from the cache`."""
    cached = sum(bool(record.get("cached")) for record in records)
    compiled = len(records) - cached
    parts = [f"{compiled} {'graph' if compiled == 1 else 'graphs'} compiled"] * bool(compiled)
    return ", ".join(parts + [f"{cached} from the cache"] * bool(cached)) or "nothing new"


@contextmanager
def _in_buckets(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode within the block. Raises ValueError for a model that is not on a neuron device."""
    was_training = [module.training for module in model.modules()]
    model.eval()
    try:
        if not is_active(model):
            raise ValueError(
                f"{type(model).__name__} is on {next(model.parameters()).device}: move it to neuron before its warm-up"
            )
        yield
    finally:
        for module, training in zip(model.modules(), was_training, strict=True):
            module.training = training
