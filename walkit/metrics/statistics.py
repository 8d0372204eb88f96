"""Counters of a log, a store, a primary and a replica: frozen snapshots, each number with its unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from walkit._internal.html import table, tag


def _metric(unit: str, meaning: str) -> int:
    """Declare a number of now: it goes up and down."""
    return field(default=0, metadata={"unit": unit, "help": meaning, "counts": False})


def _counter(unit: str, meaning: str) -> int:
    """Declare a number that only grows while its object lives."""
    return field(default=0, metadata={"unit": unit, "help": meaning, "counts": True})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Metrics:
    """Numbers that are declared by `_metric` and `_counter`."""

    def _repr_html_(self) -> str:
        """Render a table of name, value, unit and meaning for a notebook."""
        rows = [
            (tag("code", f.name), f"{getattr(self, f.name):,}", f.metadata["unit"], f.metadata["help"])
            for f in fields(self)
        ]
        return table(rows, ("metric", "value", "unit", "meaning"), right=(1,))


@dataclass(frozen=True, kw_only=True, slots=True)
class LogStatistics(_Metrics):
    """The counters of a log since its opening, and its positions. A frozen snapshot."""

    appended_lsn: int = _metric("lsn", "last LSN given")
    acked_lsn: int = _metric("lsn", "last LSN acknowledged with all before it")
    durable_lsn: int = _metric("lsn", "last LSN on stable storage, with all before it")
    first_lsn: int = _metric("lsn", "oldest LSN that can be read")
    records_appended: int = _counter("records", "records given an LSN since opening")
    records_acked: int = _counter("records", "records since opening up to `acked_lsn`")
    user_bytes: int = _counter("bytes", "bytes of keys and values written since opening")
    frames_written: int = _counter("frames", "frames written since opening, marker frames included")
    frame_bytes: int = _counter("bytes", "bytes of frames written since opening, padding included")
    padding_bytes: int = _counter("bytes", "zero bytes that fill frames up to the alignment")
    alignment: int = _metric(
        "bytes", "frames begin at multiples of this: 4096 if direct I/O is in use, else 64"
    )
    marker_frames: int = _counter("frames", "frames without records, written when the log fell idle")
    syncs: int = _counter("syncs", "waits for stable storage on the path of frames")
    write_ns: int = _counter("ns", "time spent in writes and syncs of frames")
    prepare_ns: int = _counter("ns", "time spent encoding frames")
    queue_records: int = _metric("records", "records that wait for their frame")
    queue_bytes: int = _metric("bytes", "bytes that wait for their frame")
    queue_bytes_max: int = _metric("bytes", "limit of queue_bytes")
    deliveries_waiting: int = _metric(
        "frames", "acknowledged frames whose callbacks and observers have not run yet"
    )
    callback_errors: int = _counter("errors", "errors that observers and callbacks have raised since opening")
    rotations: int = _counter("segments", "segments started since opening")
    segments: int = _metric("segments", "segments that are the log now")
    log_bytes: int = _metric("bytes", "bytes of frames in the log now")
    unacked_records: int = _metric(
        "records", "records in the log that are not acknowledged: replicas lack them"
    )
    late_records: int = _counter(
        "records", "records that replicas had not in time, so that their callers got CommitFailedError"
    )
    payload_dead_bytes: int = _metric(
        "bytes", "bytes of dead values in the payload log, as the last checkpoint, compaction or count found"
    )
    poisoned: int = _metric("flag", "1 after a failed write or sync")

    @property
    def space_amplification(self) -> float:
        """Bytes of frames written per byte of keys and values since opening; 0.0 before the first."""
        return self.frame_bytes / self.user_bytes if self.user_bytes else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStatistics(LogStatistics):
    """The counters of a store's log since its opening, and of its table. A frozen snapshot."""

    keys: int = _metric("keys", "live keys in the table")
    applied_lsn: int = _metric("lsn", "last LSN applied to the table")
    frames_waiting: int = _metric("frames", "acknowledged frames not applied yet")
    snapshot_lsn: int = _metric("lsn", "LSN of the newest snapshot taken or restored; 0 before the first")
    journal_slots: int = _metric("records", "records that may be in no snapshot; 0 without a bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficStatistics(_Metrics):
    """The frames that a primary has sent, or a replica imported, since it was made. A frozen snapshot."""

    batches: int = _counter("batches", "batches of frames sent, or taken in")
    frame_bytes: int = _counter("bytes", "bytes of their frames as they are stored")
    plain_bytes: int = _counter("bytes", "bytes that travelled as they are stored")
    zstd_bytes: int = _counter("bytes", "bytes that travelled compressed by zstd")
    snappy_bytes: int = _counter("bytes", "bytes that travelled compressed by snappy")

    @property
    def travelled_bytes(self) -> int:
        """Bytes of batches on the wire, without their envelopes."""
        return self.plain_bytes + self.zstd_bytes + self.snappy_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerStatistics(_Metrics):
    """How far a replica or a delta reader is, as its primary knows it; a lag is None without contact."""

    lsn: int = _metric("lsn", "last LSN that a replica has acknowledged, or a delta reader has applied")
    lag_records: int | None = _metric(
        "records", "durable records that it does not have; absent without contact"
    )
    lag_bytes: int | None = _metric("bytes", "bytes of frames that it does not have; absent without contact")
    lag_ns: int | None = _metric("ns", "for how long it has lacked a durable record; absent without contact")
    held_bytes: int = _metric("bytes", "bytes sent and not acknowledged, or kept for a delta reader")
    streaming: int = _metric("flag", "1 if it has all but the frames of the last moment")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaServedStatistics(_Metrics):
    """The answers of a primary to delta readers since it was made. A frozen snapshot."""

    deltas: int = _counter("answers", "answers with frames")
    ends: int = _counter("answers", "answers without frames: the reader reads the log up to their end")
    nothing: int = _counter("answers", "answers that say that nothing is new")
    repeated: int = _counter("answers", "answers that were given again")
    refused: int = _counter("polls", "polls that were refused")
    delta_bytes: int = _counter("bytes", "bytes of frames in answers, repeats not counted")
    sessions_opened: int = _counter("sessions", "sessions begun")
    sessions_closed: int = _counter("sessions", "sessions over")
    sessions: int = _metric("sessions", "sessions now")
    sessions_syncing: int = _metric("sessions", "sessions whose next answer can have frames")
    held_bytes: int = _metric("bytes", "bytes of frames kept for sessions now")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaReaderStatistics(_Metrics):
    """The input of a delta reader since it was made, by path. A frozen snapshot."""

    polls: int = _counter("polls", "polls that were answered")
    poll_failures: int = _counter("polls", "polls that failed, or whose answer was damaged")
    refusals: int = _counter("polls", "polls that were refused")
    sessions: int = _counter("sessions", "sessions started at the primary")
    deltas: int = _counter("deltas", "deltas that were taken")
    delta_bytes: int = _counter("bytes", "bytes of frames that came by delta")
    loads: int = _counter("loads", "ranges read from the log")
    loaded_bytes: int = _counter("bytes", "bytes of frames read from the log")
    retries: int = _counter("loads", "ranges that were read again after an error")
    damaged: int = _counter("deltas", "deltas that contradicted their answer; their range was read")
    unfit: int = _counter("deltas", "deltas that did not continue, or came in a crowd; their range was read")
    looks: int = _counter("looks", "looks at the log's own end: while no poll is answered, else rarely")
    held_bytes: int = _metric("bytes", "bytes that wait to be applied now")
    records: int = _counter("records", "records applied")
    checkpoints: int = _counter("checkpoints", "checkpoints of the reader's own")

    @property
    def hit_rate(self) -> float:
        """The part of the bytes that came by delta, from 0 to 1; 0.0 before the first byte."""
        return self.delta_bytes / max(self.delta_bytes + self.loaded_bytes, 1)
