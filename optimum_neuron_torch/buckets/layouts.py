"""What is known of calls of one form: how the outputs are nested and sized, and which axes may be padded. Kept on disk
beside the model's graphs, so that it is found out once.
"""

import hashlib
import json
import logging
import operator
import sys
from collections import UserDict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import runtime
from ..files import write_atomically
from .axes import DimRule, OutputRules
from .flat import Container, Form, Slot
from .sources import NoSourceError, digests, versions


logger = logging.getLogger(__name__)

FOLDER = "layouts"
FORMAT = 1


@dataclass(frozen=True)
class Layout:
    """The rules of calls of one form.

    Attributes: dims: the axes of the inputs' dimensions. rules: the sizes of the outputs. unpadded: axes that run at
    their own size, each with the reason. output: how the outputs are nested.
    """

    dims: dict[str, tuple[str | None, ...]]
    rules: OutputRules
    output: Form
    unpadded: dict[str, str] = field(default_factory=dict)


# A refusal: why calls of a form run at exact shapes.
Verdict = Layout | str


class LayoutStore:
    """The layouts of one module, in memory and on disk.

    The files hold no code and no weights. They are for one state of the module, one set of versions and sources.
    """

    def __init__(self) -> None:
        self._known: dict[tuple, Verdict] = {}

    def get(self, key: tuple, module: torch.nn.Module) -> Verdict | None:
        found = self._known.get(key)
        if found is None and (path := self._path(key, module)) is not None:
            found = _read(path)
            if found is not None:
                self._known[key] = found
        return found

    def put(self, key: tuple, module: torch.nn.Module, verdict: Verdict) -> None:
        self._known[key] = verdict
        path = self._path(key, module)
        if path is not None:
            _write(path, verdict)

    def _path(self, key: tuple, module: torch.nn.Module) -> Path | None:
        if runtime.graph_directory() is None:  # none that others cannot write to
            return None
        try:
            sources = digests({type(part).__module__ for part in module.modules()})
        except NoSourceError:
            return None
        facts = repr((FORMAT, versions(), sources, key))
        return runtime.cache_dir() / FOLDER / f"{hashlib.sha256(facts.encode()).hexdigest()[:40]}.json"


def _write(path: Path, verdict: Verdict) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, json.dumps(_plain(verdict)) + "\n")
    except (OSError, NotImplementedError, TypeError, ValueError) as error:  # a full disk, an output of an unknown type
        logger.info("a layout was not stored: %s", error)


def _plain(verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, str):
        return {"format": FORMAT, "reason": verdict}
    return {
        "format": FORMAT,
        "dims": verdict.dims,
        "rules": [[asdict(rule) for rule in output] for output in verdict.rules],
        "output": _plain_form(verdict.output),
        "unpadded": verdict.unpadded,
    }


def _plain_form(form: Form) -> Any:
    """Raises TypeError for a constant that JSON has no form of."""
    if isinstance(form, Slot):
        return {"slot": form.index}
    if isinstance(form, Container):
        kind = f"{form.kind.__module__}:{form.kind.__qualname__}"
        return {"kind": kind, "keys": form.keys, "forms": [_plain_form(part) for part in form.forms]}
    if not isinstance(form, (bool, int, float, str, type(None))):
        raise TypeError(f"a {type(form).__name__} is not stored")
    return {"constant": form}


def _form(data: dict[str, Any]) -> Form:
    """The inverse. Only classes that are loaded are looked up, and only containers among them."""
    if "slot" in data:
        return Slot(data["slot"])
    if "kind" not in data:
        return data["constant"]
    module, _, name = data["kind"].partition(":")
    kind = operator.attrgetter(name)(sys.modules[module])
    if not (isinstance(kind, type) and issubclass(kind, (dict, UserDict, list, tuple))):
        raise TypeError(f"{data['kind']} is no container")
    return Container(kind, tuple(data["keys"]), tuple(map(_form, data["forms"])))


def _read(path: Path) -> Verdict | None:
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            return None
        if "reason" in data:
            return data["reason"]
        rules = tuple(
            tuple(DimRule(**{**rule, "axes": tuple(rule["axes"])}) for rule in output) for output in data["rules"]
        )
        dims = {path: tuple(axes) for path, axes in data["dims"].items()}
        return Layout(dims, rules, _form(data["output"]), data["unpadded"])
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file, an output type that is not loaded
        logger.info("%s cannot be read, what it says is found out anew: %s", path, error)
        return None
