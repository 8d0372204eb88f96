"""Metric names with their units and meaning; `log.statistics()` is a frozen snapshot of them.

Dashboards, notebooks and tests read these names and nothing else (etcd's and raft-wal's metrics files are the model).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from walkit._html import table, tag


def _metric(unit: str, meaning: str) -> int:
    return field(default=0, metadata={"unit": unit, "help": meaning})


@dataclass(frozen=True, kw_only=True, slots=True)
class LogStatistics:
    """What a log has done since it was opened, and its positions. A frozen snapshot."""

    appended_lsn: int = _metric("lsn", "last LSN given")
    acked_lsn: int = _metric("lsn", "last LSN acknowledged")
    durable_lsn: int = _metric("lsn", "last LSN on stable storage, with all before it")
    first_lsn: int = _metric("lsn", "oldest LSN that can be read")
    records_appended: int = _metric("records", "records given an LSN since opening")
    records_acked: int = _metric("records", "records acknowledged since opening")
    user_bytes: int = _metric("bytes", "bytes of keys and values written since opening")
    frames_written: int = _metric("frames", "frames written since opening, marks included")
    frame_bytes: int = _metric("bytes", "bytes of frames written since opening, padding included")
    padding_bytes: int = _metric("bytes", "zero bytes that fill frames up to the alignment")
    alignment: int = _metric(
        "bytes", "frames begin at multiples of this: 4096 where direct I/O is in use, else 64"
    )
    marks_written: int = _metric("frames", "frames without records, written when the log fell idle")
    syncs: int = _metric("syncs", "waits for stable storage on the path of frames")
    write_ns: int = _metric("ns", "time spent in writes and syncs of frames")
    prepare_ns: int = _metric("ns", "time spent encoding frames")
    queue_records: int = _metric("records", "records that wait for their frame")
    queue_bytes: int = _metric("bytes", "bytes that wait for their frame")
    queue_bytes_max: int = _metric("bytes", "limit of queue_bytes")
    deliveries_waiting: int = _metric(
        "frames", "acknowledged frames whose callbacks and observers have not run yet"
    )
    callback_errors: int = _metric("errors", "errors that observers and callbacks have raised since opening")
    rotations: int = _metric("segments", "segments begun since opening")
    segments: int = _metric("segments", "segments that are the log now")
    log_bytes: int = _metric("bytes", "bytes of frames in the log now")
    poisoned: int = _metric("flag", "1 after a failed write or sync")

    @property
    def space_amplification(self) -> float:
        """Bytes of frames written per byte of keys and values since opening; 0.0 before the first."""
        return self.frame_bytes / self.user_bytes if self.user_bytes else 0.0

    def _repr_html_(self) -> str:
        """Render a table of name, value, unit and meaning for a notebook."""
        return _metrics_table(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreStatistics(LogStatistics):
    """What a store's log has done since it was opened, and what its table holds. A frozen snapshot."""

    keys: int = _metric("keys", "live keys in the table")
    applied_lsn: int = _metric("lsn", "last LSN applied to the table")
    frames_waiting: int = _metric("frames", "acknowledged frames not applied yet")
    snapshot_lsn: int = _metric("lsn", "LSN of the newest snapshot taken or restored; 0 where there was none")
    journal_slots: int = _metric("records", "records that may be in no snapshot; 0 where nothing bounds them")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficStatistics:
    """What a primary has sent of frames, or a replica taken in, since it was made. A frozen snapshot."""

    batches: int = _metric("batches", "batches of frames sent, or taken in")
    frame_bytes: int = _metric("bytes", "bytes of their frames as they are stored")
    plain_bytes: int = _metric("bytes", "bytes that travelled as they are stored")
    zstd_bytes: int = _metric("bytes", "bytes that travelled compressed by zstd")
    snappy_bytes: int = _metric("bytes", "bytes that travelled compressed by snappy")

    @property
    def travelled_bytes(self) -> int:
        """Bytes of batches on the wire, without what surrounds them."""
        return self.plain_bytes + self.zstd_bytes + self.snappy_bytes

    def _repr_html_(self) -> str:
        """Render a table of name, value, unit and meaning for a notebook."""
        return _metrics_table(self)


def _metrics_table(statistics: LogStatistics | TrafficStatistics) -> str:
    rows = [
        (tag("code", f.name), f"{getattr(statistics, f.name):,}", f.metadata["unit"], f.metadata["help"])
        for f in fields(statistics)
    ]
    return table(rows, ("metric", "value", "unit", "meaning"), right=(1,))
