"""NeuronConfig and Buckets: every knob, validated when it is set, saved beside the model as `neuron_config.json`."""

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .files import write_atomically


logger = logging.getLogger(__name__)

CONFIG_NAME = "neuron_config.json"
FORMAT = "optimum_neuron_torch/1"
OVERFLOWS = ("error", "grow", "split")

# Strict kinds that the plugin itself watches; all others are the device's.
PLUGIN_STRICT_KINDS = frozenset({"exact_shapes", "stock_path", "attention", "kernels"})
DEVICE_STRICT_KINDS = frozenset(
    "fallback unknown float64 int64 complex sparse forward_ad channels_last recompile multicore all".split()
)


class BucketOverflowError(ValueError):
    """An input is larger than the largest bucket of an axis whose policy is `error`."""


@dataclass(frozen=True)
class Growth:
    """Sizes low, low*factor, low*factor**2, ... up to `high` (None: no limit); each exists once an input needs it."""

    low: int
    high: int | None
    factor: float = 2

    def __post_init__(self) -> None:
        if self.low < 1 or self.factor <= 1 or (self.high is not None and self.high < self.low):
            raise ValueError(f"{self} is no growth rule: it takes 1 <= low <= high and factor > 1")

    def fit(self, size: int) -> int | None:
        """The smallest size of the rule that holds `size`, or None above `high`."""
        if self.high is not None and size > self.high:
            return None
        bucket = float(self.low)
        while int(bucket) < size:
            bucket *= self.factor
        return int(bucket) if self.high is None else min(int(bucket), self.high)


AxisSizes = list[int] | tuple[int, ...] | Growth | Literal["auto"]


class Buckets:
    """The sizes each named axis is padded to.

    Args:
        batch, sequence, encoder_sequence, cache: a list of sizes, a `Growth`, or "auto" (a growth rule from a small
            floor to the model's limit; batch has none).
        overflow: what an input above the largest size gets: "error", "grow" (a new bucket by doubling) or "split"
            (batch only). None means "error" for lists and "grow" for growth rules and "auto".
        dims: which dimensions of which inputs are which axes, as {"pixel_values": {0: "batch", 1: "patches"}}, where
            that cannot be found. An input inside a container is named by its key, or by its path ("images.0").
        other_axes: sizes of further axes of the model's inputs, by name. A single one that `dims` does not place is
            the dimension that the model leaves free; "auto" has no limit.

    Raises ValueError for sizes that are no positive integers, an unknown policy, or `dims` that name no axis of these.
    """

    AXES = ("batch", "sequence", "encoder_sequence", "cache")

    def __init__(
        self,
        *,
        batch: AxisSizes = "auto",
        sequence: AxisSizes = "auto",
        encoder_sequence: AxisSizes = "auto",
        cache: AxisSizes = "auto",
        overflow: Literal["error", "grow", "split"] | None = None,
        dims: dict[str, dict[int, str]] | None = None,
        **other_axes: AxisSizes,
    ) -> None:
        if overflow is not None and overflow not in OVERFLOWS:
            raise ValueError(f"overflow={overflow!r}: expected one of {OVERFLOWS} or None")
        self.overflow = overflow
        given = {
            "batch": batch,
            "sequence": sequence,
            "encoder_sequence": encoder_sequence,
            "cache": cache,
            **other_axes,
        }
        self.axes: dict[str, tuple[int, ...] | Growth | Literal["auto"]] = {
            name: _checked_sizes(name, sizes) for name, sizes in given.items()
        }
        self.dims = _checked_dims(dims, self.axes)

    def __repr__(self) -> str:
        set_axes = {name: sizes for name, sizes in self.axes.items() if sizes != "auto"}
        body = ", ".join(f"{name}={list(s) if isinstance(s, tuple) else s!r}" for name, s in set_axes.items())
        overflow = f"overflow={self.overflow!r}" if self.overflow else ""
        dims = f"dims={self.dims!r}" if self.dims else ""
        return f"Buckets({', '.join(part for part in (body, overflow, dims) if part)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buckets) and (self.axes, self.overflow, self.dims) == (
            other.axes,
            other.overflow,
            other.dims,
        )

    __hash__ = None

    @property
    def other_axes(self) -> list[str]:
        return [name for name in self.axes if name not in self.AXES]

    def to_dict(self) -> dict[str, Any]:
        def plain(sizes: Any) -> Any:
            if isinstance(sizes, Growth):
                return {"low": sizes.low, "high": sizes.high, "factor": sizes.factor}
            return list(sizes) if isinstance(sizes, tuple) else sizes

        sizes = {name: plain(sizes) for name, sizes in self.axes.items()}
        return {**sizes, "overflow": self.overflow, **({"dims": self.dims} if self.dims else {})}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Buckets":
        dims = data.get("dims")
        if isinstance(dims, dict):  # JSON has only strings as keys
            dims = {name: {int(dim): axis for dim, axis in placed.items()} for name, placed in dims.items()}
        sizes = {name: value for name, value in data.items() if name != "dims"}
        return cls(
            dims=dims, **{name: Growth(**value) if isinstance(value, dict) else value for name, value in sizes.items()}
        )


def _checked_sizes(name: str, sizes: Any) -> Any:
    if sizes == "auto" or isinstance(sizes, Growth):
        return sizes
    if isinstance(sizes, int) and not isinstance(sizes, bool):
        sizes = [sizes]
    if not isinstance(sizes, (list, tuple)) or not sizes or not all(type(s) is int and s > 0 for s in sizes):
        raise ValueError(
            f"buckets of axis {name!r}: {sizes!r} is no list of positive integers, Growth or 'auto'. "
            f"Example: Buckets({name}=[32, 64, 128])"
        )
    return tuple(sorted(set(sizes)))


def _checked_dims(dims: Any, axes: dict[str, Any]) -> dict[str, dict[int, str]]:
    example = 'Example: Buckets(patches=[64, 256], dims={"pixel_values": {0: "batch", 1: "patches"}})'
    if dims is None:
        return {}
    if not isinstance(dims, dict) or not all(
        isinstance(name, str)
        and isinstance(placed, dict)
        and all(type(dim) is int and dim >= 0 and isinstance(axis, str) for dim, axis in placed.items())
        for name, placed in dims.items()
    ):
        raise ValueError(f"dims={dims!r}: expected a dict of inputs, each a dict from dimension to axis. {example}")
    unknown = sorted({axis for placed in dims.values() for axis in placed.values()} - axes.keys())
    if unknown:
        raise ValueError(f"dims name the axes {unknown}, which have no sizes here (axes: {sorted(axes)}). {example}")
    return {name: dict(placed) for name, placed in dims.items()}


@dataclass
class NeuronConfig:
    """How a model or pipeline is prepared for the neuron device.

    Attributes:
        buckets: the static shapes; None is `Buckets()`, all automatic.
        attn_implementation: attention of Transformers models; "nki" is ours, any other name is left to Transformers.
        nki: compute NKI ops with torch ("torch"), or run the kernels in the simulator ("simulate").
        compile: "model" compiles whole steps; "blocks" the repeated layers, one graph for all of equal state, and runs
            the rest of a step eagerly; False runs all eagerly. All at bucket shapes.
        verify: the self check at first use: "warn" takes the stock path on a mismatch, "raise" raises, False skips it.
        outputs: "exact" gives compact tensors of the true size, "view" views of the padded ones.
        strict: kinds that become errors for this model: "exact_shapes", "stock_path", "attention", "kernels" (a layer
            that looks like one our kernels know, and is none; a call that its kernel does not take).
        options: options of the compile backend, as {"executor": "inductor"}.

    Raises ValueError for a value outside these.
    """

    buckets: Buckets | None = None
    attn_implementation: str | None = "nki"
    nki: Literal["torch", "simulate"] = "torch"
    compile: Literal["model", "blocks"] | bool = "model"
    verify: Literal["warn", "raise"] | bool = "warn"
    outputs: Literal["exact", "view"] = "exact"
    strict: tuple[str, ...] = ()
    options: dict[str, Any] | None = field(default=None)

    def __init__(
        self,
        *,
        buckets: Buckets | None = None,
        attn_implementation: str | None = "nki",
        nki: Literal["torch", "simulate"] = "torch",
        compile: Literal["model", "blocks"] | bool = "model",
        verify: Literal["warn", "raise"] | bool = "warn",
        outputs: Literal["exact", "view"] = "exact",
        strict: tuple[str, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> None:
        _check_choice("nki", nki, ("torch", "simulate"))
        _check_choice("compile", compile, ("model", "blocks", False))
        _check_choice("verify", verify, ("warn", "raise", False))
        _check_choice("outputs", outputs, ("exact", "view"))
        if buckets is not None and not isinstance(buckets, Buckets):
            raise ValueError(f"buckets={buckets!r}: expected Buckets(...) or None")
        strict = (strict,) if isinstance(strict, str) else tuple(strict)
        unknown = sorted(set(strict) - PLUGIN_STRICT_KINDS - DEVICE_STRICT_KINDS)
        if unknown:
            known = sorted(PLUGIN_STRICT_KINDS | DEVICE_STRICT_KINDS)
            raise ValueError(f"unknown strict kinds {unknown}: expected some of {known}")
        if options is not None and not isinstance(options, dict):
            raise ValueError(f"options={options!r}: expected a dict or None")
        self.buckets = buckets if buckets is not None else Buckets()
        self.attn_implementation, self.nki, self.compile, self.verify = attn_implementation, nki, compile, verify
        self.outputs, self.strict, self.options = outputs, strict, options

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "buckets": self.buckets.to_dict(),
            "attn_implementation": self.attn_implementation,
            "nki": self.nki,
            "compile": self.compile,
            "verify": self.verify,
            "outputs": self.outputs,
            "strict": list(self.strict),
            "options": self.options,
        }

    def save_pretrained(self, directory: str | os.PathLike) -> Path:
        """Write `neuron_config.json` into `directory` (made if missing) and return its path."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        return write_atomically(directory / CONFIG_NAME, json.dumps(self.to_dict(), indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike) -> "NeuronConfig | None":
        """The configuration saved in `directory`; None where there is none, or where the file is another project's.

        Raises ValueError for a file of ours that cannot be read.
        """
        path = Path(directory) / CONFIG_NAME
        if not path.is_file():
            return None
        try:
            data = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path} is not valid JSON ({error}); delete it, or save the configuration again"
            ) from error
        if not isinstance(data, dict) or "format" not in data:
            logger.info("%s has no `format` key: it is not a file of optimum_neuron_torch and is ignored", path)
            return None
        if data.pop("format") != FORMAT:
            raise ValueError(
                f"{path} has another format than {FORMAT!r}: it was written by another version of this package"
            )
        try:
            return cls(
                **{
                    **data,
                    "buckets": Buckets.from_dict(data.get("buckets") or {}),
                    "strict": tuple(data.get("strict", ())),
                }
            )
        except TypeError as error:
            raise ValueError(f"{path} has keys this version does not know ({error})") from error
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from error


def _check_choice(name: str, value: Any, choices: tuple) -> None:
    if not any(value is choice or (value == choice and type(value) is type(choice)) for choice in choices):
        raise ValueError(f"{name}={value!r}: expected one of {choices}")
