"""The pytest plugin in the processes that run nki-library's tests: stand-ins first, then a record of each test.

`run.py` names it with `-p`, so it is imported before their conftest, and tells it by environment variables what to do.
A line is written when a test begins and one when it ends: so a process that dies says in which test.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from model_tests.nki_library.plugin_variables import DONE, LNC, RECORDS
from model_tests.nki_library.standins import install_standins
from optimum_neuron_torch.emulator.nki import simulation
from optimum_neuron_torch.emulator.nki.kernel import simulate


_records = Path(os.environ[RECORDS])
_done = frozenset(json.loads(Path(os.environ[DONE]).read_text()))
_wanted_lnc = os.environ.get(LNC)
_current: dict[str, Any] = {}


class _Recorded(simulate):
    """`nki.cpu_simulate` that notes on how many cores a test runs its kernels."""

    def __getitem__(self, lnc: Any) -> _Recorded:
        if _wanted_lnc and str(lnc) != _wanted_lnc:
            pytest.skip(f"not asked for: LNC {lnc}")
        _current.setdefault("lnc", []).append(int(lnc))
        return super().__getitem__(lnc)


install_standins()
sys.modules["nki"].cpu_simulate = _Recorded


def pytest_configure() -> None:
    # Their orchestrator asks, in simulation mode too, for what only compiling leaves on it.
    sys.modules["test.utils.test_orchestrator"].Orchestrator._compiled_kernel = None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has been run, after their own marks have left out other platforms."""
    dropped = [item for item in items if item.nodeid in _done]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item.nodeid not in _done]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(event="end", test=report.nodeid, status="not collected", message=_message(report), seconds=0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    _current.clear()
    _current.update(test=item.nodeid, status="passed", message="")
    _write(event="start", test=item.nodeid)
    started = time.perf_counter()
    with simulation() as reports:
        result = yield
    _current.setdefault("lnc", [])
    _write(
        event="end",
        **_current,
        instructions=sum(len(report.records) for report in reports),
        unwritten=sum(len(report.unwritten) for report in reports),
        simulated=round(sum(report.host_seconds for report in reports), 3),
        seconds=round(time.perf_counter() - started, 2),
    )
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and _current.get("status") == "passed":
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else _message(report)
        _current.update(status="xfailed" if hasattr(report, "wasxfail") else "skipped", message=reason)
    elif report.failed:
        _current.update(status="failed", message=_message(report), where=_where(report))


def _message(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return text.strip()[:1500] if crash is not None else text.strip()[-1500:]


def _where(report: Any) -> list[str]:
    """The lines of the innermost error's traceback that are in their kernels or in the simulator, last first."""
    chain = getattr(report.longrepr, "chain", None) or []
    places = []
    for traceback, *_ in chain[:1]:
        for entry in traceback.reprentries:
            place = getattr(entry, "reprfileloc", None)
            if place is not None:
                places.append(f"{place.path}:{place.lineno}")
    return places[-1:-7:-1]


def _write(**record: Any) -> None:
    with _records.open("a") as file:
        file.write(json.dumps(record) + "\n")
