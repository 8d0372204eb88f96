"""Scenarios that ask a log or a Store for its history: past states, trims and their previews, drains, claims."""

from __future__ import annotations

from dataclasses import replace

from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.errors import GapError, HistoryTrimmedError
from walkit.format.file_names import TRIM_NEW_NAME
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.segment import SegmentHeader
from walkit.models.faults import Operation
from walkit.recovery.verify import verify
from walkit.state.diff import diff
from walkit.state.snapshot import snapshot_lsns
from walkit.state.state_at import exact_state
from walkit.store import Store


def _past_states(script: Script) -> None:
    with script.open_store() as store:
        for number in range(16):
            script.put(store, b"key %d" % (number % 3), 13_000)
            if number in (3, 5):
                script.checkpoint(store)
        for _ in range(2):
            exact = store.exact_from_lsn
            for lsn in range(1, store.log.acked_lsn + 1):
                try:
                    state = dict(store.state_at(lsn).items())
                except HistoryTrimmedError:
                    assert lsn < exact, f"LSN {lsn} is refused, and states are exact from {exact} on"
                else:
                    assert state == script.ledger.promise().state_at(lsn)
            script.compact(store)
            script.put(store, b"key 0", 9_000)


def _diff(script: Script) -> None:
    """Take a checkpoint, which removes files, at the moment at which a diff and a state are about to open one."""
    with script.open_store() as store:
        for kind in ("segment", "snapshot-"):
            for number in range(6):
                script.put(store, b"key %d" % (number % 3), 13_000)
            script.checkpoint(store)
            script.delete(store, b"key 1")
            for _ in range(6):
                script.put(store, b"key 0", 13_000)
            script.checkpoint(store, trim=False)
            before = store.log.acked_lsn
            script.put(store, b"key 1", 200)
            names = sorted(name for name in script.storage.names() if kind in name)
            _checkpoint_at(script, store, names[0] if kind == "segment" else names[-1])
            if kind == "segment":
                found = diff((store.log, before), store.log)
                assert found["key"].to_pylist() == [b"key 1"] and found["change"].to_pylist() == ["I"]
            else:
                assert exact_state(store.log).base_lsn == store.log.acked_lsn
            assert snapshot_lsns(script.storage)[-1] == store.log.acked_lsn, "no checkpoint came between"


def _checkpoint_at(script: Script, store: Store, name: str) -> None:
    """Take a checkpoint on another thread before a file is opened the next time."""

    def look(operation: Operation) -> None:
        if (operation.name, operation.file) == ("open", name):
            script.storage.watch = lambda operation: None
            with script.beside(lambda: script.checkpoint(store)):
                pass

    script.storage.watch = look


def _events(script: Script) -> None:
    with script.open_store() as store:
        script.put(store, b"early", 3_000)
        script.append(store.log, 3_000)  # an event: it has no key and stays
        script.delete(store, b"never")
        for number in range(14):
            script.put(store, b"key %d" % (number % 3), 12_000)
            if number == 4:
                script.delete(store, b"key 1")
        script.delete(store, b"key 2")
        script.compact(store)
        script.put(store, b"key 0", 300)


def _preview(script: Script) -> None:
    with script.open() as log:
        for _ in range(18):
            script.append_many(log, 5, 3_000)
        script.settle(log)
        seen = log.parts.trimmer.preview(31)
        report = script.trim(log, 31, waste_ratio=0.0)
        assert (seen.low_watermark, len(seen.segments)) == (report.low_watermark, report.segments)
        assert seen.size_bytes == report.bytes_dropped
        assert seen.straddling is not None and seen.straddling.first_lsn <= 31 < seen.straddling.last_lsn
        assert report.rewritten.bytes_before > max(seen.straddling.size_bytes, report.rewritten.bytes_after)
        assert report.rewritten.bytes_after
        script.fail_at("create", TRIM_NEW_NAME, ("sync", TRIM_NEW_NAME), ("remove", TRIM_NEW_NAME))
        assert script.trim(log, 36, waste_ratio=0.0).rewritten.failure
        assert TRIM_NEW_NAME in script.storage.names()
        script.storage.clear()
        assert script.trim(log, 37, waste_ratio=0.0).rewritten.bytes_written
        script.fail_at("replace", TRIM_NEW_NAME, ("sync_directory", "*"))
        assert script.trim(log, 46, waste_ratio=0.0).rewritten.failure
        assert script.trim(log, 47, waste_ratio=0.0).rewritten.bytes_written
        script.check_segments(log)
        script.append(log, 3_000)


def _drain(script: Script) -> None:
    with script.open() as log:
        for _ in range(9):
            script.append(log, 14_000)
        script.may_drop(9)
        drained = log.drain(9)
        script.ledger.keep(9)  # made durable before the first record is seen
        assert [record.lsn for record in drained] == list(range(1, 10))
        script.append(log, 100)


def _held_while_closed(script: Script) -> None:
    with script.open() as log:
        for _ in range(9):
            script.append(log, 14_000)
        hold = log.hold("consumer", 3)
        hold.advance(6)
        script.keep_from("consumer", 6)
    with script.open() as log:
        assert script.trim(log, 9).limit == "claim consumer" and log.first_lsn >= 5
        try:
            log.hold("late", 2)
        except GapError:
            pass  # records 2 to 4 are gone: a claim on them would promise them
        else:
            raise AssertionError("a claim was taken on records that are gone")
        script.append(log, 100)


def _wrong_header(script: Script) -> None:
    """Put a header of another history into the segment in use, whose frames are promised: verify beside the writer."""
    with script.open() as log:
        for _ in range(6):
            script.append(log, 14_000)
        script.settle(log)
        file = script.storage.inner.open(log.parts.segments.open_segments[-1].file.name, "write")
        header = file.read(0, SEGMENT_HEADER_BYTES)
        found = SegmentHeader.decode(header, file.name)
        assert found is not None and verify(script.storage).ok
        file.write(0, [replace(found, previous_end=found.previous_end - found.alignment).encode()], sync=True)
        assert not verify(script.storage).ok
        file.write(0, [header], sync=True)
        file.close()
        script.append(log, 100)


HISTORY_SCENARIOS = (
    Scenario(
        "wrong-header",
        "the segment in use has a header of another history for a moment, which verify reports beside the writer",
        _wrong_header,
        covers=("append", "seal"),
    ),
    Scenario(
        "past-states",
        "a Store is asked for each past state, before and after a compaction",
        _past_states,
        is_store=True,
        covers=("compaction", "checkpoint", "records dropped"),
    ),
    Scenario(
        "diff",
        "a checkpoint removes the segment, and the snapshot, that a diff is about to read",
        _diff,
        is_store=True,
        covers=("checkpoint", "removal"),
    ),
    Scenario(
        "events",
        "a compaction of records without a key, of single records and of deletions of nothing",
        _events,
        is_store=True,
        covers=("compaction", "records kept", "records dropped", "tombstones dropped"),
    ),
    Scenario(
        "preview",
        "trims drop and rewrite the segments that a preview names; one fails, and the next one removes its file",
        _preview,
        covers=("trim rewrite", "removal"),
    ),
    Scenario(
        "drain",
        "durability none: records are read and trimmed in one call, which makes them durable first",
        _drain,
        replace(SMALL, durability="none"),
        covers=("append", "removal"),
    ),
    Scenario(
        "held",
        "a log is closed while a claim of its own is in force, and limits a trim after it was opened again",
        _held_while_closed,
        covers=("claim limits", "manifest"),
    ),
)
