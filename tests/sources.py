"""The project's own Python files, parsed: what tests of the sources ask about."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


ROOT = Path(__file__).parent.parent
PACKAGE = "optimum_neuron_torch"


@dataclass(frozen=True)
class Import:
    """One module, by its absolute name, that a line imports."""

    line: int
    target: str

    def within(self, *packages: str) -> bool:
        return any(self.target == package or self.target.startswith(f"{package}.") for package in packages)


@dataclass(frozen=True)
class SourceFile:
    """A parsed file and the dotted name it is imported by."""

    module: str
    tree: ast.Module
    is_package: bool = False

    @classmethod
    def read(cls, path: Path) -> "SourceFile":
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        return cls(module, ast.parse(path.read_text(), str(path)), is_package)

    @property
    def room(self) -> str:
        """The first part below the package, as `buckets`; "" for the package itself."""
        return self.module.removeprefix(PACKAGE).strip(".").split(".")[0]

    def imports(self) -> Iterator[Import]:
        """Imports anywhere in the file: in functions, for type checkers, and by name through importlib as well."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (Import(node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                origin = self._absolute(node.module or "", node.level)
                yield from (Import(node.lineno, f"{origin}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Call) and called_name(node) in ("import_module", "__import__") and node.args:
                name = leading_text(node.args[0])
                level = len(name) - len(name.lstrip("."))
                yield Import(node.lineno, self._absolute(name.lstrip("."), level))

    def _absolute(self, name: str, level: int) -> str:
        if level == 0:
            return name
        parts = self.module.split(".")
        parts = parts[: len(parts) - level + self.is_package]
        return ".".join([*parts, name] if name else parts)


def called_name(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def leading_text(node: ast.expr) -> str:
    """The text a string or f-string begins with, as far as it is constant."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def sources(*folders: str) -> list[Path]:
    """All Python files below folders of the checkout."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
