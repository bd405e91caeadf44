"""
Compiles the tables' architectures for the device, compares them with the CPU, and records what came out.

    python -m model_tests.architectures                      everything
    python -m model_tests.architectures BERT Llama           these; the others keep what was recorded
    python -m model_tests.architectures --family decoders    one family
    python -m model_tests.architectures --failed             again what did not pass when it was last recorded
    python -m model_tests.architectures Llama --json         print outcomes as JSON, record nothing
    python -m model_tests.architectures --page               nothing; write the page from what is recorded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from model_tests.architectures.document import ArchitectureRecords
from model_tests.architectures.outcome import Outcome
from model_tests.architectures.tables import every
from model_tests.architectures.worker import check_apart
from model_tests.recording import run


def main(arguments: Sequence[str]) -> int:
    return run(
        arguments,
        prog="python -m model_tests.architectures",
        description=__doc__,
        records=ArchitectureRecords.read(),
        known={name: family for name, (family, _) in every().items()},
        check=check_apart,
        line=_line,
        passed=lambda outcome: outcome.passed,
    )


def _line(name: str, outcome: Outcome) -> str:
    words = ["passed" if outcome.passed else "FAILED", name, f"{outcome.seconds:.0f} s"]
    for step in outcome.steps:
        words.append(f"{step.graphs} graphs, {step.nodes} nodes, difference {step.difference}")
        if step.reason:
            words.append(step.reason)
    return " | ".join(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
