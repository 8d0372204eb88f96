"""Wrong values for a log, a list, a callback, a time: refused by name, with nothing written."""

from __future__ import annotations

import errno
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import walkit
from tests.support.logs import memory_log
from walkit.state import KeyedTable


@pytest.mark.parametrize("wrong", [5, "print", object()])
def test_a_callback_must_be_callable(wrong: Any, tmp_path: Path) -> None:
    """Give it as `events=` and to `observe`: refused at once, no folder is made, and no append reports it."""
    with pytest.raises(walkit.OptionsError, match="events"):
        walkit.open(tmp_path / "log", events=wrong)
    assert not (tmp_path / "log").exists()
    told: list[str] = []
    with memory_log() as log:
        log.events.add_listener(lambda name, _: told.append(name))
        with pytest.raises(walkit.OptionsError, match="callback"):
            log.observe(wrong)
        log.append(b"x")
    assert "walkit.callback.fail" not in told


@pytest.mark.parametrize("wrong", ["a\0b", b"log", 5])
def test_what_cannot_be_a_path_is_refused_by_name(wrong: Any) -> None:
    """Open, scan and read places that no file system has: OptionsError, from whichever call."""
    for call in (walkit.open, walkit.scan, lambda p: walkit.open(p, mode="r")):
        with pytest.raises(walkit.OptionsError, match="path"):
            call(wrong)


def test_an_open_log_is_not_a_place_and_the_error_names_it() -> None:
    """Scan an open log's object: the error names `.location`."""
    with memory_log() as log, pytest.raises(walkit.OptionsError, match=r"\.location"):
        walkit.scan(log)  # type: ignore[arg-type]


def test_nanoseconds_are_refused_and_never_cut() -> None:
    """Append, submit and put a pandas time with nanoseconds: RecordTimeError, no record; without them it is taken."""
    fine = pd.Timestamp("2020-01-01T00:00:00.000001001", tz="UTC")
    with memory_log() as log:
        for call in (log.append, log.submit):
            with pytest.raises(walkit.RecordTimeError, match="microseconds") as refused:
                call(b"x", timestamp=fine)
            assert refused.value.timestamp == fine
        with pytest.raises(walkit.RecordTimeError), log.transaction() as tx:
            tx.put(b"k", b"v", timestamp=fine)
        assert log.appended_lsn == 0
        log.append(b"x", timestamp=fine.floor("us"))
        assert next(log.read()).timestamp == datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        b"abc",
        "abc",
        {b"a", b"b"},
        {b"a": b"b"},
        memoryview(b"abc"),
        pa.array(["text"]),
        pa.array([1]),
    ],
)
def test_many_records_come_in_an_order(wrong: Any) -> None:
    """Give append_many and submit_many a value that is not a sequence of bytes: RecordTypeError, and no record."""
    with memory_log() as log:
        for call in (log.append_many, log.submit_many):
            with pytest.raises(walkit.RecordTypeError):
                call(wrong)
        assert log.appended_lsn == 0


def test_an_absent_log_is_a_file_not_found_error(tmp_path: Path) -> None:
    """Read an absent log, make one twice: errno and filename as in the builtin errors, also in a copy."""
    with pytest.raises(FileNotFoundError) as absent:
        walkit.open(tmp_path / "no", mode="r")
    walkit.open(tmp_path / "log").close()
    with pytest.raises(FileExistsError) as there:
        walkit.open(tmp_path / "log", mode="x")
    for error, code, name in ((absent.value, errno.ENOENT, "no"), (there.value, errno.EEXIST, "log")):
        for copy in (error, pickle.loads(pickle.dumps(error))):
            assert (copy.errno, copy.filename) == (code, str(tmp_path / name))


def test_replay_refuses_wrong_arguments_by_name(tmp_path: Path) -> None:
    """Replay a path, and into an object: OptionsError that names the way to open, and the members of a machine."""
    with pytest.raises(walkit.OptionsError, match="mode='r'"):
        walkit.replay(str(tmp_path), KeyedTable())  # type: ignore[arg-type]
    with memory_log() as log, pytest.raises(walkit.OptionsError, match="applied_lsn"):
        walkit.replay(log, object())  # type: ignore[arg-type]
