"""Which buckets a warm-up compiles: those that are named, those a model has met, or the automatic ones."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from ..buckets.keys import circumstances
from ..buckets.manifest import Manifest, is_loadable
from ..buckets.shell import borrowed
from ..buckets.sizes import AxisSizes, axis_sizes
from ..buckets.state import ModuleState
from ..config import Buckets, Growth
from .modules import Prepared


# Of an automatic axis, sequences up to this length are warmed.
AUTOMATIC_SEQUENCE = 512
# The first step of generate(), by which a manifest says which prompts a model has met.
FIRST_STEPS = ("prefill", "first")


@dataclass(frozen=True)
class WarmupStep:
    """One bucket of a warm-up.

    Attributes:
        function, bucket: what it serves; `generate` stands for all that a generate() call of these sizes runs.
        gradients: whether it serves calls with gradients enabled.
        state: "ready" (this process has it), "cached" (the compile cache has it for this machine, model and
            configuration) or "missing". After a warm-up: "ready", "loaded" or "compiled".
        seconds: what it took, or, in a dry run, what it took when it was compiled before; None where that is unknown.
    """

    function: str
    bucket: dict[str, int]
    gradients: bool = False
    state: str = "missing"
    seconds: float | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Smaller steps are compiled first."""
        return math.prod(self.bucket.values())

    def __str__(self) -> str:
        sizes = ", ".join(f"{axis} {size}" for axis, size in self.bucket.items())
        return f"{self.function}, {sizes}{', with gradients' if self.gradients else ''}"


def steps_of(model: torch.nn.Module, prepared: Prepared, buckets: Buckets | None, gradients: bool) -> list[WarmupStep]:
    """The steps of a warm-up, smallest first, each at the model's own buckets, which are what serves its sizes.

    Raises BucketOverflowError for a size that the model's buckets do not serve.
    """
    generation = prepared.generation.get() if prepared.generation is not None else None
    module = prepared.module
    if generation is not None:
        from ..generation.warming import axes

        named = axes(generation)
        steps = _steps(model, buckets, "generate", named) if named else []
    else:
        steps = _steps(model, buckets, module.function, module.axis_sizes) if module.takes_tokens else []
    if gradients:
        calls = [{axis: step.bucket[axis] for axis in module.axis_sizes if axis in step.bucket} for step in steps]
        whole = [bucket for bucket in calls if len(bucket) == len(module.axis_sizes)]
        steps += _served((WarmupStep(module.function, bucket, True) for bucket in whole), module.axis_sizes)
    return sorted(steps, key=lambda step: (step.size, step.gradients))


def _steps(
    model: torch.nn.Module, buckets: Buckets | None, function: str, own: dict[str, AxisSizes]
) -> list[WarmupStep]:
    found = _met(model, function, own) if buckets is None else []
    if not found:
        asked = own if buckets is None else _asked(own, buckets)
        found = list(_combinations(asked))
    return _served((WarmupStep(function, bucket) for bucket in found), own)


def _asked(own: dict[str, AxisSizes], buckets: Buckets) -> dict[str, AxisSizes]:
    return {
        name: axis_sizes(buckets, name, sizes.largest if sizes.is_automatic else None) for name, sizes in own.items()
    }


def _served(steps: Iterable[WarmupStep], own: dict[str, AxisSizes]) -> list[WarmupStep]:
    """The steps at the model's own buckets, each once."""
    served: list[WarmupStep] = []
    for step in steps:
        bucket = {axis: own[axis].fit(size) for axis, size in step.bucket.items()}
        if (step := dataclasses.replace(step, bucket=bucket)) not in served:
            served.append(step)
    return served


def _met(model: torch.nn.Module, function: str, axes: dict[str, AxisSizes]) -> list[dict[str, int]]:
    """For automatic axes the sizes that the model's manifest has met, together as it met them, and explicit lists
    whole. Nothing for a model that was never run, or without automatic axes.
    """
    manifest = Manifest(model)
    listed = {name: sizes.sizes for name, sizes in axes.items() if isinstance(sizes.sizes, tuple)}
    if len(listed) == len(axes):
        return []
    if function == "generate":
        met = [
            {"sequence": bucket.get("block"), **bucket} for first in FIRST_STEPS for bucket in manifest.buckets(first)
        ]
    else:
        met = [bucket for bucket in manifest.buckets(function) if bucket.keys() == axes.keys()]
    met = [{name: bucket[name] for name in axes} for bucket in met if axes.keys() <= bucket.keys()]
    found = [
        {**bucket, **dict(zip(listed, sizes, strict=True))}
        for bucket in met
        for sizes in itertools.product(*listed.values())
    ]
    return [bucket for bucket in found if _fits_together(bucket)]


def _fits_together(bucket: dict[str, int]) -> bool:
    return bucket.get("sequence", 0) <= bucket.get("cache", bucket.get("sequence", 0))


def _combinations(axes: dict[str, AxisSizes]) -> Iterator[dict[str, int]]:
    """All sizes of lists and growth rules with an end; of automatic axes one row, sequences up to AUTOMATIC_SEQUENCE,
    and the cache that a prompt needs.
    """
    names = [name for name in axes if name != "cache"]
    for sizes in itertools.product(
        *(_listed(axes[name], 1 if name == "batch" else AUTOMATIC_SEQUENCE) for name in names)
    ):
        bucket = dict(zip(names, sizes, strict=True))
        if "cache" not in axes:
            yield bucket
            continue
        caches = axes["cache"]
        needed = bucket.get("sequence", 1)
        for cache in [caches.fit(needed)] if caches.largest is None or caches.is_automatic else _listed(caches, None):
            if needed <= cache:
                yield {**bucket, "cache": cache}


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


# ---- what is there already ------------------------------------------------------------------------------------------


def looked_up(model: torch.nn.Module, prepared: Prepared, steps: Iterable[WarmupStep]) -> Iterator[WarmupStep]:
    """The steps with their state, and with the seconds of earlier compilations. Nothing is compiled, and nothing runs
    on the device.
    """
    digests: dict[tuple[int, bool], str] = {}
    manifests: dict[int, Manifest] = {}
    for step in steps:
        states, seconds = [], []
        for shell, module, function, bucket in _graphs(model, prepared, step):
            if (id(module), step.gradients) not in digests:
                digests[id(module), step.gradients] = _circumstances(shell, module, prepared, step.gradients)
                manifests[id(module)] = Manifest(module)
            held = digests[id(module), step.gradients]
            known = manifests[id(module)].known(function, bucket)
            if prepared.module.graphs.is_made(function, bucket, held):
                states.append("ready")
            else:
                is_cached = any(entry.circumstances == held and is_loadable(entry) for entry in known)
                states.append("cached" if is_cached else "missing")
            seconds.append(max((entry.seconds for entry in known), default=None))
        state = next((state for state in ("missing", "cached") if state in states), "ready")
        known_seconds = None if None in seconds or not seconds else sum(seconds)
        yield dataclasses.replace(step, state=state, seconds=known_seconds)


def _graphs(
    model: torch.nn.Module, prepared: Prepared, step: WarmupStep
) -> Iterator[tuple[torch.nn.Module, torch.nn.Module, str, dict[str, int]]]:
    """The graphs of a step: the shell that is compiled, its module, function, bucket."""
    if step.function != "generate":
        yield prepared.module.shell, model, step.function, step.bucket
        return
    from ..generation.warming import graphs

    generation = prepared.generation.get()
    for shell, function, bucket in graphs(generation, step.bucket):
        yield shell, model if shell is generation.shell else generation.encoder.module, function, bucket


def _circumstances(shell: torch.nn.Module, module: torch.nn.Module, prepared: Prepared, gradients: bool) -> str:
    with torch.inference_mode(False), torch.set_grad_enabled(gradients), borrowed(shell, module) as lent:
        return circumstances(ModuleState(lent).digest(), prepared.config.options)
