"""Runs one case: `python -m model_tests.nki_examples.run PATH NAME` ends with 0 if it is as it should be."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from model_tests.nki_examples.cases import CASES, Block, Script


STAND_INS = Path(__file__).with_name("stand_ins")
# `.. code-block:: python` and all that is indented more than it.
_CODE_BLOCK = re.compile(r"^( *)\.\. code-block::[^\n]*\n((?:\1 +[^\n]*\n|[ \t]*\n)+)", re.MULTILINE)


class NotThereError(LookupError):
    """The documentation has no such kernel (any more)."""


def run(folder: Path, case: Script | Block) -> None:
    """Raises where the case is not as it should be."""
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = case.platform
    sys.path[:0] = [str(STAND_INS), str((folder / case.file).parent)]
    from optimum_neuron_torch.emulator.nki import install

    install()
    try:
        check = _run_script if isinstance(case, Script) else _run_block
        check(folder, case)
    except (NotThereError, AssertionError):
        raise
    except Exception as error:
        if not case.refused or case.refused not in str(error):
            raise
        return
    if case.refused:
        raise AssertionError(f"it ran; expected was an error that says {case.refused!r}")


def _run_script(folder: Path, case: Script) -> None:
    path = folder / case.file
    if not path.is_file():
        raise NotThereError(f"{path} does not exist")
    sys.argv = [str(path), *case.arguments]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path(str(path), run_name="__main__")
    if case.check is not None:
        case.check(names, printed.getvalue())


def _run_block(folder: Path, case: Block) -> None:
    import nki
    import nki.isa as nisa
    import nki.language as nl

    names: dict[str, Any] = {"nki": nki, "nl": nl, "nisa": nisa, "__name__": "block"}
    code = _code(folder, case)
    for old, new in case.replaces.items():
        code = code.replace(old, new)
    arguments = case.inputs()
    names["data"] = arguments[0]  # what blocks that call their kernel call it on
    exec(compile(code, f"{case.file}: {case.kernel}", "exec"), names)
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = case.platform
    expected = case.expected(*arguments) if case.expected is not None else None
    results = nki.simulate(names[case.kernel])[case.lnc](*arguments)
    if case.is_in_place:
        results = arguments[-1]
    _compare(results, expected, case.tolerance)


def _code(folder: Path, case: Block) -> str:
    text = (folder / case.file).read_text()
    blocks = [textwrap.dedent(match[2]).strip("\n") for match in _CODE_BLOCK.finditer(text)]
    found = [block for block in blocks if re.search(rf"^def {case.kernel}\(", block, re.MULTILINE)]
    if len(found) <= case.occurrence:
        raise NotThereError(f"{case.file} has {len(found)} code blocks that define {case.kernel}")
    # The last block of a docstring ends with the docstring.
    return found[case.occurrence].split('"""\n...')[0].removesuffix('"""')


def _compare(results: Any, expected: Any, tolerance: float) -> None:
    results, expected = (value if isinstance(value, tuple) else (value,) for value in (results, expected))
    for result, wanted in zip(results, expected, strict=True):
        wanted = np.asarray(wanted, dtype=np.float32)
        scale = float(np.abs(wanted).max())
        np.testing.assert_allclose(
            np.asarray(result, dtype=np.float32), wanted, rtol=tolerance, atol=tolerance * scale
        )


if __name__ == "__main__":
    run(Path(sys.argv[1]), CASES[sys.argv[2]])
