"""Digests of Python sources: what a stored function was traced from has to be what would be traced now."""

import contextlib
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


PACKAGE = Path(__file__).resolve().parents[1]
# Their code, or what they register, is traced into graphs.
_TRACED_DISTRIBUTIONS = ("torch", "transformers", "diffusers", "accelerate", "peft", "kernels")


class NoSourceError(LookupError):
    """A module has no source file: what is traced from it cannot be recognised later."""


def digests(modules: Iterable[str]) -> dict[str, str]:
    """The digest of each module's source file. Raises NoSourceError for a module without one."""
    return {name: _digest_of_module(name) for name in sorted(modules)}


def are_unchanged(expected: dict[str, str]) -> bool:
    """Whether every module's source still has the digest it had."""
    try:
        return all(_digest_of_module(name) == digest for name, digest in expected.items())
    except NoSourceError:
        return False


@functools.cache
def versions() -> tuple[str, ...]:
    """Python and the distributions that graphs are traced from, with the plugin's own sources as one digest."""
    found = [f"python {'.'.join(map(str, sys.version_info[:3]))}", f"plugin {_own_digest()}"]
    for name in _TRACED_DISTRIBUTIONS:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return tuple(found)


def _own_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        # The emulator stands for a package of its own, which names its version itself.
        if path.relative_to(PACKAGE).parts[0] not in ("emulator", "cli"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _digest_of_module(name: str) -> str:
    path = _file_of(name)
    status = path.stat()
    return _digest_of_file(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4096)
def _digest_of_file(path: Path, modified: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _file_of(name: str) -> Path:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
            file = spec.origin if spec else None
    if name == "__main__" or file is None or not Path(file).is_file():
        raise NoSourceError(f"module {name!r} has no source file that another process could find")
    return Path(file)
