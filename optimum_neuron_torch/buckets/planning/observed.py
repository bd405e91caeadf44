"""Reading observed input sizes: sequences, arrays, and files in the forms that logs come in."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


_NAMES = ("batch", "sequence")
_SEPARATORS = re.compile(r"[,;\s]+")


def read_sizes(source: Sequence | str | os.PathLike) -> np.ndarray:
    """Observed sizes as an array: lengths (N,), or (batch, sequence) pairs (N, 2).

    Files: `.json` with a list; anything else line by line: numbers or pairs (separated by commas, semicolons or
    blanks, below a header or not), or JSON: numbers, pairs, or objects with `sequence` and, for pairs, `batch`.

    Raises ValueError for what is none of these, with the line, and for sizes that are no positive integers.
    """
    if not isinstance(source, (str, os.PathLike)):
        return _checked(source.tolist() if hasattr(source, "tolist") else source)
    path = Path(source)
    try:
        if path.suffix != ".json":
            return _checked(_lines(path.read_text().splitlines()))
        return _checked(json.loads(path.read_text()))
    except ValueError as error:
        kind = "a JSON list of sizes" if path.suffix == ".json" else "a list of sizes, one or one pair a line"
        raise ValueError(f"{path} is not {kind}: {error}") from error


def _checked(sizes: Any) -> np.ndarray:
    is_list = isinstance(sizes, Iterable) and not isinstance(sizes, (str, dict))
    sizes = [_plain(size) for size in sizes] if is_list else []
    rows = [size if isinstance(size, (tuple, list)) else (size,) for size in sizes]
    if not rows:
        raise ValueError("observed sizes must be a non-empty list of positive integers, or of (batch, sequence) pairs")
    width = len(rows[0])
    for place, row in enumerate(rows):
        if len(row) != width or width not in (1, 2) or not all(type(size) is int and size > 0 for size in row):
            raise ValueError(
                f"observed sizes must be a list of positive integers, or of (batch, sequence) pairs: entry {place} is "
                f"{sizes[place]!r}"
            )
    array = np.asarray(rows, dtype=np.int64)
    return array[:, 0] if width == 1 else array


def _plain(size: Any) -> Any:
    """A size as Python numbers, from what a list may hold."""
    if isinstance(size, dict):
        missing = [name for name in size if name not in _NAMES]
        if missing or "sequence" not in size:
            raise ValueError(f"{size}: expected the keys 'sequence' and, for pairs, 'batch'")
        return [size[name] for name in _NAMES if name in size]
    return size.tolist() if hasattr(size, "tolist") else size


def _lines(lines: list[str]) -> list[Any]:
    sizes, columns = [], None
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        if line[0] in "[{":
            sizes.append(json.loads(line))
            continue
        fields = [field for field in _SEPARATORS.split(line) if field]
        if not sizes and columns is None and not any(map(_is_number, fields)):
            columns = _columns(fields)
            continue
        try:
            row = [int(field) for field in fields]
            row = row if columns is None else [row[column] for column in columns]
        except (ValueError, IndexError):
            raise ValueError(f"line {number} is {line[:80]!r}") from None
        sizes.append(row[0] if len(row) == 1 else row)
    return sizes


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _columns(header: list[str]) -> list[int] | None:
    """The places of the columns named batch and sequence; None takes all of one or two columns as they are."""
    names = [name.strip("\"'#").lower() for name in header]
    if "sequence" in names:
        return [names.index(name) for name in _NAMES if name in names]
    if len(names) == 1:
        return None
    raise ValueError(f"a header of {len(names)} columns must name 'sequence' and, for pairs, 'batch': {header}")
