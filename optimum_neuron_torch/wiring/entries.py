"""What an entry of the wiring table is, and the two ways in which entries change a foreign object."""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


Undo = Callable[[], None]
_MISSING = object()


@dataclass(frozen=True)
class Entry:
    """One registration or patch.

    `module` is the module whose import triggers it, `apply` makes the change and returns what takes it back,
    `upstream` names the change in the foreign library that would make the entry unnecessary.
    """

    name: str
    module: str
    apply: Callable[[ModuleType], Undo]
    upstream: str


def replace(owner: Any, attribute: str, make: Callable[[Any], Any]) -> Undo:
    """Set `owner.attribute` to `make(original)`, where `original` is the raw attribute (a classmethod stays one)."""
    raw = owner.__dict__.get(attribute, _MISSING)
    original = getattr(owner, attribute) if raw is _MISSING else raw
    setattr(owner, attribute, make(original))

    def undo() -> None:
        if raw is _MISSING:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, raw)

    return undo


def all_of(undos: Sequence[Undo]) -> Undo:
    """One that takes back all of `undos`, last first."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


def put(mapping: MutableMapping, key: Any, value: Any) -> Undo:
    """Set `mapping[key]`, and put back what was there."""
    previous = mapping.get(key, _MISSING)
    mapping[key] = value

    def undo() -> None:
        if previous is _MISSING:
            del mapping[key]
        else:
            mapping[key] = previous

    return undo
