"""
Runs models with their NKI kernels in the simulator, compares them with the CPU, and records what came out.

    python -m model_tests.kernels                       everything
    python -m model_tests.kernels Llama "Gemma 2"       these; the others keep what was recorded
    python -m model_tests.kernels --section decoders    one section
    python -m model_tests.kernels --missing             what was never recorded: goes on with a stopped run
    python -m model_tests.kernels --failed              again what was wrong when it was last recorded
    python -m model_tests.kernels Llama --json          print outcomes as JSON, record nothing
    python -m model_tests.kernels --page                nothing; write the page from what is recorded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from model_tests.kernels.document import KernelRecords
from model_tests.kernels.outcome import Outcome
from model_tests.kernels.worker import check_apart, sections_by_name
from model_tests.recording import run


def main(arguments: Sequence[str]) -> int:
    return run(
        arguments,
        prog="python -m model_tests.kernels",
        description=__doc__,
        records=KernelRecords.read(),
        known=sections_by_name(),
        check=check_apart,
        line=_line,
        passed=lambda outcome: not outcome.is_wrong,
    )


def _line(name: str, outcome: Outcome) -> str:
    words = ["WRONG" if outcome.is_wrong else "ok", name, f"{outcome.seconds:.0f} s"]
    for cell_name, cell in outcome.cells.items():
        kernels = ", ".join(f"{kernel} {runs}" for kernel, runs in cell.kernels.items())
        words.append(" ".join(filter(None, [f"{cell_name} {cell.state} {cell.difference}", kernels, cell.reason])))
    return " | ".join(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
