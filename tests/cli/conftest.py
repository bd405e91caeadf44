"""Runs `optimum-cli` in this process, as its entry point would."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from optimum.commands import optimum_cli


@dataclass(frozen=True)
class Outcome:
    """What a command line ended with."""

    code: int
    out: str
    err: str


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., Outcome]:
    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["optimum-cli", *arguments])
        try:
            optimum_cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
