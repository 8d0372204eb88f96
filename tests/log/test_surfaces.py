"""The output for people and programs: errors as data, named events, statistics, HTML."""

from __future__ import annotations

import copy
import logging
import pickle
import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from html.parser import HTMLParser
from typing import Any

import pytest

import walkit
from tests.support.logs import SEGMENTS, FaultyMemory, memory_log, tiny
from tests.support.threads import wait_until
from walkit import errors
from walkit.errors import WalkitError
from walkit.events import EventSink
from walkit.metrics import LogStatistics
from walkit.models import CrashingStorage

ERRORS: list[WalkitError] = [
    WalkitError("base"),
    errors.OptionsError("text", option="codec", wanted="gzip", stored=None),
    errors.RecordTooLargeError(10, 5, "transaction"),
    errors.RecordTypeError("key", "text"),
    errors.RecordTimeError("text", timestamp=-1),
    errors.MissingExtraError("spark", "pyspark"),
    errors.LogNotFoundError("/a/path"),
    errors.NotALogError("/a/path", "reason"),
    errors.LogExistsError("/a/path"),
    errors.LogLockedError("/a/path", pid=7, command="python x", same_process=False),
    errors.FormatVersionError("segment", found=9, supported=0),
    errors.LogFencedError("s3://bucket", 7),
    errors.LogOwnedError("/tmp/payloads", 7),
    errors.PayloadError("a value", location="/tmp/log"),
    errors.PayloadGoneError("a value", location="/tmp/log", lsn=3, link=(1, 2, 3, 4, 5, 1)),
    errors.PayloadUnreachableError("a value", location="/tmp/log"),
    errors.CorruptionError("text", segment="s", position=5, expected=1, found=2, first_lost_lsn=3),
    errors.SegmentMissingError("text", segment="s", position=5),
    errors.StorageError("text", errno=28, name="file"),
    errors.ObjectStoreError("text", store="s3://bucket", key="k", status=400, retry_after_s=2.0),
    *(each("text", key="k") for each in errors.ObjectStoreError.__subclasses__()),
    errors.LogFullError("text", reason="queue", limit_bytes=9, acknowledged_prefix=3),
    errors.JournalFullError(8, 5, failed="a disk", acknowledged_prefix=1),
    errors.LogExhaustedError("LSN", 7, 6),
    errors.CommitFailedError("text", acked_lsn=4, acknowledged_prefix=2),
    errors.CommitTimeoutError("text", acked_lsn=4),
    errors.AppendTimeoutError("text"),
    errors.WaitTimeoutError("text"),
    errors.CallbackError(),
    errors.LogPoisonedError("text", cause="OSError(5)", acknowledged_prefix=2),
    errors.LogClosedError("text", acknowledged_prefix=2),
    errors.NotALoadError("text", option="log"),
    errors.GapError(1, 5),
    errors.CursorError("text", name="c", reason="beyond", lsn=9, expected=5, found=9),
    errors.CursorDivergedError("text", name="c", reason="beyond", lsn=9, first_lsn=6, expected=5, found=9),
    errors.ClaimError("text", name="c", reason="taken", owner="00" * 16, lease_until_us=9),
    errors.HistoryTrimmedError(1, 5),
    errors.DivergenceError("text", first_lsn=3),
    errors.SnapshotError("text", stage="rename", retry="all of it"),
]


def every_error_class(base: type[WalkitError] = WalkitError) -> Iterator[type[WalkitError]]:
    """Yield the whole tree."""
    yield base
    for child in base.__subclasses__():
        if child.__module__ == "walkit.errors":
            yield from every_error_class(child)


def test_every_error_of_the_tree_is_looked_at_here() -> None:
    """Walk the tree: each class has an example above, a code of its own, and a place in walkit's namespace."""
    classes = set(every_error_class())
    assert classes == {type(e) for e in ERRORS}
    codes = [c.code for c in classes]
    assert len(set(codes)) == len(codes)
    assert all(getattr(walkit, c.__name__) is c for c in classes)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("way", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_errors_survive_pickling_with_their_facts(error: WalkitError, way: Any) -> None:
    """Pickle and copy each: the same type, message and attributes, errno included."""
    twin = way(error)
    assert type(twin) is type(error) and str(twin) == str(error)
    assert vars(twin) == vars(error)
    assert getattr(twin, "errno", None) == getattr(error, "errno", None)
    with pytest.raises(type(error)):
        raise twin


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.OptionsError, ValueError),
        (errors.RecordTooLargeError, ValueError),
        (errors.RecordTypeError, TypeError),
        (errors.MissingExtraError, ImportError),
        (errors.LogNotFoundError, FileNotFoundError),
        (errors.LogExistsError, FileExistsError),
        (errors.StorageError, OSError),
        (errors.SegmentMissingError, errors.CorruptionError),
    ],
)
def test_errors_are_what_callers_would_expect(error: type[Exception], builtin: type[Exception]) -> None:
    """Check the builtin that each error also is, so that plain handlers catch it."""
    assert issubclass(error, builtin)


def test_a_life_of_a_log_sends_its_events() -> None:
    """Open, rotate, trim, raise in a callback, cut a tail and close: the events come with their facts."""
    seen: list[tuple[str, dict[str, Any]]] = []
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny(), events=lambda *e: seen.append(e))
    log.append_many([bytes(7000)] * 30)
    log.wait_idle()
    log.trim(20)

    def bad(_: object) -> None:
        raise ValueError("mine")

    log.submit(b"x").add_done_callback(bad)
    wait_until(lambda: "walkit.callback.fail" in dict(seen))
    storage.fail("synced_write", SEGMENTS, short_bytes=150)
    with pytest.raises(walkit.CommitFailedError):
        log.append(b"torn" * 100)
    log.close()
    with walkit.open(storage=storage.inner, options=tiny(), events=lambda *e: seen.append(e)):
        pass
    expected = {
        "walkit.log.open",
        "walkit.segment.prepare",
        "walkit.segment.rotate",
        "walkit.segment.seal",
        "walkit.segment.trim",
        "walkit.callback.fail",
        "walkit.log.poison",
        "walkit.log.close",
        "walkit.recovery.cut",
        "walkit.recovery.finish",
    }
    assert expected <= {name for name, _ in seen}
    assert all(isinstance(facts, dict) and facts for _, facts in seen)


def test_events_go_to_logging_and_a_bad_callback_hurts_no_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Open without `events=`, and with one that raises: the logger has them, the log goes on."""
    with caplog.at_level(logging.DEBUG, "walkit"):
        with walkit.open(storage=CrashingStorage(), options=tiny()) as log:
            log.append(b"1")
        assert any("walkit.log.open" in r.getMessage() for r in caplog.records)

        def bad(name: str, facts: dict[str, Any]) -> None:
            raise RuntimeError("mine")

        with walkit.open(storage=CrashingStorage(), options=tiny(), events=bad) as log:
            assert log.append(b"1").first_lsn == 1
        assert any("events callback raised" in r.getMessage() for r in caplog.records)
    with pytest.raises(KeyError):
        EventSink().emit("walkit.no.such")


class Balanced(HTMLParser):
    """Checks that tags are closed in order, and collects text, titles and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.titles = ""
        self.styles = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        facts = dict(attrs)
        self.titles += f"{facts.get('title', '')}\n"
        self.styles += " ".join(str(facts.get(name)) for name in ("style", "fill", "stroke")) + " "

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_logs_and_statistics_render_on_dark_and_on_light() -> None:
    """Render a log in each state, its statistics, reader and report: balanced, numbers in it, no black or white."""
    storage = FaultyMemory()
    pages = []
    log = walkit.open(storage=storage, options=tiny())
    pages.append(log._repr_html_())
    log.append_many([bytes(3000)] * 190)
    with walkit.open(storage=storage, mode="r") as reader:
        pages += [log._repr_html_(), log.statistics()._repr_html_(), reader._repr_html_()]
        assert "durable 190acked 190appended 190" in Balanced(pages[1]).text
    log.wait_idle()
    storage.fail("synced_write", SEGMENTS, short_bytes=150)
    with pytest.raises(walkit.CommitFailedError):
        log.append(b"torn" * 100)
    pages.append(log._repr_html_())
    log.close()
    pages.append(log._repr_html_())
    with walkit.open(storage=storage.inner, options=tiny()) as again:
        pages += [again._repr_html_(), again.recovery._repr_html_()]
        seen = Balanced(again._repr_html_())
        assert "last opening cut" in seen.text and "cut: " in seen.titles
        assert "durable, acked, appended: LSN" in seen.titles and "first: LSN 1" in seen.titles
    assert "currentcolor" in Balanced(pages[1]).styles.lower()
    for page in pages:
        styles = Balanced(page).styles.lower()
        assert not re.search(
            r"#fff\b|#ffffff|#000\b|#000000|\bwhite\b(?!-)|\bblack\b", styles.replace("white-space", "")
        )
    assert "poisoned" in pages[4] and "closed" in pages[5]


def test_names_from_outside_are_escaped() -> None:
    """Render a log in a place whose name is markup: it is text on the page."""

    class Odd(CrashingStorage):
        location = "<script>alert(1)</script>"

    with walkit.open(storage=Odd(), options=tiny()) as log:
        log.append(b"1")
        for page in (log._repr_html_(), log.recovery._repr_html_()):
            assert "<script>" not in page and "&lt;script&gt;" in page


def test_statistics_are_a_frozen_snapshot_of_named_metrics() -> None:
    """Take statistics: each has a unit and a meaning, all are whole numbers, and a snapshot does not move."""
    with memory_log() as log:
        before = log.statistics()
        log.append(b"1")
        assert (before.acked_lsn, log.statistics().acked_lsn) == (0, 1)
        with pytest.raises(FrozenInstanceError):
            before.acked_lsn = 5  # type: ignore[misc]
        for field in fields(LogStatistics):
            assert field.metadata["unit"] and field.metadata["help"]
            assert isinstance(getattr(before, field.name), int)
        page = Balanced(before._repr_html_()).text
        assert all(f.name in page for f in fields(LogStatistics))
