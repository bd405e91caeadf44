"""
Compares generate() on the device, in buckets, with generate() on the CPU, and records what came out.

    python -m model_tests.generation                        everything
    python -m model_tests.generation LlamaForCausalLM       this; the others keep what was recorded
    python -m model_tests.generation --section causal       one section
    python -m model_tests.generation --missing              what was never recorded: goes on with a stopped run
    python -m model_tests.generation --failed               again what was wrong when it was last recorded
    python -m model_tests.generation Llama --json           print outcomes as JSON, record nothing
    python -m model_tests.generation --page                 nothing; write the page from what is recorded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from model_tests.generation.document import GenerationRecords
from model_tests.generation.outcome import Outcome
from model_tests.generation.worker import check_apart, sections_by_name
from model_tests.recording import run


def main(arguments: Sequence[str]) -> int:
    return run(
        arguments,
        prog="python -m model_tests.generation",
        description=__doc__,
        records=GenerationRecords.read(),
        known=sections_by_name(),
        check=check_apart,
        line=_line,
        passed=lambda outcome: not outcome.is_wrong,
    )


def _line(name: str, outcome: Outcome) -> str:
    words = ["WRONG" if outcome.is_wrong else "ok", name, f"{outcome.seconds:.0f} s"]
    if outcome.unmade:
        words.append(f"not made: {outcome.unmade}")
    for cell_name, cell in outcome.cells.items():
        graphs = f"{cell.graphs}+{cell.grown} graphs"
        words.append(" ".join(filter(None, [f"{cell_name} {cell.state} {cell.difference} {graphs}", cell.reason])))
    return " | ".join(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
