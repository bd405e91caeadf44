"""
Runs the kernels of the Neuron documentation on the simulator, from a checkout of it, each in a process of its own.

    python -m model_tests.nki_examples PATH [NAME ...]

PATH is the folder `nki` of aws-neuron-sdk. Kernels run as they are printed; those few that run with a word replaced
say so in their name. Ends with 1 where one is not as it should be.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from model_tests.nki_examples.cases import CASES


SECONDS = 300


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model_tests.nki_examples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", type=Path, help="the folder nki of a checkout of aws-neuron-sdk")
    parser.add_argument("names", nargs="*", help="parts of names (default: all)")
    options = parser.parse_args(arguments)
    if not (options.path / "examples").is_dir():
        parser.error(f"{options.path} has no folder examples: give the folder nki of a checkout of aws-neuron-sdk")
    wanted = [name for name in CASES if not options.names or any(part in name for part in options.names)]
    if not wanted:
        parser.error(f"no case has {' or '.join(options.names)} in its name")
    failures = [name for name in wanted if not _passes(options.path.resolve(), name)]
    print(f"{len(wanted) - len(failures)} of {len(wanted)} as they should be")
    return int(bool(failures))


def _passes(path: Path, name: str) -> bool:
    command = [sys.executable, "-m", "model_tests.nki_examples.run", str(path), name]
    variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS)
        message = "" if done.returncode == 0 else "\n".join(done.stderr.strip().splitlines()[-4:])
    except subprocess.TimeoutExpired:
        message = f"no end after {SECONDS} s"
    refusal = "refused, as it should be" if CASES[name].refused else "passed"
    print(f"FAILED  {name}\n{message}" if message else f"{refusal}: {name}", flush=True)
    return not message


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
