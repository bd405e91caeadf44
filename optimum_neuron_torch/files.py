"""Writing a file so that a reader sees the old content or the new one, never half of it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, text: str) -> Path:
    """Write `text` to `path` by way of a temporary file in the same directory."""
    with replacing(path) as temporary:
        temporary.write_text(text)
        temporary.chmod(0o644)
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path`, empty and for the user alone, which takes its place where the block succeeds."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
