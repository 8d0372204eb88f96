"""The logs and states of a world: real frames, what a disk has of them, and the ledger that outlives every crash."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from walkit.format.frame import FrameHeader, FrameIdentity, decode_frame
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.protocol.frame_run import FrameLimits, FrameRun

ALIGNMENT = 64
FRAME_BYTES_MAX = 4096
LIMITS = FrameLimits(ALIGNMENT, FRAME_BYTES_MAX)
Rows = Sequence[tuple[bytes, bytes]]


class Violation(Exception):  # noqa: N818 - it is a finding about the program, not an error of the simulation
    """A promise was broken: `rule` is its name, as in RULES of `world_rules`."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule, self.text = rule, text


class WorldFrame(NamedTuple):
    """A frame with its bytes and its records. As an observed frame it has what a delta session looks at."""

    header: FrameHeader
    data: bytes
    rows: Rows

    @property
    def first_lsn(self) -> int:
        """LSN of the first record."""
        return self.header.first_lsn

    @property
    def last_lsn(self) -> int:
        """LSN of the last record."""
        return self.header.last_lsn

    @property
    def position(self) -> int:
        """Where it begins."""
        return self.header.position

    @property
    def next_position(self) -> int:
        """Where it ends."""
        return self.header.end_position

    @property
    def end(self) -> LogEnd:
        """What the next frame must follow."""
        header = self.header
        return LogEnd(last_lsn=header.last_lsn, position=header.end_position, chain=header.header_crc)


def rows_of(header: FrameHeader, data: memoryview | bytes) -> Rows:
    """Return (key, value) of each record of a frame, decoded."""
    columns = decode_frame(header, memoryview(data))
    keys, values = columns.key_bytes, columns.value_bytes
    rows, at, value_at = [], 0, 0
    for index in range(columns.count):
        key_size, value_size = (
            lengths if isinstance(lengths, int) else int(lengths[index])
            for lengths in (columns.key_lengths, columns.value_lengths)
        )
        rows.append((bytes(keys[at : at + key_size]), bytes(values[value_at : value_at + value_size])))
        at, value_at = at + key_size, value_at + value_size
    return rows


class State:
    """A keyed state, and a digest over every record that was ever applied to it, with its LSN."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.lsn = 0
        self.digest = 0

    def apply(self, first_lsn: int, rows: Rows) -> None:
        """Apply records, of whatever LSNs: whether they follow is seen by the digest."""
        for lsn, (key, value) in enumerate(rows, first_lsn):
            self.rows[key] = value
            self.lsn, self.digest = lsn, crc32(b"%d %b=%b" % (lsn, key, value), self.digest)

    def copy(self) -> State:
        """Return one of its own."""
        other = State()
        other.rows, other.lsn, other.digest = dict(self.rows), self.lsn, self.digest
        return other


class FrameStore:
    """The frames that one disk has, in order; some of the oldest may be gone."""

    def __init__(self, frames: Sequence[WorldFrame] = (), base: LogEnd | None = None) -> None:
        self.frames = list(frames)
        self.base = base or LogEnd()
        """Where the first of them follows."""
        self.end = self.frames[-1].end if self.frames else self.base
        """What the next frame must follow."""
        self._positions = [frame.position for frame in self.frames]

    @property
    def oldest_lsn(self) -> int:
        """The oldest record that is there, or the next one."""
        return self.base.last_lsn + 1

    def append(self, frame: WorldFrame) -> None:
        """Put a frame after the others."""
        self.frames.append(frame)
        self.end = frame.end
        self._positions.append(frame.position)

    def drop_through(self, lsn: int) -> None:
        """Remove the frames whose records are all at or below this LSN."""
        count = 0
        while count < len(self.frames) and self.frames[count].last_lsn <= lsn:
            count += 1
        if count:
            self.base = self.frames[count - 1].end
            del self.frames[:count], self._positions[:count]

    def after(self, position: int) -> int:
        """Return the index of the first frame that begins at this position or after it."""
        return bisect_left(self._positions, position)

    def end_at(self, position: int) -> LogEnd | None:
        """Return what ends at this position; None where no frame that is there does."""
        if position == self.base.position:
            return self.base
        index = self.after(position)
        end = self.frames[index - 1].end if index else None
        return end if end is not None and end.position == position else None

    def read(self, after: LogEnd, limit_bytes: int) -> FrameRun | None:
        """Return whole frames of one epoch that follow `after`, about so many bytes; None where there are none."""
        index = self.after(after.position)
        if index == len(self.frames):
            return None
        first = self.frames[index].header
        group: list[WorldFrame] = []
        size = 0
        for frame in self.frames[index:]:
            jumps = bool(group) and frame.position != group[-1].next_position
            if frame.header.epoch != first.epoch or jumps or (group and size + len(frame.data) > limit_bytes):
                break
            group.append(frame)
            size += len(frame.data)
        return FrameRun(
            FrameIdentity(first.log_id, first.epoch, first.epoch_id),
            LIMITS,
            after,
            first.position,
            tuple(frame.header for frame in group),
            b"".join(frame.data for frame in group),
        )


class Ledger:
    """All frames that were ever durable at the primary: what every log and state is compared with."""

    def __init__(self) -> None:
        self.frames: list[WorldFrame] = []
        self.lineage: tuple[EpochRecord, ...] = ()
        self.rows: list[tuple[bytes, bytes]] = []
        self.digests = [0]
        """By LSN: of the state that has everything up to it."""
        self.by_position: dict[int, WorldFrame] = {}
        self.ends: dict[int, LogEnd] = {0: LogEnd()}
        """By position."""
        self.end = LogEnd()
        """Where it ends."""
        self._state = State()

    def append(self, frame: WorldFrame) -> None:
        """Note that a frame is durable; Violation where it does not follow what was."""
        end, header = self.end, frame.header
        if (
            header.chain != end.chain
            or header.first_lsn != end.last_lsn + 1
            or header.position < end.position
        ):
            raise Violation("durable", f"{_name(frame)} became durable and does not follow {end}")
        self.frames.append(frame)
        self.by_position[frame.position] = frame
        self.end = self.ends[frame.next_position] = frame.end
        for row in frame.rows:
            self.rows.append(row)
            self._state.apply(self._state.lsn + 1, (row,))
            self.digests.append(self._state.digest)

    def state(self) -> dict[bytes, bytes]:
        """Return the state at the end."""
        return self._state.rows


def _name(frame: WorldFrame) -> str:
    return f"the frame of LSN {frame.first_lsn} to {frame.last_lsn} at position {frame.position}"
