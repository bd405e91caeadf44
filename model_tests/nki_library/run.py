"""Runs nki-library's tests in simulation mode, a process per file and platform, with limits of time and memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from model_tests.nki_library.checkout import SOURCES, TESTS, Checkout
from model_tests.nki_library.outcomes import Journal, Outcome
from model_tests.nki_library.plugin_variables import DONE, LNC, RECORDS


PROJECT = Path(__file__).resolve().parents[2]

# A process that dies says in which test, and the next one goes on behind it.
_RESTARTS = 200

# pytest: all passed, some failed, a file could not be imported, nothing collected.
_ENDED = (0, 1, 2, 5)


@dataclass(frozen=True)
class Settings:
    """
    How to run.

    Args:
        platforms: their names for the targets, in this order; a test runs on the first that it supports.
        seconds: time limit of one test.
        gigabytes: address space of a process.
        large: run the tests as well that their simulation mode leaves out for their size.
        lnc: only kernels on so many cores.
        logs: folder for pytest's output.
        arguments: passed to pytest.
    """

    platforms: tuple[str, ...]
    seconds: int
    gigabytes: float
    large: bool
    lnc: int | None
    logs: Path
    arguments: list[str] = field(default_factory=list)


def run_files(checkout: Checkout, files: list[str], journal: Journal, settings: Settings) -> Iterator[list[Outcome]]:
    """The new outcomes of each file, as they end; they are in the journal already."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    for file in files:
        outcomes: list[Outcome] = []
        for platform in settings.platforms:
            outcomes += _run_file(checkout, file, platform, journal, settings)
        yield outcomes


def _run_file(checkout: Checkout, file: str, platform: str, journal: Journal, settings: Settings) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for _ in range(_RESTARTS):
        new, is_over = _run_once(checkout, file, platform, journal, settings)
        journal.add(new)
        outcomes += new
        if is_over:
            return outcomes
    raise RuntimeError(f"{_RESTARTS} processes for {file} have died: see {settings.logs}")


def _run_once(
    checkout: Checkout, file: str, platform: str, journal: Journal, settings: Settings
) -> tuple[list[Outcome], bool]:
    """What one process recorded, and whether it came to its end."""
    name = f"{file.replace('/', '-').removesuffix('.py')}-{platform}"
    log, records = settings.logs / f"{name}.log", settings.logs / f"{name}.jsonl"
    # A run that was interrupted left what it had.
    journal.add(_ended(records, file, platform)[0])
    with tempfile.TemporaryDirectory(prefix="nki-library-") as folder:
        done = Path(folder) / "done.json"
        done.write_text(json.dumps(sorted(journal.done(file, settings.large))))
        records.write_text("")
        with log.open("a") as output:
            ended_with = subprocess.run(
                _command(checkout, file, platform, Path(folder), settings),
                cwd=folder,
                env={**_variables(checkout, settings), DONE: str(done), RECORDS: str(records)},
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_limit(settings.gigabytes),
            ).returncode
    outcomes, died_in = _ended(records, file, platform)
    records.unlink()
    if died_in is None:
        if ended_with not in _ENDED:
            raise RuntimeError(f"pytest ended with {ended_with} outside a test of {file}: see {log}")
        return outcomes, True
    # The time limit ends the process with 1, a crash with a signal's number.
    stopped = ended_with == 1
    reason = f"more than {settings.seconds} s" if stopped else f"the process ended with {ended_with}"
    return [*outcomes, Outcome(died_in, file, platform, "stopped" if stopped else "failed", reason)], False


def _ended(records: Path, file: str, platform: str) -> tuple[list[Outcome], str | None]:
    """The outcomes in a file of records, and the test that has begun and not ended."""
    lines = [json.loads(line) for line in records.read_text().splitlines()] if records.is_file() else []
    outcomes = [Outcome.of_record(file, platform, line) for line in lines if line["event"] == "end"]
    is_open = bool(lines) and lines[-1]["event"] == "start"
    return [outcome for outcome in outcomes if not outcome.is_unasked], lines[-1]["test"] if is_open else None


def _command(checkout: Checkout, file: str, platform: str, folder: Path, settings: Settings) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"),
        *("-p", "model_tests.nki_library.plugin", "-c", str(checkout.path / "test/pytest.ini")),
        *("--rootdir", str(checkout.path), f"--timeout={settings.seconds}", "--timeout-method=thread"),
        *("--test-mode", "simulation", "--platform-target", platform, "--force-local-cleanup"),
        *("--output-directory", str(folder / "output"), str(checkout.path / TESTS / file), *settings.arguments),
    ]


def _variables(checkout: Checkout, settings: Settings) -> dict[str, str]:
    variables = {
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (checkout.path, checkout.path / SOURCES.parents[1], PROJECT))),
        # The same tests with the same parameters in every run: some are drawn at random.
        "PYTHONHASHSEED": "0",
        "NEURON_PYTHONHASHSEED": "0",
        # Nothing of a run stays in the checkout.
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "nki-library-bytecode"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        LNC: str(settings.lnc or ""),
    }
    if settings.large:
        variables["NKILIB_SIMULATION_RUN_ALL"] = "1"
    return variables


def _limit(gigabytes: float) -> Callable[[], None]:
    size = int(gigabytes * 2**30)
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))
