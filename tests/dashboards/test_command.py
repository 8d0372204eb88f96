"""`walkit dashboard`: from an installed package, on given logs and Runs, ended by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

import walkit
from scripts.browsing import ROOT, Seen
from tests.measure.runs import make_run
from tests.views.waiting import until
from walkit.errors import CorruptionError, NotALogError, StorageError
from walkit.views import given, serve
from walkit.views.page import make_shell
from walkit.views.page_inspector import InspectorPage
from walkit.views.page_runs import RunsPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

GUARD_S = 120.0


@pytest.fixture
def things(tmp_path: Path) -> Path:
    """A folder with a closed log of three records and a saved Run."""
    with walkit.open(tmp_path / "orders") as log:
        log.append_many([b"a", b"b", b"c"])
    make_run("a saved run").save(tmp_path / "run")
    return tmp_path


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command in a folder outside a checkout; its address and process."""
    scratch = folder / "scratch"
    scratch.mkdir()
    variables = {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        [sys.executable, "-m", "walkit", "dashboard", *arguments],
        cwd=scratch,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.communicate()


def ends(process: subprocess.Popen[str], things: Path) -> None:
    """Press Ctrl-C: the command exits with 0, says no traceback, and leaves nothing in its folder."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=GUARD_S)
    assert (process.returncode, "Traceback" in said) == (0, False), said
    assert list((things / "scratch").iterdir()) == []


def test_it_serves_a_page_and_ends_cleanly(things: Path) -> None:
    """Ask for the page of a log without a browser, then press Ctrl-C: the page is served, and nothing is left."""
    with served(things, str(things / "orders")) as (url, process):
        with urlopen(url, timeout=GUARD_S) as answer:
            assert "<title>walkit</title>" in answer.read().decode()
        assert list((things / "scratch").glob("walkit-dashboard-*"))
        ends(process, things)


# Slow: 31 s. The test above serves a page and ends; the last one of this file shows a log and a Run that are given.
@pytest.mark.slow
def test_it_opens_on_what_is_given(browser: Browser, things: Path) -> None:
    """A log and a Run: each is a part of the page, which moves; after Ctrl-C it exits with 0 and leaves nothing."""
    with served(things, str(things / "orders"), str(things / "run.parquet")) as (url, process):
        page = browser.new_context(viewport={"width": 1200, "height": 1000}).new_page()
        page.set_default_timeout(GUARD_S * 1000)
        seen = Seen(page=page, host="", ready_s=0.0)
        complaints = seen.complaints
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.goto(url)
        page.get_by_text("read only: LSN 1 to 3.").wait_for()
        with walkit.open(things / "orders") as log:
            log.append(b"d")
            page.get_by_text("read only: LSN 1 to 4.").wait_for()
        assert seen.inaccessible() == []
        page.get_by_role("link", name="Runs").click()
        page.get_by_text("a saved run", exact=True).first.wait_for()
        page.locator(".js-plotly-plot").last.wait_for()
        assert complaints == []
        page.context.close()
        ends(process, things)


def test_paths_are_checked_before_anything_is_served(things: Path) -> None:
    """No log, a damaged Run, nothing at all: typed errors; links are followed, and a repeated path is there once."""
    (things / "link").symlink_to("orders")
    found = given(str(things / name) for name in ("orders", "link", "run", "run.parquet", "orders"))
    assert [(what.kind, what.path) for what in found] == [
        ("log", str(things / "orders")),
        ("run", str(things / "run.parquet")),
    ]
    (things / "broken.parquet").write_bytes(b"PAR1")
    for name, error in (
        ("absent", FileNotFoundError),
        ("broken.parquet", CorruptionError),
        (".", NotALogError),
    ):
        with pytest.raises(error):
            serve([str(things / name)])


def test_a_port_that_is_taken_is_an_error(things: Path) -> None:
    """Serve at the port of another socket: StorageError that names it; the command exits with 3."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StorageError, match=f"127.0.0.1:{port}"):
            serve(port=port)


def test_what_is_gone_since_is_told_on_the_page(things: Path) -> None:
    """Remove a log after it was checked, and damage one that is shown: sentences on the page, and the rest works."""
    import shutil

    shown = given([str(things / "orders"), str(things / "run.parquet")])
    (things / "run.parquet").write_bytes(b"PAR1")
    shell = make_shell(shown=shown)
    try:
        log = shell.page
        assert isinstance(log, InspectorPage)
        until(log, lambda: log.frame is not None)
        assert "segments" in log.numbers.object and "An example" not in log.face.text.object
        shell.go("runs")
        runs = shell.page
        assert isinstance(runs, RunsPage)
        until(runs, lambda: [entry for entry in runs.entries if "is not a whole saved run" in entry.problem])
        shutil.rmtree(things / "orders")
        until(log, lambda: "no log at" in log.status.object)
    finally:
        shell.close()
