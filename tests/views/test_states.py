"""The States page without a browser: real logs compared in this process and by a real Spark, down to the frames."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import walkit
from tests.views.waiting import until
from walkit.plots import StateLane, alt_text, states_timeline
from walkit.views import Shell
from walkit.views import page_states as lab
from walkit.views.background_jobs import Job, JobCancelledError
from walkit.views.log_outline import outline_of
from walkit.views.page import make_shell
from walkit.views.page_inspector import InspectorPage
from walkit.views.page_states import PAGE_ROWS, StateSide, StatesPage, compare_sides, places_of

# Without a sync for each record: what is looked at is closed logs.
OPTIONS = walkit.LogOptions(
    segment_bytes=64 * 1024, frame_bytes_max=8 * 1024, idle_marker_ms=0, durability="none"
)
KEYS = 120


def fill(path: Path, word: str = "value") -> None:
    """Write 120 keys, then change every third, delete every fifth, and put one key more."""
    with walkit.open(path, options=OPTIONS) as log:
        for number in range(KEYS):
            log.append(f"{word} {number}".encode(), key=b"k%03d" % number)
        for number in range(0, KEYS, 3):
            log.append(b"changed", key=b"k%03d" % number)
        for number in range(0, KEYS, 5):
            log.delete(b"k%03d" % number)
        log.append(b"new", key=b"new")


LAST = KEYS + KEYS // 3 + KEYS // 5 + 1


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a closed log."""
    folder = tmp_path_factory.mktemp("root") / "log"
    fill(folder)
    return folder


@pytest.fixture
def log(written: Path, tmp_path: Path) -> Path:
    """A copy of the log, below a data root of its own."""
    return Path(shutil.copytree(written, tmp_path / "log"))


def states(shell: Shell, query: str = "") -> StatesPage:
    """Turn to the page, and wait until it has read the log."""
    shell.read_url(f"?page=states{query}")
    page = shell.page
    assert isinstance(page, StatesPage)
    until(page, lambda: not page.looking.busy and not page.chooser.looking.busy)
    return page


def compare(page: StatesPage) -> None:
    """Press Compare, and wait until the rows are shown or a problem is."""
    page.compare.clicks += 1
    until(page, lambda: not page.comparing.busy and not page.looking.busy)


def expected() -> tuple[int, int, int]:
    deleted = KEYS // 5
    changed = sum(1 for n in range(0, KEYS, 3) if n % 5)
    return 1, deleted, changed


def test_two_lsns_of_a_log_are_compared_down_to_the_frames(shell: Shell, log: Path) -> None:
    """Compare LSN 120 with the newest: the counts, and every row's place is that of a frame with the record in it."""
    page = states(shell, f"&log=log&left={KEYS}&right={LAST}")
    assert (page.left.value, page.right.value, page.right.end) == (KEYS, LAST, LAST)
    compare(page)
    assert page.compared is not None
    counts = page.compared.counts
    assert (counts.inserted, counts.deleted, counts.changed) == expected()
    rows = page.table.rows
    assert rows[0]["cells"][:3] == ['"new"', "inserted", ""]
    outline = outline_of(log)
    for row in rows:
        cells = row["cells"]
        for lsn, segment, position in (cells[3:6], cells[7:10]):
            if lsn:
                (places,) = places_of([(outline, [int(lsn)])], Job("test"))
                assert (f"{places[int(lsn)].segment}", f"{places[int(lsn)].position:,}") == (
                    segment,
                    position,
                )
    assert page.state() == {"log": "log", "left": str(KEYS), "right": str(LAST)}


def test_rows_come_in_pages_and_by_change(shell: Shell) -> None:
    """Turn the pages of a diff of more than fifty rows, then choose one change: each key once, and only that change."""
    page = states(shell, f"&log=log&left=0&right={KEYS}")
    compare(page)
    seen = [row["cells"][0] for row in page.table.rows]
    assert len(seen) == PAGE_ROWS
    assert page.back.disabled
    while not page.on.disabled:
        page.on.clicks += 1
        until(page, lambda: not page.looking.busy)
        seen += [row["cells"][0] for row in page.table.rows]
    assert seen == [f'"k{number:03}"' for number in range(KEYS)]
    page.change.value = "D"
    until(page, lambda: not page.looking.busy)
    assert page.table.rows == []


def test_two_logs_are_compared(shell: Shell, tmp_path: Path) -> None:
    """Name a second log with other values: every live key differs, and the history has both logs."""
    fill(tmp_path / "other", "text")
    page = states(shell, "&log=log&second=other")
    compare(page)
    assert page.compared is not None
    unlike = sum(1 for n in range(KEYS) if n % 3 and n % 5)
    assert page.compared.counts.total == page.compared.counts.changed == unlike
    page.history.key.value = "k001"
    page.history.find.clicks += 1
    until(page, lambda: not page.looking.busy)
    assert [row["cells"][1] for row in page.history.table.rows] == ["left", "right"]


def test_a_key_has_its_history_and_each_record_its_frame(shell: Shell) -> None:
    """Pick a row's key: values with the LSNs they held to, then the Inspector opens at the frame of one."""
    page = states(shell, f"&log=log&left={KEYS}&right={LAST}")
    compare(page)
    page.table.pick(b"k015".hex())
    until(page, lambda: not page.looking.busy)
    found = [row["cells"] for row in page.history.table.rows]
    assert [cells[2] for cells in found] == ["set", "set", "deleted"]
    assert found[0][4] == f"{int(found[1][0]) - 1}"
    page.history.table.pick(page.history.table.rows[1]["id"])
    assert isinstance(shell.page, InspectorPage)


def test_a_trimmed_history_is_a_sentence(shell: Shell, tmp_path: Path) -> None:
    """Compare below what a store's trim has left: the page reports it, and shows no rows."""
    with walkit.Store.open(tmp_path / "store", options=OPTIONS) as store:
        for number in range(1_000):
            store.put(b"k%d" % (number % 20), b"v%d" % number)
        store.checkpoint()
    page = states(shell, "&log=store&left=5")
    compare(page)
    assert "history is exact from LSN" in page.status.object
    assert page.compared is None
    assert page.table.rows == []


@pytest.mark.parametrize(("path", "detail"), [("../", "outside the data root"), ("nothing", "no such file")])
def test_what_may_not_be_looked_at_is_a_sentence(shell: Shell, path: str, detail: str) -> None:
    """Name a path outside the root, and one that is not there, as either log: the page shows the reason."""
    for query in (f"&log={path}", f"&log=log&second={path}"):
        page = states(shell, query)
        assert detail in page.status.object
        assert not page.body.visible


def test_a_large_log_is_refused_in_this_process(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit below the log's records: the comparison is a sentence that names Spark, and nothing is read."""
    monkeypatch.setattr(lab, "ARROW_LSNS_MAX", KEYS)
    page = states(shell, "&log=log")
    compare(page)
    assert "choose Spark" in page.status.object
    assert page.compared is None


def test_what_is_kept_is_bounded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits: the counts are of all keys, the rows and values no more than that."""
    monkeypatch.setattr(lab, "ROWS_MAX", 7)
    monkeypatch.setattr(lab, "VALUE_BYTES_MAX", 3)
    found = compare_sides(StateSide(log, 0), StateSide(log, KEYS), "arrow", Job("test"))
    assert (found.counts.inserted, len(found.rows)) == (KEYS, 7)
    assert {row.right_value for row in found.rows} == {b"val"}


def test_a_comparison_can_be_cancelled(log: Path) -> None:
    """Cancel the job before it reads: it ends as cancelled."""
    job = Job("test")
    job.cancel()
    with pytest.raises(JobCancelledError):
        compare_sides(StateSide(log, 0), StateSide(log, LAST), "arrow", job)


def test_without_pyspark_the_page_works(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take pyspark away: Spark is disabled with a sentence, and Arrow compares."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    shell = make_shell(root=log.parent)
    try:
        page = states(shell, "&log=log")
        assert page.engine.disabled_options == ["spark"]
        assert "pyspark is not installed" in page.missing.object
        compare(page)
        assert page.compared is not None
    finally:
        shell.close()


@pytest.mark.slow
@pytest.mark.spark
def test_spark_and_arrow_say_the_same(shell: Shell) -> None:
    """Compare by a real Spark and in this process: equal counts and rows; a trimmed state is the same sentence."""
    page = states(shell, f"&log=log&left={KEYS}&right={LAST}")
    compare(page)
    in_process = page.compared
    page.engine.value = "spark"
    compare(page)
    by_spark = page.compared
    assert in_process is not None
    assert by_spark is not None, page.status.object
    assert by_spark.engine == "spark"
    assert (by_spark.counts, by_spark.rows) == (in_process.counts, in_process.rows)


def test_the_timeline_has_both_states() -> None:
    """Draw two logs, one of more segments than are drawn apart: the marks are at their LSNs, with words."""
    many = tuple((n, n * 10 + 1, n * 10 + 10) for n in range(300))
    drawing = states_timeline(
        [StateLane("one", many[:3], (("left", 7),)), StateLane("<two>", many, (("right", 99),))]
    )
    marks = {trace.name: list(trace.x) for trace in drawing.data if trace.type == "scatter"}
    assert marks == {"left": [7], "right": [99]}
    assert sum(len(trace.x) for trace in drawing.data if trace.type == "bar") == 4
    assert "right state at LSN 99" in alt_text(drawing)
