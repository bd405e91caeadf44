"""Running a module at other sizes than a call's, to see how its outputs follow: on fake tensors, else small on the
host. Neither touches the module itself nor the device's memory.
"""

import contextlib
import copy
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .flat import Form, flatten, paths, rebuild
from .inputs import Dims, Leaf
from .shell import shell_of
from .twin import LARGEST_COPY_BYTES, host_copy, parameter_bytes


MASK = "attention_mask"
# The key under which arguments are that have to be passed by position.
POSITIONAL = "*"


def call_forward(module: torch.nn.Module, form: Form, tensors: list[torch.Tensor]) -> Any:
    """The class's forward, whatever hooks the instance carries, on arguments made from flat tensors."""
    arguments = rebuild(form, tensors)
    return type(module).forward(module, *arguments.pop(POSITIONAL, ()), **arguments)


class FakeModule:
    """A module on fake host tensors: shapes without computing.

    A copy, since models note down what they see: how long a sequence was, which attention it took.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        memo: dict[int, Any] = {}
        for part in module.modules():
            held = itertools.chain(part.parameters(False), part.buffers(False), vars(part).values())
            for tensor in held:
                if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                    memo[id(tensor)] = self._fake(tensor)
        self._module = copy.deepcopy(shell_of(module), memo)

    def run(self, form: Form, tensors: list[torch.Tensor]) -> Any:
        with _quiet(), self._mode, torch.no_grad():
            return call_forward(self._module, form, [self._mode.from_tensor(tensor) for tensor in tensors])

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return torch.nn.Parameter(fake, requires_grad=False) if is_parameter else fake


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's log of fake calls that fail: that some sizes do not fit is what is asked."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


class HostModule:
    """A float32 copy of a module on the host."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def run(self, form: Form, tensors: list[torch.Tensor]) -> Any:
        with torch.no_grad():
            return call_forward(self._module, form, tensors)


class TooLargeError(RuntimeError):
    """A module that is too large to be copied."""


def small_host_module(module: torch.nn.Module) -> HostModule:
    """Raises TooLargeError for a module of which a copy would take too long."""
    if parameter_bytes(module) > LARGEST_COPY_BYTES:
        raise TooLargeError("it is too large to be copied to the host")
    return HostModule(host_copy(module))


@dataclass(frozen=True)
class Call:
    """One call taken apart: `form` makes the arguments from the tensors of `leaves`.

    `plain_form` makes those that the caller gave, without the mask of ours, which is at the path `made`.
    """

    form: Form
    leaves: tuple[Leaf, ...]
    plain_form: Form
    made: str | None = None

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> "Call":
        """Arguments in another order are the same call. Raises NotFlatError for an argument that is no tensor, no
        constant, and no container of such.
        """
        tensors: list[torch.Tensor] = []
        form = flatten(dict(sorted(arguments.items())), tensors)
        leaves = []
        for path, tensor in zip(paths(form), tensors, strict=True):
            name = next((key for key in reversed(path) if not key.isdigit()), path[-1])
            leaves.append(Leaf(".".join(path), name, tensor))
        return cls(form, tuple(leaves), form)

    @property
    def shapes(self) -> tuple:
        return tuple((leaf.tensor.shape, leaf.tensor.dtype) for leaf in self.leaves)

    def with_tensors(self, tensors: list[torch.Tensor]) -> "Call":
        leaves = tuple(replace(leaf, tensor=tensor) for leaf, tensor in zip(self.leaves, tensors, strict=True))
        return replace(self, leaves=leaves)

    def with_mask(self, tokens: Leaf) -> "Call":
        """The call with an attention mask of ones beside its tokens."""
        shape = tokens.shape if tokens.name == "input_ids" else tokens.shape[:-1]
        arguments = rebuild(self.form, [leaf.tensor for leaf in self.leaves])
        masked = Call.of({**arguments, MASK: torch.ones(shape, dtype=torch.long)})
        return replace(masked, plain_form=self.form, made=MASK)


@dataclass(frozen=True)
class Samples:
    """Makes inputs like a call's at other sizes.

    `vocabulary` and `specials` are the model's: random ids have none of the special ones within a text, and the end
    token at its end, where models (CLIP, BART) look for it.
    """

    leaves: tuple[Leaf, ...]
    made: str | None = None
    vocabulary: int | None = None
    specials: frozenset[int] = frozenset()
    end_token: int | None = None

    @classmethod
    def of(cls, call: Call, config: Any) -> "Samples":
        """For calls of a model with this configuration, or with none."""
        config = text_config(config)
        vocabulary, end = getattr(config, "vocab_size", None), getattr(config, "eos_token_id", None)
        vocabulary = vocabulary if type(vocabulary) is int else None
        specials = frozenset(
            value
            for name, value in (vars(config) if config is not None else {}).items()
            if name.endswith("_token_id") and type(value) is int
        )
        end = end if type(end) is int and 0 <= end < (vocabulary or 0) else None
        return cls(call.leaves, call.made, vocabulary, specials, end)

    def zeros(self, dims: Dims, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """Cheap inputs, for shapes alone."""
        return [
            torch.full(_shape(leaf, dims, sizes), int("mask" in leaf.name), dtype=leaf.tensor.dtype)
            for leaf in self.leaves
        ]

    def draw(self, dims: Dims, sizes: Mapping[str, int], floats: str = "sampled") -> list[Leaf]:
        """Random inputs with ragged masks. Integers of unknown range and (`floats` "sampled") real numbers are drawn
        from the call's own; else real numbers are "normal" or all "negative".
        """
        generator = torch.Generator().manual_seed(0)
        return [
            Leaf(leaf.path, leaf.name, self._value(leaf, _shape(leaf, dims, sizes), dims, floats, generator))
            for leaf in self.leaves
        ]

    def _value(
        self, leaf: Leaf, shape: tuple[int, ...], dims: Dims, floats: str, generator: torch.Generator
    ) -> torch.Tensor:
        dtype = leaf.tensor.dtype
        if leaf.path == self.made:
            return torch.ones(shape, dtype=dtype)
        if leaf.name.endswith("attention_mask") and len(shape) >= 2 and dims[leaf.path][-1] is not None:
            return _ragged(shape, dtype)
        if leaf.name == "position_ids" and dims[leaf.path][-1] is not None:
            return torch.arange(shape[-1], dtype=dtype).expand(shape).contiguous()
        if leaf.name.endswith("input_ids") and self.vocabulary:
            return self._ids(shape, dtype, generator)
        if (leaf.tensor.is_floating_point() or leaf.tensor.is_complex()) and floats != "sampled":
            values = torch.randn(shape, generator=generator)
            return (-values.abs() if floats == "negative" else values).to(
                torch.float32 if leaf.tensor.is_floating_point() else dtype
            )
        return _drawn(leaf.tensor, shape, generator)

    def _ids(self, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        allowed = torch.tensor([i for i in range(self.vocabulary) if i not in self.specials] or [0])
        ids = allowed[torch.randint(0, len(allowed), shape, generator=generator)].to(dtype)
        if self.end_token is not None:
            ids[..., -1] = self.end_token
        return ids


def _shape(leaf: Leaf, dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes.get(axis, size) for axis, size in zip(dims[leaf.path], leaf.shape, strict=True))


def _ragged(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A mask whose second row ends early and whose third starts late; no row is masked throughout."""
    mask = torch.ones(shape, dtype=torch.float32 if dtype.is_floating_point else dtype)
    half = shape[-1] // 2
    if shape[0] > 1:
        mask[1, ..., max(half, 1) :] = 0
    if shape[0] > 2:
        mask[2, ..., : half // 2] = 0
    return mask


def _drawn(tensor: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values of `tensor` in random order; real numbers that are all equal say nothing, so these become random."""
    values = tensor.detach().reshape(-1)
    is_float = tensor.is_floating_point()
    values = values.float() if is_float else values
    if values.numel() == 0 or (is_float and not values.std(correction=0) > 0):
        return torch.randn(shape, generator=generator) if is_float else torch.zeros(shape, dtype=tensor.dtype)
    return values[torch.randint(0, values.numel(), shape, generator=generator)]


def as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def text_config(config: Any) -> Any:
    return config.get_text_config() if hasattr(config, "get_text_config") else config
