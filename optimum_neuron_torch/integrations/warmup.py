"""Compiling the buckets of a prepared model ahead of use, with a progress bar."""

import itertools
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .. import runtime
from ..buckets.manifest import Manifest
from ..buckets.progress import own_display
from ..buckets.sizes import AxisSizes, axis_sizes
from ..config import Buckets, Growth
from ..report import Ledger, ledger_of
from .modules import check_axes, is_active, prepared_of


# Of an automatic axis, sequences up to this length are warmed.
AUTOMATIC_SEQUENCE = 512

Step = tuple[str, dict[str, int]]


def warm(model: torch.nn.Module, buckets: Buckets | None, *, dry_run: bool, progress: bool) -> list[Step]:
    """See `optimum_neuron_torch.warmup`. Raises ValueError for a model that was not prepared."""
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
    generation = prepared.generation.get() if prepared.generation is not None else None
    axes = generation.axes() if generation is not None else prepared.module.axis_sizes
    steps = _met_steps(model, prepared.module, generation, axes) if buckets is None else []
    if not steps and generation is not None:
        steps = _generation_steps(generation, buckets)
    elif not steps:
        steps = _forward_steps(prepared.module, buckets)
    steps = _served(steps, axes)
    if not steps:
        warnings.warn(
            f"nothing of {prepared.ledger.name} can be warmed up: no combination of buckets fits together, or its "
            f"input ({prepared.module.main_input}) has a size that is not known; call it once per bucket instead",
            stacklevel=3,
        )
    if dry_run or not steps:
        return steps
    with (
        torch.no_grad(),
        _in_buckets(model),
        _bar(f"compiling {prepared.ledger.name}", len(steps), progress) as advance,
    ):
        for function, bucket in steps:
            what = f"{function}, " + ", ".join(f"{axis} {size}" for axis, size in bucket.items())
            advance(what, 0)
            known, start = len(_graphs_of(prepared.ledger)), time.perf_counter()
            if generation is not None:
                generation.warm(bucket["batch"], bucket["sequence"], bucket["cache"])
            else:
                _warm_forward(model, prepared.module, bucket)
            made = _made(_graphs_of(prepared.ledger)[known:])
            advance(None, 1, f"{what}: {made}, {time.perf_counter() - start:.1f} s")
    if graphs := runtime.pending_compilations():
        with _bar("compiling kernels", graphs, progress) as advance:
            done = 0

            def finished(left: int) -> None:
                nonlocal done
                advance(None, graphs - left - done)
                done = graphs - left

            runtime.finish_compilations(finished)
    runtime.mark_warm()
    return steps


def _graphs_of(ledger: Ledger) -> list[dict[str, Any]]:
    return [record for record in runtime.graph_records() if record.get("model_name") == ledger.name]


def _made(records: list[dict[str, Any]]) -> str:
    """`2 graphs compiled, 1 from the cache`."""
    cached = sum(bool(record.get("cached")) for record in records)
    compiled = len(records) - cached
    parts = [f"{compiled} {'graph' if compiled == 1 else 'graphs'} compiled"] * bool(compiled)
    return ", ".join(parts + [f"{cached} from the cache"] * bool(cached)) or "nothing new"


def _served(steps: Iterable[Step], own: dict[str, AxisSizes]) -> list[Step]:
    """The steps at the model's own buckets, which are what serves those sizes; each once."""
    served: list[Step] = []
    for function, sizes in steps:
        step = function, {axis: own[axis].fit(size) for axis, size in sizes.items()}
        if step not in served:
            served.append(step)
    return served


def _met_steps(model: torch.nn.Module, module: Any, generation: Any, axes: dict[str, AxisSizes]) -> list[Step]:
    """For automatic axes the sizes that the model's manifest has met, together as it met them, and explicit lists
    whole. Nothing for a model that was never run, or without automatic axes.
    """
    manifest = Manifest(model)
    if generation is not None:
        function = "generate"
        met = [
            {"batch": bucket["batch"], "sequence": bucket["block"], "cache": bucket["cache"]}
            for bucket in manifest.buckets("prefill")
            if {"batch", "block", "cache"} <= bucket.keys()
        ]
    else:
        function = module.function
        met = [bucket for bucket in manifest.buckets(function) if bucket.keys() == axes.keys()]
    listed = {name: sizes.sizes for name, sizes in axes.items() if isinstance(sizes.sizes, tuple)}
    if len(listed) == len(axes):
        return []
    steps = [
        (function, {**bucket, **dict(zip(listed, sizes, strict=True))})
        for bucket in met
        for sizes in itertools.product(*listed.values())
    ]
    return [(function, step) for function, step in steps if step["sequence"] <= step.get("cache", step["sequence"])]


def _generation_steps(generation: Any, buckets: Buckets | None) -> Iterator[Step]:
    """Prefill and decode for every batch, sequence and cache bucket that fit together."""
    axes = _axes(generation.axes(), buckets)
    for batch in _listed(axes["batch"], 1):
        for sequence in _listed(axes["sequence"], AUTOMATIC_SEQUENCE):
            caches = (
                _listed(axes["cache"], None)
                if axes["cache"].largest is not None and not axes["cache"].is_automatic
                else [axes["cache"].fit(sequence)]
            )
            for cache in caches:
                if sequence <= cache:
                    yield "generate", {"batch": batch, "sequence": sequence, "cache": cache}


def _forward_steps(module: Any, buckets: Buckets | None) -> Iterator[Step]:
    axes = _axes(module.axis_sizes, buckets)
    for batch in _listed(axes["batch"], 1):
        if "sequence" not in module.axis_sizes or module.main_input not in ("input_ids", "inputs_embeds"):
            continue
        for sequence in _listed(axes["sequence"], AUTOMATIC_SEQUENCE):
            yield module.function, {"batch": batch, "sequence": sequence}


def _axes(own: dict[str, AxisSizes], buckets: Buckets | None) -> dict[str, AxisSizes]:
    if buckets is None:
        return own
    return {
        name: axis_sizes(buckets, name, sizes.largest if sizes.is_automatic else None) for name, sizes in own.items()
    }


def _listed(sizes: AxisSizes, automatic_limit: int | None) -> list[int]:
    """The sizes of a list, or those of a growth rule up to its own end and the limit."""
    if isinstance(sizes.sizes, tuple):
        return list(sizes.sizes)
    rule: Growth = sizes.sizes
    limit = min(size for size in (rule.high, automatic_limit) if size is not None)
    listed, size = [], rule.fit(1)
    while size is not None and size <= limit:
        listed.append(size)
        size = rule.fit(size + 1)
    return listed


def _warm_forward(model: torch.nn.Module, module: Any, bucket: dict[str, int]) -> None:
    ids = torch.full((bucket["batch"], bucket["sequence"]), module.pad_token, dtype=torch.long)
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in module.parameters:  # tokenizers of models that know them always give them
        model(**arguments, token_type_ids=torch.zeros_like(ids))
    else:
        model(**arguments)


@contextmanager
def _in_buckets(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode within the block. Raises ValueError for a model that is not on a neuron device."""
    was_training = model.training
    model.eval()
    try:
        if not is_active(model):
            raise ValueError(
                f"{type(model).__name__} is on {next(model.parameters()).device}: move it to neuron before its warm-up"
            )
        yield
    finally:
        model.train(was_training)


@contextmanager
def _bar(title: str, total: int, visible: bool) -> Iterator[Any]:
    """A progress bar on stderr; yields advance(what or None, steps, line to leave above the bar)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}"),
    )
    with own_display(), Progress(*columns, console=Console(file=sys.stderr), disable=not visible) as bar:
        task = bar.add_task(title, total=total, what="")

        def advance(what: str | None, steps: int, done: str = "") -> None:
            bar.update(task, advance=steps, **({} if what is None else {"what": what}))
            if done and visible:
                bar.console.print(done, highlight=False, markup=False)

        yield advance
