"""Which source a kernel is made of, as a digest: the file of a function, and what that imports of its project.

Read from the files alone, without importing anything, so that every process gets the same answer.
"""

import ast
import hashlib
import inspect
import marshal
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any


_EMULATOR_DIR = Path(__file__).resolve().parents[1]
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
# Large, and told apart by its version wherever a digest counts.
_TORCH = "torch"
_DIGEST_LENGTH = 16


def source_digest(function: Callable[..., Any]) -> str:
    """The digest of what `function` may run: its file, and those it imports of its package, or from beside itself.

    A function without a file (of a notebook, or made by `exec`) has the digest of its own code.
    """
    if (file := source_file(function)) is not None:
        return _digest_of(file, file.stat().st_mtime_ns)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else hashlib.sha256(marshal.dumps(code)).hexdigest()[:_DIGEST_LENGTH]


def source_file(function: Callable[..., Any]) -> Path | None:
    """The file that defines a function; None where it is in none."""
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")
    except TypeError:  # written in C
        return None
    return file.resolve() if file.is_file() else None


@cache
def _digest_of(file: Path, _modified: int) -> str:
    """Cached until the file itself changes, and its module may be loaded again."""
    top = _folder_of_packages(file)
    digest = hashlib.sha256()
    for path in sorted(_reached(file, top)):
        digest.update(f"{path.relative_to(top)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGEST_LENGTH]


def _folder_of_packages(file: Path) -> Path:
    """Where the top-level package of a file lies; the file's own folder for a module that is in none."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _reached(start: Path, top: Path) -> set[Path]:
    """`start` and the files below `top` that it imports, and they in turn; of installed ones those of its package."""
    is_installed = any(top.is_relative_to(folder) for folder in _INSTALLED)
    own = start.relative_to(top).parts[0]
    if is_installed and own == _TORCH:
        return {start}
    waiting, found = [start], {start}
    while waiting:
        for path in _imported_files(waiting.pop(), top):
            is_foreign = is_installed and path.relative_to(top).parts[0] != own
            if path not in found and not is_foreign and not path.is_relative_to(_EMULATOR_DIR):
                found.add(path)
                waiting.append(path)
    return found


def _imported_files(file: Path, top: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(top, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = top if not node.level else file.parents[node.level - 1]
            base = [part for part in (node.module or "").split(".") if part]
            if start.is_relative_to(top):
                for alias in node.names:
                    yield from _files_of(start, [*base, alias.name])


def _files_of(folder: Path, names: list[str]) -> Iterator[Path]:
    """The file of the module that names lead to from a folder, the last of them perhaps to something in it.

    Of packages on the way nothing is asked: a kernel computes the same whatever they hold besides.
    """
    package = folder / "__init__.py"
    for name in names:
        if (folder / f"{name}.py").is_file():
            yield folder / f"{name}.py"
            return
        if not (folder / name).is_dir():
            break
        folder /= name
        package = folder / "__init__.py"
    if package.is_file():
        yield package
