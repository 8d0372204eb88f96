"""Shared by the crash tests: a log on memory storage, driven, and asked what a crash leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import walkit
from walkit.models import CrashingStorage
from walkit.storage.interface import Storage

SMALL = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)
Row = tuple[int, bytes | None, bytes | None]


def rows_of(log: walkit.WriteAheadLog) -> list[Row]:
    """Return (kind, key, value) of every record, having checked that LSNs are dense from 1."""
    records = list(log.read())
    assert [r.lsn for r in records] == list(range(1, len(records) + 1))
    return [(int(r.kind), r.key, r.value) for r in records]


def recovered_rows(image: Storage, options: walkit.LogOptions = SMALL) -> list[Row]:
    """Open what a crash left, and return its records."""
    with walkit.open(storage=image, options=options) as log:
        return rows_of(log)


@dataclass
class Script:
    """Operations on a log, with the appended records and how many of them were acknowledged."""

    appended: list[Row] = field(default_factory=list)
    acknowledged: int = 0

    def check(self, rows: list[Row]) -> None:
        """Nothing acknowledged is missing, nothing is invented: the recovered records are a prefix of the appended."""
        assert len(rows) >= self.acknowledged, f"{self.acknowledged} acknowledged, {len(rows)} recovered"
        assert rows == self.appended[: len(rows)]

    def acked(self) -> None:
        """Everything appended so far has been acknowledged."""
        self.acknowledged = len(self.appended)

    def run(self, log: walkit.WriteAheadLog, after_ack: Callable[[], None], steps: int = 60) -> None:
        """Append in every way there is, over several segments; `after_ack` is called after each acknowledgement."""
        for i in range(steps):
            value = b"%04d" % i * (1 + i * 211 % 1500)
            way = i % 6
            if way == 0:
                self.appended.append((1, b"k%d" % (i % 5), value))
                log.append(value, b"k%d" % (i % 5))
            elif way == 1:
                self.appended.append((2, b"k%d" % (i % 5), None))
                log.delete(b"k%d" % (i % 5))
            elif way == 2:
                self.appended += [(1, b"a", value), (2, b"b", None), (1, None, b"event")]
                with log.transaction() as tx:
                    tx.put(b"a", value)
                    tx.delete(b"b")
                    tx.append(b"event")
            elif way == 3:
                self.appended += [(1, None, value), (1, None, b"")]
                log.submit(value)
                log.submit(b"").result()
            elif way == 4:
                self.appended += [(1, b"m", value)] * 3
                log.append_many([value] * 3, [b"m"] * 3)
            else:
                self.appended += [(1, None, value)] * 2
                log.submit_many([value] * 2).result()
            self.acked()
            after_ack()


def log_of(storage: Storage, options: walkit.LogOptions = SMALL) -> walkit.WriteAheadLog:
    """Open a log on this storage."""
    return walkit.open(storage=storage, options=options)


def dirty_image(records: int = 40, options: walkit.LogOptions = SMALL) -> tuple[CrashingStorage, list[Row]]:
    """Return what a power cut left of a log in use: unsealed segments, a torn unacknowledged tail, and its rows."""
    storage = CrashingStorage()
    log = log_of(storage, options)
    script = Script()
    script.run(log, lambda: None, records)
    number = max(s.number for s in log.parts.segments.open_segments)
    segment = next(s for s in log.parts.segments.open_segments if s.number == number)
    assert segment.header is not None
    torn = segment.header.offset_of(segment.end_position)
    segment.file.write(torn, [b"WLKF" + b"torn" * 50])
    image = storage.process_kill()
    log.close()
    return image, script.appended
