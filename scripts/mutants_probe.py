"""Code inside the tests that scripts/mutants.py starts: beacons that note who reaches a line, and a pytest plugin.

Every process of the copy imports this when it starts, so it imports nothing heavy, keeps no descriptor open, and has
taken the functions it needs before a test could replace them. PYTEST_DONT_REWRITE: it asserts nothing.
"""

from __future__ import annotations

import builtins
import json
import os
from time import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

NOTES = os.path.splitext(__file__)[0] + ".txt"
"""The file that names where notes go: a child may have an environment of its own."""
_open, _read, _write, _close = os.open, os.read, os.write, os.close
_seen: set[tuple[int, str, int]] = set()
_began: dict[str, tuple[float, float]] = {}


def note(**facts: object) -> None:
    """Append one line to the notes; every line is one write, so that processes do not mix theirs."""
    try:
        named = _open(NOTES, os.O_RDONLY)
        target = _open(_read(named, 4096).decode(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        _write(target, json.dumps(facts).encode() + b"\n")
        _close(named)
        _close(target)
    except Exception:  # noqa: BLE001 - nowhere to write to, or the interpreter ends: no test may notice
        pass


def reached(site: int) -> None:
    """Note that a site is reached, and in which test; at most twice a second: a child may outlive its test."""
    try:
        now, test = time(), os.environ.get("PYTEST_CURRENT_TEST", "")
        key = (site, test, int(now * 2))
        if key not in _seen:
            _seen.add(key)
            note(site=site, test=test, at=now)
    except Exception:  # noqa: BLE001 - as above
        pass


builtins.__reached__ = reached  # type: ignore[attr-defined]


def _cpu() -> float:
    return sum(os.times()[:4])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the list that MUTANTS_ONLY names, in its order, and leave out those of MUTANTS_WITHOUT."""
    if only := os.environ.get("MUTANTS_ONLY"):
        with open(only, encoding="utf-8") as file:
            place = {name: n for n, name in enumerate(json.load(file))}
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )
    if without := os.environ.get("MUTANTS_WITHOUT"):
        with open(without, encoding="utf-8") as file:
            names = frozenset(json.load(file))
        items[:] = [item for item in items if item.nodeid not in names]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Take the time at which a test begins."""
    _began[nodeid] = (time(), _cpu())


def pytest_runtest_logreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Note the tests that fail."""
    if report.failed:
        note(failed=report.nodeid, why=str(report.longrepr).splitlines()[-1][:200])


pytest_collectreport = pytest_runtest_logreport
"""A file that cannot be imported is noted like a test that fails."""


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note how long a test has taken, on the clock and of the processor."""
    began, cpu = _began.pop(nodeid, (time(), _cpu()))
    note(ended=nodeid, began=began, at=time(), cpu=round(_cpu() - cpu, 3))


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End the run once it has used its time, MUTANTS_CAP: seconds of the processor, or four times that on the clock."""
    cap = float(os.environ.get("MUTANTS_CAP", "inf"))
    if _cpu() > cap or time() - _START > 4 * cap:
        item.session.shouldstop = "the time for this mutant is over"


_START = time()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write down which tests there are, if MUTANTS_LIST says where."""
    if listed := os.environ.get("MUTANTS_LIST"):
        with open(listed, "w", encoding="utf-8") as file:
            json.dump([item.nodeid for item in session.items], file)
