"""A replaced attribute of PyTorch, and a table of them that is put in place and taken back as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Patch:
    """
    One attribute of PyTorch, or one entry of a table of pickling functions, replaced.

    Args:
        owner: what holds the attribute, or the table.
        name: the attribute, or the key.
        wrap: makes the replacement from the original.
        until: what upstream change would make the patch unnecessary.
    """

    owner: Any
    name: Any
    wrap: Callable[[Any], Any]
    until: str

    def read(self) -> Any:
        return self.owner.get(self.name) if isinstance(self.owner, MutableMapping) else getattr(self.owner, self.name)

    def write(self, value: Any) -> None:
        if not isinstance(self.owner, MutableMapping):
            setattr(self.owner, self.name, value)
        elif value is None:
            del self.owner[self.name]
        else:
            self.owner[self.name] = value


class PatchTable:
    """Patches that come and go together."""

    def __init__(self, patches: Iterable[Patch]) -> None:
        self.patches = tuple(patches)
        self._originals: dict[Patch, Any] = {}

    def install(self, *, where_found: bool = False) -> None:
        """Apply all patches; a second call does nothing. `where_found` leaves out those of names that do not exist."""
        for patch in self.patches:
            if patch in self._originals or (where_found and not hasattr(patch.owner, patch.name)):
                continue
            self._originals[patch] = patch.read()
            patch.write(patch.wrap(self._originals[patch]))

    def uninstall(self) -> None:
        """Put the originals back."""
        while self._originals:
            patch, original = self._originals.popitem()
            patch.write(original)
