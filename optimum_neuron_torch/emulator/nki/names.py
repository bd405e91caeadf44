"""What `nki.language` and `nki.isa` say of names that they do not have."""

import difflib
import sys
from typing import Self

from .errors import NkiError


ALIASES = {"nki.language": "nl", "nki.isa": "nisa", "nki": "nki"}


class MissingNameError(NkiError, AttributeError):
    """A name that is gone or never was. An AttributeError too, so that `hasattr` says no."""

    @classmethod
    def of(cls, module: str, name: str, removed: dict[str, str]) -> Self:
        """The error for `module.name`; `removed` says what to write instead of names that are gone."""
        full_name = f"{ALIASES[module]}.{name}"
        if name in removed:
            return cls(f"{full_name} is gone: {removed[name]}")
        close = difflib.get_close_matches(name, _public_names(module), n=3)
        hint = f"; there are {', '.join(close)}" if close else ""
        return cls(f"module {module!r} has no attribute {name!r}: {full_name} does not exist{hint}")


def _public_names(module: str) -> list[str]:
    return [name for name in vars(sys.modules.get(module, object)) if not name.startswith("_")]
