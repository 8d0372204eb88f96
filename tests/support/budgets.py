"""The table of seconds by area that ends a test run, and `--budget`, which holds them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pytest

TOLERANCE = 1.25


@dataclass(frozen=True)
class Area:
    """Rooms whose tests share a budget: seconds of the processes that run them, setup of fixtures included."""

    name: str
    budget_s: int
    starts: tuple[str, ...]


AREAS = (
    Area(
        "engine",
        500,
        (
            *("tests/commit/", "tests/compaction/", "tests/conformance/", "tests/format/", "tests/log/"),
            *("tests/models/", "tests/read/", "tests/recovery/", "tests/segments/"),
            *("tests/state/", "tests/storage/"),
            *("tests/test_interrupt_points", "tests/test_invariants", "tests/test_store"),
        ),
    ),
    Area("replication, simulate", 250, ("tests/replication/", "tests/simulate/")),
    Area("spark", 330, ("tests/spark/",)),
    Area("crashlab", 120, ("tests/crashlab/",)),
    Area(
        "notebooks, site, docs, pages",
        260,
        ("tests/notebooks/", "tests/site/", "tests/test_docs", "tests/test_pages"),
    ),
    Area("dashboards, views, lab", 330, ("tests/dashboards/", "tests/lab/", "tests/views/")),
    Area("cli, demo, workload, rest", 260, ("tests/",)),
)
"""In this order: a test belongs to the first area that names its beginning."""


def area_of(nodeid: str) -> str:
    """Return the name of the area of a test."""
    return next(area.name for area in AREAS if nodeid.startswith(area.starts))


class Spent:
    """Collects the seconds of each area in the process that reports, whichever process ran a test."""

    def __init__(self, held: bool) -> None:
        self.held = held
        self.seconds: dict[str, float] = defaultdict(float)
        self.tests: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        if report.nodeid.startswith("tests/"):
            self.seconds[area_of(report.nodeid)] += report.duration
            self.tests[area_of(report.nodeid)].add(report.nodeid)

    def over(self) -> list[str]:
        """Return the areas that took more than their budget and its tolerance."""
        return [area.name for area in AREAS if self.seconds[area.name] > TOLERANCE * area.budget_s]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run that is over its budget, if that was asked for."""
        if self.held and self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        if sum(map(len, self.tests.values())) < 2:
            return
        terminalreporter.section("seconds by area")
        terminalreporter.line(f"{'area':30}{'seconds':>8}{'budget':>8}{'tests':>8}")
        for area in AREAS:
            mark = f"  over by more than {TOLERANCE - 1:.0%}" if area.name in self.over() else ""
            spent, tests = self.seconds[area.name], len(self.tests[area.name])
            terminalreporter.line(f"{area.name:30}{spent:8.0f}{area.budget_s:8}{tests:8}{mark}")
        whole = (
            sum(self.seconds.values()),
            sum(area.budget_s for area in AREAS),
            sum(map(len, self.tests.values())),
        )
        terminalreporter.line(f"{'all':30}{whole[0]:8.0f}{whole[1]:8}{whole[2]:8}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--budget`."""
    parser.addoption("--budget", action="store_true", help="fail if an area takes over 125 %% of its seconds")


def pytest_configure(config: pytest.Config) -> None:
    """Count where the reports of all processes come together."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Spent(config.getoption("budget")), "seconds by area")
