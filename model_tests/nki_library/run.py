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

from model_tests.nki_library import plugin_variables
from model_tests.nki_library.checkout import SOURCES, TESTS, Checkout
from model_tests.nki_library.outcomes import Journal, Outcome


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
        new, died_in = _run_once(checkout, file, platform, journal, settings)
        journal.add(new)
        outcomes += new
        if died_in is None:
            return outcomes
        killed = Outcome(died_in, file, platform, "stopped", f"more than {settings.seconds} s, or the process died")
        journal.add([killed])
        outcomes.append(killed)
    return outcomes


def _run_once(
    checkout: Checkout, file: str, platform: str, journal: Journal, settings: Settings
) -> tuple[list[Outcome], str | None]:
    """What one process recorded, and the test that it died in."""
    with tempfile.TemporaryDirectory(prefix="nki-library-") as name:
        folder = Path(name)
        done = journal.done(file, settings.large)
        (folder / "done.json").write_text(json.dumps(sorted(done)))
        (folder / "records.jsonl").touch()
        log = settings.logs / f"{file.replace('/', '-').removesuffix('.py')}-{platform}.log"
        with log.open("a") as output:
            ended_with = subprocess.run(
                _command(checkout, file, platform, folder, settings),
                cwd=folder,
                env=_variables(checkout, folder, settings),
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_limit(settings.gigabytes),
            ).returncode
        lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    ended = [Outcome.of_record(file, platform, line) for line in lines if line["event"] == "end"]
    last = lines[-1] if lines else None
    died_in = last["test"] if last is not None and last["event"] == "start" else None
    if died_in is None and ended_with not in _ENDED:
        raise RuntimeError(f"pytest ended with {ended_with} outside a test of {file}: see {log}")
    return [outcome for outcome in ended if not outcome.is_unasked], died_in


def _command(checkout: Checkout, file: str, platform: str, folder: Path, settings: Settings) -> list[str]:
    return [
        *(sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"),
        *("-p", "model_tests.nki_library.plugin", "-c", str(checkout.path / "test/pytest.ini")),
        *("--rootdir", str(checkout.path), f"--timeout={settings.seconds}", "--timeout-method=thread"),
        *("--test-mode", "simulation", "--platform-target", platform, "--force-local-cleanup"),
        *("--output-directory", str(folder / "output"), str(checkout.path / TESTS / file), *settings.arguments),
    ]


def _variables(checkout: Checkout, folder: Path, settings: Settings) -> dict[str, str]:
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
        plugin_variables.RECORDS: str(folder / "records.jsonl"),
        plugin_variables.DONE: str(folder / "done.json"),
        plugin_variables.LNC: str(settings.lnc or ""),
    }
    if settings.large:
        variables["NKILIB_SIMULATION_RUN_ALL"] = "1"
    return variables


def _limit(gigabytes: float) -> Callable[[], None]:
    size = int(gigabytes * 2**30)
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))
