"""Runs pytest over test files of a checkout, a process per file, and repeats on the CPU what failed on the device."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from model_tests.upstream.checkout import DEVICE_SPEC, Checkout
from model_tests.upstream.outcomes import (
    Expectation,
    FileResult,
    Outcome,
    Status,
    apply_cpu,
    apply_expectations,
    read_junit,
)


# pytest: all passed, some failed, nothing collected. Everything else is a run that did not come to its end.
_ENDED = {0, 1, 5}
_TIMEOUT_OF_A_TEST = 900


@dataclass(frozen=True)
class Settings:
    """
    How to run.

    Args:
        device: `neuron` or `cpu`.
        logs: folder for pytest's output.
        own_sources: test the checkout's sources.
        plugin: import optimum_neuron_torch first.
        arguments: passed to pytest.
    """

    device: str
    logs: Path
    own_sources: bool = False
    plugin: bool = False
    arguments: list[str] = field(default_factory=list)


def run_suite(
    checkout: Checkout, files: list[str], settings: Settings, expectations: list[Expectation]
) -> Iterator[FileResult]:
    """One result per file, as they end."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    with checkout.workspace(settings.own_sources) as folder:
        for file in files:
            result = _run_file(checkout.library, file, folder, settings)
            apply_expectations(result, expectations)
            if failed := result.with_status(Status.FAILED):
                _compare_with_cpu(result, failed, folder, settings)
            print(f"{checkout.library} {file}: {result.summary()}", flush=True)
            yield result


def _run_file(library: str, file: str, folder: Path, settings: Settings) -> FileResult:
    started = time.monotonic()
    outcomes = _pytest(library, file, [file, *settings.arguments], settings.device, folder, settings)
    return FileResult(library, file, outcomes, time.monotonic() - started)


def _compare_with_cpu(result: FileResult, failed: list[Outcome], folder: Path, settings: Settings) -> None:
    if settings.device == "cpu":
        return
    tests = [outcome.test for outcome in failed if "::" in outcome.test]
    if tests:
        apply_cpu(result, _pytest(result.library, result.file, tests, "cpu", folder, settings))


def _pytest(
    library: str, file: str, arguments: list[str], device: str, folder: Path, settings: Settings
) -> list[Outcome]:
    name = f"{library}-{Path(file).stem}-{device}"
    junit, log = settings.logs / f"{name}.xml", settings.logs / f"{name}.log"
    junit.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    command += [f"--timeout={_TIMEOUT_OF_A_TEST}", f"--junitxml={junit}"]
    command += ["-p", "optimum_neuron_torch"] if settings.plugin and device == "neuron" else []
    with log.open("w") as output:
        done = subprocess.run(
            [*command, *arguments],
            cwd=folder,
            env=_variables(library, device),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    outcomes = read_junit(junit, file) if junit.is_file() else []
    if done.returncode not in _ENDED:
        what = f"pytest ended with {done.returncode} before its end: see {log}"
        outcomes.append(Outcome(file, Status.FAILED, what))
    return outcomes


def _variables(library: str, device: str) -> dict[str, str]:
    """Each suite's own switches: the device, the module to import for it, and the functions of that device."""
    prefix = library.upper()
    # A test runs each graph once or twice: on the emulated device, interpreting it takes less time than compiling it.
    defaults = {"HF_HUB_OFFLINE": "1", "NEURON_EMULATOR_EXECUTOR": "aten"}
    variables = {**defaults, **os.environ, f"{prefix}_TEST_DEVICE": device}
    for switch in ("BACKEND", "DEVICE_SPEC"):
        variables.pop(f"{prefix}_TEST_{switch}", None)
    if device == "neuron":
        variables |= {f"{prefix}_TEST_BACKEND": "torch_neuronx", f"{prefix}_TEST_DEVICE_SPEC": DEVICE_SPEC.name}
    return variables
