"""What is known of calls of one form: how the outputs are nested and sized, and which axes may be padded. Kept on disk
beside the model's graphs, so that it is found out once.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from .. import runtime
from ..files import write_atomically
from .axes import DimRule, OutputRules
from .sources import NoSourceError, digests, versions


logger = logging.getLogger(__name__)

FOLDER = "layouts"
FORMAT = 1
CONSTANTS = (bool, int, float, str, type(None))


class Tensor:
    """Stands for a tensor among an output's leaves."""

    def __repr__(self) -> str:
        return "<tensor>"


TENSOR = Tensor()


@dataclass(frozen=True)
class Structure:
    """How an output is nested: its tree and its leaves, TENSOR where a tensor goes."""

    tree: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, output: Any) -> "Structure":
        leaves, tree = pytree.tree_flatten(output)
        return cls(tree, tuple(TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves))

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        tensors = iter(tensors)
        return pytree.tree_unflatten([next(tensors) if leaf is TENSOR else leaf for leaf in self.leaves], self.tree)

    def foreign(self) -> str | None:
        """The name of a type among the leaves that is neither a tensor nor a constant, or None."""
        for leaf in self.leaves:
            if leaf is not TENSOR and not isinstance(leaf, CONSTANTS):
                return type(leaf).__name__
        return None


@dataclass(frozen=True)
class Layout:
    """The rules of calls of one form.

    Attributes: dims: the axes of the inputs' dimensions. rules: the sizes of the outputs. unpadded: axes that run at
    their own size, each with the reason.
    """

    dims: dict[str, tuple[str | None, ...]]
    rules: OutputRules
    structure: Structure
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
        "tree": pytree.treespec_dumps(verdict.structure.tree),
        "leaves": [None if leaf is TENSOR else [leaf] for leaf in verdict.structure.leaves],
        "unpadded": verdict.unpadded,
    }


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
        leaves = tuple(TENSOR if leaf is None else leaf[0] for leaf in data["leaves"])
        structure = Structure(pytree.treespec_loads(data["tree"]), leaves)
        dims = {path: tuple(axes) for path, axes in data["dims"].items()}
        return Layout(dims, rules, structure, data["unpadded"])
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file, an output type that is not loaded
        logger.info("%s cannot be read, what it says is found out anew: %s", path, error)
        return None
