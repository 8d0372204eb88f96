"""A log whose large values are in a payload log: its records, their order, and its refusals."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import walkit
from tests.links.made import OVER, linked, value_of
from tests.support.logs import run_python, tiny, values
from walkit.links.writer import VALUE_BYTES_MAX
from walkit.models import CrashingStorage
from walkit.record import LINK_BYTES, Link, LinkedRecord, Record

PLACES = ("payloads", "objects:")


def place_of(kind: str, folder: Path) -> str:
    return f"objects:{folder}/payloads" if kind == "objects:" else str(folder / "payloads")


@pytest.mark.parametrize("kind", PLACES)
def test_values_come_back_whatever_wrote_them(tmp_path: Path, kind: str) -> None:
    """Goal: each way of appending keeps its large values in the payload log. Method: all ways, read in three ways."""
    place, path = place_of(kind, tmp_path), tmp_path / "log"
    stamp = datetime(2026, 1, 2, tzinfo=UTC)
    batch = pa.record_batch({"x": list(range(200))})
    wanted: list[bytes | None] = [value_of(1), b"small", None, value_of(2), b"s", value_of(3)]
    with walkit.open(path, options=linked(place, codec="zstd")) as log:
        log.append(value_of(1), key=b"k", timestamp=stamp)
        log.append(b"small")
        log.append(None, key=b"absent")
        with log.transaction() as tx:
            tx.put(b"a", value_of(2))
            tx.put(b"b", b"s")
            tx.append(value_of(3))
        log.append_bundle(batch, key=b"bundle")
        log.append_many([value_of(4), b"", value_of(5, 6000)], [b"1", b"2", b"3"])
        log.append_arrow(pa.table({"value": pa.array([value_of(6), b"x"]), "key": pa.array([b"p", b"q"])}))
        asyncio.run(log.append_async(value_of(7)))
        bundle = next(log.read(7, 7))
        wanted += [bundle.value, value_of(4), b"", value_of(5, 6000), value_of(6), b"x", value_of(7)]
        for reader in (log, walkit.open(path, mode="r")):
            assert values(reader.read()) == wanted
            assert reader.to_arrow()["value"].to_pylist() == wanted
        assert bundle.kind is walkit.Kind.BUNDLE and bundle.arrow().equals(batch)
        raw = list(log.read(resolve="link"))
        assert [r.lsn for r in raw if r.kind is walkit.Kind.LINK] == [1, 4, 6, 7, 8, 10, 11, 13]
        assert (
            raw[0].timestamp == stamp and raw[0].link is not None and raw[0].link.length == len(value_of(1))
        )
        assert log.read_batches(resolve="link").read_all()["kind"].to_pylist().count(4) == 8
    with walkit.open(path) as plain:
        assert values(plain.follow(1, timeout=0)) == wanted
        assert values(plain.cursor("c").read()) == wanted
        plain.append(value_of(9))
        assert next(plain.read(14)).link is None, "without the option values stay in the log"


def test_two_logs_that_link_have_the_same_order_as_one_without_links() -> None:
    """Goal: a record that waits for its payload keeps back what comes later. Method: small and large in turns."""
    with walkit.open(storage=CrashingStorage(), options=linked(CrashingStorage())) as log:
        tickets = [log.submit(value_of(n) if n % 3 == 0 else b"%d" % n, key=b"k") for n in range(60)]
        assert [t.result().first_lsn for t in tickets] == list(range(1, 61))
        assert [r.value for r in log] == [value_of(n) if n % 3 == 0 else b"%d" % n for n in range(60)]
        payloads = [r.link.lsn for r in log.read(resolve="link") if r.link]
        assert payloads == sorted(payloads) and len(set(payloads)) == 20


def test_log_on_object_storage_has_a_payload_log_too(tmp_path: Path) -> None:
    """Goal: a log in objects may have its payloads in a folder. Method: append, trim, open again."""
    url, options = (
        f"objects:{tmp_path}/log",
        walkit.LogOptions(link_over=OVER, payload_log=tmp_path / "payloads"),
    )
    with walkit.open(url, options=options) as log:
        for number in range(6):
            log.append(value_of(number))
    with walkit.open(url, options=options) as log:
        log.append(value_of(6))
        log.trim(3)
        assert log.wait_idle(30)
        usage = log.payload_usage()
        assert usage is not None and (usage.floor_lsn, usage.live) == (3, 4)
    with walkit.open(url, mode="r") as reader:
        assert values(reader) == [value_of(n) for n in range(3, 7)]


def test_payload_log_in_memory_is_found_by_its_name() -> None:
    """Goal: a log in memory names its payload log in memory. Method: read by a reader that gets no place."""
    with walkit.open("memory://linked", options=linked("memory://linked-payloads")) as log:
        log.append(value_of(1))
        with walkit.open("memory://linked", mode="r") as reader:
            assert values(reader) == [value_of(1)]


def test_dropped_log_closes_its_payload_log(tmp_path: Path) -> None:
    """Goal: nothing of the writer keeps a dropped log. Method: drop one, then open it again."""
    options = linked(tmp_path / "payloads")
    logs = [walkit.open(tmp_path / "log", options=options, events=lambda *_: None)]
    logs[0].append(value_of(1))
    with pytest.warns(ResourceWarning, match="dropped"):
        logs.clear()
    gc.collect()
    with walkit.open(tmp_path / "log", options=options) as log:
        assert values(log) == [value_of(1)]


def test_payload_is_durable_before_the_frame_of_its_link() -> None:
    """Goal: no link is written before its payload is on stable storage. Method: look at each frame as it is written."""
    payloads = CrashingStorage()
    with walkit.open(storage=CrashingStorage(), options=linked(payloads)) as log:
        seen: list[int] = []

        class Looks:
            def writing(self, frame: Any) -> None:
                with walkit.open(storage=payloads.crash(), mode="r") as reader:
                    seen.append(reader.last_lsn)

            def wrote(self, frame: Any, began_ns: int, ended_ns: int) -> None: ...

            def synced(self, began_ns: int, ended_ns: int) -> None: ...

        log.observe_writes(Looks())
        log.append(value_of(1))
        with log.transaction() as tx:
            for number in range(4):
                tx.append(value_of(number))
        log.append(b"small")
    assert seen == [1, 5, 5]


def test_linked_record_is_equal_to_the_record_it_stands_for() -> None:
    """Goal: a record is the same with its value elsewhere. Method: compare, unpack, hash, pickle."""
    calls: list[int] = []

    def fetch() -> bytes:
        calls.append(1)
        return b"value"

    link = Link(1, 2, 3, 5, 4, walkit.Kind.PUT)
    raw = Record(7, walkit.Kind.LINK, b"k", link.encode())
    record, plain = LinkedRecord.of(raw, link, fetch), Record(7, walkit.Kind.PUT, b"k", b"value")
    assert record.lsn == 7 and record.kind is walkit.Kind.PUT and "5 bytes" in repr(record) and not calls
    assert record == plain and plain == record and hash(record) == hash(plain)
    lsn, kind, key, value, stamp = record
    assert (lsn, kind, key, value, stamp) == tuple(plain) == tuple(record) and record[3] == b"value"
    assert type(pickle.loads(pickle.dumps(record))) is Record and len(calls) == 1


@pytest.mark.parametrize(
    "value",
    [b"", bytes(LINK_BYTES - 1), bytes(LINK_BYTES), b"\x02" + bytes(39), b"\x01\x01" + bytes(38), None],
)
def test_other_bytes_are_refused_as_a_link(value: bytes | None) -> None:
    """Goal: a link is recognised by its form. Method: bytes of other lengths and kinds."""
    with pytest.raises(ValueError, match="not a link"):
        Link.decode(value)


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    """Goal: bad options are refused before anything is made. Method: each of them, and the folder afterwards."""
    place = str(tmp_path / "p")
    for bad in ({"link_over": 200}, {"payload_log": place}, {"link_over": 40, "payload_log": place}):
        with pytest.raises(walkit.OptionsError):
            walkit.LogOptions(**bad)
    with pytest.raises(walkit.OptionsError, match="link_over"):
        tiny(link_over=8192, payload_log=place)
    with pytest.raises(walkit.OptionsError, match="own"):
        walkit.open(tmp_path / "log", options=linked(tmp_path / "x" / ".." / "log"))
    for bad_place in (7, "", "s3://user:secret@bucket/folder", "http://user:secret@host/folder"):
        with pytest.raises(walkit.OptionsError, match=r"^payload_log=") as caught:
            walkit.open(tmp_path / "log", options=linked(bad_place))
        assert "secret" not in str(caught.value)
    with pytest.raises(walkit.OptionsError):
        walkit.open(tmp_path / "log", payload_log=place)
    with pytest.raises(walkit.OptionsError, match="payload_log=7"):
        walkit.open(tmp_path / "log", options=linked(7))
    assert not list(tmp_path.iterdir())


def test_what_neither_log_can_take_is_refused() -> None:
    """Goal: sizes are refused before anything is queued. Method: a large value, key and transaction."""
    payloads = CrashingStorage()
    options = replace(linked(payloads), queue_bytes_max=2 * VALUE_BYTES_MAX)
    with walkit.open(storage=CrashingStorage(), options=options) as log:
        log.append(bytes(VALUE_BYTES_MAX))  # beyond a frame of the log
        with pytest.raises(walkit.RecordTooLargeError) as caught:
            log.append(bytes(VALUE_BYTES_MAX + 1))
        assert caught.value.limit_bytes == VALUE_BYTES_MAX and "frame_bytes_max" not in str(caught.value)
        with pytest.raises(walkit.RecordTooLargeError):
            log.append(value_of(1), key=bytes(9000))
        tx = log.transaction().__enter__()
        for _ in range(200):
            tx.append(bytes(OVER - 1))
        with pytest.raises(walkit.RecordTooLargeError):
            tx.__exit__(None, None, None)
        assert log.appended_lsn == 1 and log.statistics().queue_records == 0


def test_a_log_without_links_imports_nothing_of_them(tmp_path: Path) -> None:
    """Goal: who does not use links pays nothing. Method: a process that appends and reads by the plain ways in."""
    script = """
        import sys, walkit
        with walkit.open(sys.argv[1]) as log:
            log.append(bytes(5000)); list(log)
            assert log._driver.append_put.__qualname__ == "Leader.append_put"
        assert not [m for m in sys.modules if m.startswith("walkit.links") or m == "walkit.read.payloads"]
    """
    run_python(script, tmp_path / "log")
    assert sys.modules["walkit"] is walkit
