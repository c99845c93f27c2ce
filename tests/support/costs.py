"""Which tests cost most, in CPU seconds: a busy machine doubles the time that a test takes, and hardly these."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

MUCH = 3.0
"""CPU seconds from which a test is marked in the report: what costs more is for `make slow`."""

_START = pytest.StashKey[float]()


def spent() -> float:
    """CPU seconds of this process and of all that it has waited for, with those that its fork server has."""
    mine = sum(os.times()[:4])
    server: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is None:
        return mine
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    return mine + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costliest", type=int, default=0, metavar="N", help="list the N tests that cost most CPU")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_START] = spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu", spent() - item.stash.get(_START, spent())))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the costliest tests, with a mark at those over `MUCH` that are not slow by name."""
    count = terminalreporter.config.getoption("costliest")
    found = sorted(
        (dict(report.user_properties)["cpu"], report.nodeid, "slow" in report.keywords)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
    )
    if not count or not found:
        return
    terminalreporter.section(f"costliest tests, of {sum(cost for cost, *_ in found):,.0f} s of CPU in all")
    for cost, name, is_slow in reversed(found[-count:]):
        mark = "" if is_slow or cost <= MUCH else f"  over {MUCH:g} s: make it cheaper, or slow"
        terminalreporter.line(f"{cost:6.1f} s {name}{mark}")
