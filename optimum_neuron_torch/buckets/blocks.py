"""Regional compilation: which modules of a model are its repeated blocks, and what crosses into one compiled block.

A step runs eagerly and its blocks run as compiled functions. A block is compiled from a twin of itself, in which what
only says *which* block it is (`layer_idx`) has one value for all: one function then serves all blocks of equal state.
That the value matters not is proven, by running the block on fake tensors with an object in the value's place which
refuses every use.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode

from .capturing import captured_keys
from .flat import CONSTANTS, NotFlatError, flatten, rebuild
from .shell import shell_of
from .state import ModuleState


# The attribute by which Transformers' modules name their entry of a cache.
CACHE_INDEX = "layer_idx"


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost modules of which the model has several in a list, or those of the classes that it names itself."""
    named = frozenset(getattr(model, "_repeated_blocks", None) or ())
    blocks = list(_named(model, named)) if named else []
    return blocks or list(_listed(model))


def _named(module: torch.nn.Module, names: frozenset[str]) -> Iterator[torch.nn.Module]:
    for child in module._modules.values():
        if type(child).__name__ in names:
            yield child
        elif child is not None:
            yield from _named(child, names)


def _listed(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    members = [child for child in module._modules.values() if child is not None]
    kinds = [type(child) for child in members]
    for child in members:
        if isinstance(module, torch.nn.ModuleList) and kinds.count(type(child)) > 1:
            yield child
        else:
            yield from _listed(child)


# ---- values that cross --------------------------------------------------------------------------------------------


class Crossing(Protocol):
    """How an object that is no tensor, as a cache, enters a compiled block.

    `take(value, index)` gives the hashable part and the tensors that block `index` needs, or raises NotFlatError;
    `make(static, tensors, index)` the object the block sees; `made(static, object)` the `gains(static)` tensors that
    it gained, which `put(value, index, tensors)` gives to the object outside.
    """

    def take(self, value: Any, index: Any) -> tuple[Any, list[torch.Tensor]]: ...

    def make(self, static: Any, tensors: Sequence[torch.Tensor], index: Any) -> Any: ...

    def gains(self, static: Any) -> int: ...

    def made(self, static: Any, value: Any) -> list[torch.Tensor]: ...

    def put(self, value: Any, index: Any, tensors: Sequence[torch.Tensor]) -> None: ...


@dataclass(frozen=True)
class Crossed:
    """An argument that crossed: its name or position, by whom, its hashable part, and where its tensors lie."""

    name: str | int
    crossing: Crossing
    static: Any
    start: int
    end: int


@dataclass(frozen=True)
class BlockSpec:
    """What is static about a call of a block: the forms of its arguments, those that crossed, and the index under
    which the block asks a cache.
    """

    args: Any
    kwargs: Any
    crossed: tuple[Crossed, ...] = ()
    index: int | None = None


def run_block(block: torch.nn.Module, spec: BlockSpec, *tensors: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
    """The compiled function: the block's output, and the tensors that crossed arguments gained."""
    return _run(block, spec, spec.index, tensors)


def _run(block: torch.nn.Module, spec: BlockSpec, index: Any, tensors: Sequence[torch.Tensor]) -> tuple:
    args, kwargs = list(rebuild(spec.args, tensors)), rebuild(spec.kwargs, tensors)
    values = []
    for crossed in spec.crossed:
        value = crossed.crossing.make(crossed.static, tensors[crossed.start : crossed.end], index)
        (args if isinstance(crossed.name, int) else kwargs)[crossed.name] = value
        values.append(value)
    output = block.forward(*args, **kwargs)
    gained = []
    for crossed, value in zip(spec.crossed, values, strict=True):
        gained.extend(crossed.crossing.made(crossed.static, value))
    return output, gained


# By exact type; whoever defines such objects enters them.
CROSSINGS: dict[type, Crossing] = {}
# By an attribute, for tensors that know more than their values.
CROSSINGS_OF_TENSORS: dict[str, Crossing] = {}


def taken_apart(args: tuple, kwargs: dict[str, Any], index: int | None) -> tuple[BlockSpec, list[torch.Tensor]]:
    """A call as something hashable and flat tensors. Raises NotFlatError for what cannot enter a graph."""
    tensors: list[torch.Tensor] = []
    named = {**dict(enumerate(args)), **kwargs}
    crossing = {name: by for name, value in named.items() if (by := _crossing_of(value)) is not None}
    plain_args = tuple(None if position in crossing else value for position, value in enumerate(args))
    plain_kwargs = {name: value for name, value in kwargs.items() if name not in crossing}
    forms = flatten(plain_args, tensors), flatten(plain_kwargs, tensors)
    crossed = []
    for name, by in crossing.items():
        static, entering = by.take(named[name], index)
        start = len(tensors)
        tensors += entering
        crossed.append(Crossed(name, by, static, start, len(tensors)))
    return BlockSpec(*forms, tuple(crossed)), tensors


def _crossing_of(value: Any) -> Crossing | None:
    if not isinstance(value, torch.Tensor):
        return CROSSINGS.get(type(value))
    return next((by for attribute, by in CROSSINGS_OF_TENSORS.items() if hasattr(value, attribute)), None)


def give_back(
    spec: BlockSpec, args: tuple, kwargs: dict[str, Any], index: int | None, gained: Sequence[torch.Tensor]
) -> None:
    """What crossed arguments gained inside goes to the objects outside."""
    gained = list(gained)
    for crossed in spec.crossed:
        count = crossed.crossing.gains(crossed.static)
        value = args[crossed.name] if isinstance(crossed.name, int) else kwargs[crossed.name]
        crossed.crossing.put(value, index, gained[:count])
        del gained[:count]


# ---- twins --------------------------------------------------------------------------------------------------------


class Opaque:
    """Stands for a number that must not be read: whatever is asked of it raises."""

    def _refuse(self, *args: Any) -> Any:
        raise TypeError("the value is read")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __int__ = __float__ = _refuse
    __repr__ = __str__ = __format__ = __len__ = __getattr__ = __contains__ = __iter__ = _refuse
    __hash__ = None


class Twin:
    """What is compiled in a block's place: shells of all its modules, on the same parameters and buffers.

    The numbers, as (path, name), are the attributes in which it differs from its siblings; `index` is the cache entry
    the block uses, None where it names none. `reason` says why it has to run eagerly, `inner_keys` what Transformers
    records inside it.
    """

    def __init__(self, block: torch.nn.Module, siblings: Sequence[torch.nn.Module]) -> None:
        self.kind = type(block).__name__
        modules = dict(block.named_modules())
        self.inner_keys, self.reason = captured_keys(module for path, module in modules.items() if path)
        shells = {id(module): _shell(module) for module in modules.values()}
        for shell in shells.values():
            children = shell.__dict__["_modules"]
            shell.__dict__["_modules"] = {name: shells.get(id(child)) for name, child in children.items()}
        self._shells = {path: shells[id(module)] for path, module in modules.items()}
        self.module = self._shells[""]
        indices = {m.__dict__[CACHE_INDEX] for m in modules.values() if type(m.__dict__.get(CACHE_INDEX)) is int}
        self.index = indices.pop() if len(indices) == 1 else None
        self._own = _differing_numbers(block, siblings)
        self.numbers = frozenset(self._own)
        self._free: frozenset | None = None
        self._digests: dict[frozenset, str] = {}
        self.calls: dict[tuple, Any] = {}  # of regions.py: what was compiled for each form of call

    def set_free(self, free: frozenset) -> None:
        """Give the module 0 for the numbers `free`, and its own for the others."""
        if free != self._free:
            self._set({place: 0 if place in free else own for place, own in self._own.items()})
            self._free = free

    def renumbered(self, spec: BlockSpec, free: frozenset) -> BlockSpec:
        """The call as the module makes it with `free` set."""
        is_free = any(name == CACHE_INDEX for _, name in free)
        return BlockSpec(spec.args, spec.kwargs, spec.crossed, 0 if is_free else self.index)

    def family(self) -> str:
        """The digest that it shares with all blocks from which only its numbers tell it apart."""
        self.set_free(self.numbers)
        return self.digest()

    def digest(self) -> str:
        """The digest of the module's state, with the numbers as they are set."""
        if self._free not in self._digests:
            self._digests[self._free] = ModuleState(self.module).digest()
        return self._digests[self._free]

    def unread_numbers(self, spec: BlockSpec, tensors: Sequence[torch.Tensor]) -> frozenset:
        """The numbers that a call of this form does not read. Raises NotFlatError for an output that is not flat."""
        if self._runs_without(self.numbers, spec, tensors):
            return self.numbers
        found = frozenset(place for place in self.numbers if self._runs_without(frozenset({place}), spec, tensors))
        return found if found and self._runs_without(found, spec, tensors) else frozenset()

    def attributes(self) -> list[dict[str, int]]:
        """The identities of all attributes: what a call sets on itself does not reach the block."""
        return [{name: id(value) for name, value in shell.__dict__.items()} for shell in self._shells.values()]

    def _runs_without(self, places: frozenset, spec: BlockSpec, tensors: Sequence[torch.Tensor]) -> bool:
        opaque = Opaque()
        self._set({place: opaque if place in places else own for place, own in self._own.items()})
        index = opaque if any(name == CACHE_INDEX for _, name in places) else self.index
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                output, _ = _run(self.module, spec, index, [mode.from_tensor(tensor) for tensor in tensors])
        except Exception:  # the value is read, or the block does not run on fake tensors
            return False
        finally:
            self._set(self._own)
            self._free = None
        for leaf in pytree.tree_leaves(output):
            if not isinstance(leaf, (torch.Tensor, *CONSTANTS)):
                raise NotFlatError(f"its output holds a {type(leaf).__name__}")
        return True

    def _set(self, values: dict[tuple[str, str], Any]) -> None:
        for (path, name), value in values.items():
            self._shells[path].__dict__[name] = value


def _shell(module: torch.nn.Module) -> torch.nn.Module:
    """An object of the module's class with its attributes and no hooks: they run outside, or are idle."""
    shell = shell_of(module)
    for hooks in ("_forward_hooks", "_forward_pre_hooks"):
        shell.__dict__[hooks] = type(module.__dict__[hooks])()
    return shell


def _differing_numbers(block: torch.nn.Module, siblings: Sequence[torch.nn.Module]) -> dict[tuple[str, str], int]:
    """The plain ints that are not the same in all blocks of a class."""
    others = [_numbers_of(sibling) for sibling in siblings]
    numbers = _numbers_of(block)
    return {place: value for place, value in numbers.items() if any(o.get(place, value) != value for o in others)}


def _numbers_of(block: torch.nn.Module) -> dict[tuple[str, str], int]:
    return {
        (path, name): value
        for path, module in block.named_modules()
        for name, value in module.__dict__.items()
        if type(value) is int
    }
