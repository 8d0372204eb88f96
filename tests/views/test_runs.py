"""The Runs page without a browser: measured and saved Runs in one table, two compared, repeated, taken away."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.views.waiting import until
from walkit.measure import LatencyHistogram, Run, RunRecorder, load
from walkit.views import Shell
from walkit.views.page import PAGES
from walkit.views.page_runs import RunsPage
from walkit.views.run_list import differences_html
from walkit.views.workspace import DataRoot, Workspace
from walkit.workload import ContinuousLoad

ROUNDS = 2
"""In place of five: each Run is a process that has to start."""


def settled(page: RunsPage) -> None:
    """Wait until all reads, measurements and comparisons have ended."""
    page.refresh()
    until(page, lambda: not page.measuring.busy and not page.looking.busy)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(Workspace(DataRoot(tmp_path)), PAGES, first="runs")  # the figures of Live take 0.3 s
    yield made
    made.close()


def runs_of(shell: Shell, query: str = "") -> RunsPage:
    shell.read_url(f"?page=runs{query}")
    assert isinstance(shell.page, RunsPage)
    return shell.page


def ended(shell: Shell, number: int) -> bool:
    """Whether so many writers of the Live page have ended; they are looked after as that page does."""
    shell.workspace.session.readings()
    return len(shell.workspace.session.runs) == number


def recorded(name: str, us: int, **more: object) -> Run:
    """A Run of 1,000 records, each of which took so many microseconds."""
    run = RunRecorder(name, durability="sync", options={"writers": us, **more}).finish()
    return replace(
        run,
        records=1000,
        duration_s=1000 * us / 1e6,
        latency={"total": LatencyHistogram.from_samples([us] * 1000, unit="us")},
    )


def saved(folder: Path) -> Path:
    """A folder with three repeats of one Run, one of another, and a file that is not a Run."""
    for number, us in enumerate((100, 110, 120), 1):
        run = replace(recorded("fast", 100), latency=recorded("", us).latency, duration_s=us / 1e3)
        run.save(folder / f"fast-{number}")
    recorded("slow", 400).save(folder / "slow")
    (folder / "broken.parquet").write_bytes(b"no Parquet")
    return folder


def test_a_folder_is_read_and_two_are_compared(shell: Shell, tmp_path: Path) -> None:
    """From the URL: the table with what cannot be read, both ticked, the ratio of the medians by hand, the settings."""
    saved(tmp_path / "runs")
    page = runs_of(shell, "&folder=runs&a=file:fast-1.parquet&b=file:slow.parquet")
    settled(page)
    assert "4 runs; 1 file could not be read." in page.words.object
    rows = {row["id"]: row for row in page.table.table.rows}
    assert rows["file:broken.parquet"]["tone"] == "bad"
    assert rows["file:fast-2.parquet"]["cells"][5] == "3"
    assert [row["on"] for row in rows.values()] == [False, True, False, False, True]
    found = page.face.found
    assert found is not None
    assert found.ratios["p50"].value == pytest.approx(400 / 110, rel=0.01)
    assert found.ratios["records/s"].value == pytest.approx(110 / 400, rel=0.01)
    assert found.ratios["p50"].number == 1
    assert "n = 1: the difference may be chance" in page.face.ratios.object
    assert ("option.writers", "100", "400") in found.differences
    uneven = replace(found, differences=[("both", "1", "2"), ("one", "0.1", ""), ("other", "", "8")])
    shown, _, folded = differences_html(uneven).partition("<details>")
    assert "both" in shown and "2 settings that only one of them has recorded" in folded
    assert ">one<" in folded and ">other<" in folded and ">one<" not in shown
    assert {
        "folder": "runs",
        "a": "file:fast-1.parquet",
        "b": "file:slow.parquet",
    }.items() <= page.state().items()
    assert page.repeat.disabled
    assert "Only runs of this page can be repeated" in page.status.object


def test_a_third_tick_takes_the_place_of_the_older(shell: Shell, tmp_path: Path) -> None:
    """Tick three, tick what holds no Run, take one away: never more than two, and the comparison goes with it."""
    saved(tmp_path / "runs")
    page = runs_of(shell, "&folder=runs")
    settled(page)
    table = page.table.table
    for name in ("fast-1", "fast-2", "slow", "broken"):
        table.pick(f"file:{name}.parquet", True)
    settled(page)
    assert page.ticked == ["file:fast-2.parquet", "file:slow.parquet"]
    assert page.face.found is not None
    assert page.face.found.runs[1].name == "slow"
    table.pick("file:slow.parquet", False)
    settled(page)
    assert page.face.found is None
    table.pick("file:of-another-folder.parquet", True)
    assert page.ticked == ["file:fast-2.parquet"]


@pytest.mark.slow
def test_runs_of_this_page_are_repeated_in_turn(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure two loads, tick both, repeat twice: A, B, A, B; the pairs give the ratio and its interval."""
    monkeypatch.setattr("walkit.views.page_runs.ROUNDS", ROUNDS)
    page = runs_of(shell)
    page.operations.value, page.controls.named["writers"].value = 200, 2
    for style in ("writer threads", "asyncio tasks"):
        page.controls.named["style"].value = style
        page.measure.clicks += 1
        settled(page)
    assert [entry.id for entry in page.measured] == ["here:1", "here:2"]
    for entry in page.measured:
        page.table.table.pick(entry.id, True)
    settled(page)
    assert page.face.found is not None
    assert page.face.found.number == 1
    page.repeat.clicks += 1
    settled(page)
    until(page, lambda: page.face.found is not None and page.face.found.number == ROUNDS)
    styles = [entry.measured.load.style for entry in page.measured if entry.measured is not None]
    assert styles == ["threads", "tasks"] * (ROUNDS + 1)
    ratio = page.face.found.ratios["records/s"]
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= ratio.value <= ratio.high
    assert "n = 1" not in page.face.ratios.object
    points = page.face.points.object.data[-1]
    assert list(points.x) == [each.value for each in page.face.found.ratios.values()]
    html, archive, svg = (made().getvalue() for file in page.face.files if (made := file.callback))
    assert b"least to most" in html
    assert html.count(b"plotly-graph-div") == 2
    assert svg.startswith(b"<svg")
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(tmp_path / "taken")
    for letter, run in zip("ab", page.face.found.runs, strict=True):
        assert load(tmp_path / "taken" / letter) == run


def test_what_writers_of_the_live_page_did_is_a_run(shell: Shell) -> None:
    """A load written and stopped, another one killed: a Run each in the table, and the two are compared."""
    session = shell.workspace.session
    page = runs_of(shell)
    loads = [ContinuousLoad(writers=count) for count in (1, 4)]
    for number, wanted in enumerate(loads, 1):
        until(page, lambda: not session.busy)  # a job under way refuses another
        session.start(wanted)
        until(page, lambda: session.writing and not session.busy)
        assert session._writers[0].wait_for(50, 60)
        if number == 1:
            session.stop()
        else:
            session._writers[0].kill()
        until(page, partial(ended, shell, number))
    settled(page)
    rows = [(row["id"], row["cells"][0], row["cells"][-1]) for row in page.table.table.rows]
    assert rows == [
        ("live:1", "1 threads, 100 B", "Live page"),
        ("live:2", "4 threads, 100 B", "Live page"),
    ]
    for entry in page.entries:
        page.table.table.pick(entry.id, True)
    settled(page)
    assert page.face.found is not None
    assert ("option.load.writers", "1", "4") in page.face.found.differences
    one, killed = page.face.found.runs
    assert one.records == one.latency["total"].count == one.timeline.records.sum() >= 50
    assert one.duration_s == pytest.approx(one.timeline.width_s.sum())
    assert killed.interrupted and not one.interrupted
    assert page.repeat.disabled and "Only runs of this page can be repeated" in page.status.object


def test_measuring_can_be_cancelled(shell: Shell) -> None:
    """A long measurement is given up: the page shows it, no Run is kept, and another can be measured."""
    page = runs_of(shell)
    page.operations.value = 1_000_000
    page.measure.clicks += 1
    until(page, lambda: page.bar._layout.visible)
    page.bar.cancel.clicks += 1
    settled(page)
    assert "was cancelled" in page.status.object
    assert page.measured == ()
    assert not page.bar._layout.visible
    assert not page.measure.disabled


def test_what_cannot_be_is_a_sentence(shell: Shell, tmp_path: Path) -> None:
    """Folders outside of the root and links out of it, a load that cannot be, writers at work: sentences, no Run."""
    outside = saved(tmp_path.parent / f"{tmp_path.name}-outside")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "run.parquet").symlink_to(outside / "slow.parquet")
    shutil.copy(outside / "slow.parquet", tmp_path / "slow.parquet")
    page = runs_of(shell)
    for text, detail in (
        (f"../{outside.name}", "it is outside the data root"),
        ("links", "is a link that leads out of the data root"),
        ("nothing", "there is no such file or folder"),
        ("x" * 5000, "it is longer than"),
    ):
        page.folder.value = text
        page.open.clicks += 1
        settled(page)
        assert detail in page.status.object
        assert "role='alert'" in page.status.object
        assert page.entries == ()
    page.folder.value = "slow.parquet"
    page.open.clicks += 1
    settled(page)
    assert [entry.name for entry in page.entries] == ["slow"]
    page.operations.value = None
    page.measure.clicks += 1
    assert "operations=0" in page.status.object
    shell.workspace.session.start(ContinuousLoad(writers=1))
    until(page, lambda: shell.workspace.session.writing and not shell.workspace.session.busy)
    page.operations.value = 10
    page.measure.clicks += 1
    assert "Writers are at work on the Live page" in page.status.object
