"""The messages of a delta reader and the server of its log, as plain values, and the fields of each version.

A delta reader shares the log's storage. It polls: the answer has the log's durable end, and may bring the newest frames
along, so that the reader does not have to read them from the storage. `walkit.proto` is their encoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from walkit.format.checksum import crc32c
from walkit.format.frame import FrameFault, FrameHeader, check_body, check_header
from walkit.format.layout import (
    ALIGNMENT_BUFFERED,
    ALIGNMENT_DIRECT,
    FRAME_BYTES_LIMIT,
    LSN_MAX,
    POSITION_MAX,
)
from walkit.replication.protocol.failures import ProtocolError

DELTA_VERSION_MAX = 2
"""Version 2 may have the frames. A reader that offers less gets answers without them, and reads the log."""
_COVERED = struct.Struct("<6Q")


@dataclass(frozen=True, slots=True)
class DeltaEnd:
    """An end of a range of records: its last LSN, and a position after that record's frame and before the next one's.

    Frames without records may lie between; so two ends of one LSN are the same end, whatever their positions.
    """

    lsn: int = 0
    position: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PollRequest:
    """A reader asks for the answer number `session_epoch` of its session.

    The same number again gets the same answer; the next number confirms that it has come.
    """

    session_id: int = 0
    """0: it has no session."""
    session_epoch: int = 1
    applied: DeltaEnd = DeltaEnd()
    """Everything up to here is applied by the reader, and need not be kept for it."""
    version: int = DELTA_VERSION_MAX
    """The highest version that the reader understands."""
    wait_ms: float | None = None
    """How long the answer may wait for news; None: as long as the server allows; 0: not at all."""
    leave: bool = False
    """The reader needs its session no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PollAnswer:
    """The log is durable up to `end`.

    `delta` is None if the log has to be read, b"" if nothing is new since `first`, else the frames of all records after
    `first` up to `end`.
    """

    version: int
    session_id: int
    """If it is not the requested one, the session is new, and knows none of the earlier answers."""
    session_epoch: int
    end: DeltaEnd
    log_id: int
    epoch_id: int
    """The opening of the log that wrote the frames."""
    first: DeltaEnd | None = None
    delta: bytes | None = field(default=None, repr=False)
    crc: int | None = None
    """CRC-32C of identity, range and frames."""

    def as_version(self, version: int) -> PollAnswer:
        """Return the answer for a reader of this version: itself, or without the fields that the version lacks."""
        if version >= self.version:
            return self
        return replace(self, version=version, first=None, delta=None, crc=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class PollRefusal:
    """A request is refused; `reason` is one of REFUSALS."""

    reason: str
    message: str


REFUSALS = {
    "version": "no version is known to both",
    "full": "no more sessions are taken now; try again",
    "busy": "too many requests for one answer wait; another one has come",
    "stale": "a later answer was requested before; the session is unchanged",
    "failed": "the log's frames could not be taken; poll again, in a new session",
    "left": "the session is closed at the reader's request",
    "closed": "the log was closed, or its server stops",
}


def checksum_of(answer: PollAnswer) -> int:
    """Return the CRC-32C of an answer that has a delta."""
    first, delta = answer.first, answer.delta
    assert first is not None and delta is not None
    end, ids = answer.end, (answer.log_id, answer.epoch_id)
    return crc32c(delta, crc32c(_COVERED.pack(*ids, first.lsn, first.position, end.lsn, end.position)))


def delta_frames(answer: PollAnswer) -> list[tuple[FrameHeader, memoryview]]:
    """Return (header, bytes) of each frame of an answer's delta: all records after `first` up to `end`, in order.

    ProtocolError if the delta is damaged, belongs to another log or opening than the answer names, or does not cover
    exactly that range. FormatVersionError for a frame of a newer format.
    """
    first, delta = answer.first, answer.delta
    if first is None or delta is None:
        return []
    _require(checksum_of(answer) == answer.crc, "crc", answer.crc, "it is not that of the delta")
    frames: list[tuple[FrameHeader, memoryview]] = []
    view, at = memoryview(delta), 0
    lsn, position = first.lsn, first.position
    while at < len(delta):
        header, fault = check_header(delta, at, ALIGNMENT_BUFFERED, FRAME_BYTES_LIMIT)
        if fault is FrameFault.LENGTH:  # it is padded as its segment says: to 64 bytes, or to 4096
            header, fault = check_header(delta, at, ALIGNMENT_DIRECT, FRAME_BYTES_LIMIT)
        if header is None:
            raise _wrong("delta", fault, f"a frame begins at byte {at:,}")
        frame = view[at : at + header.footprint]
        fault = check_body(header, frame)
        _require(fault is None, "delta", fault, f"the frame at byte {at:,} is intact")
        ids = (header.log_id, header.epoch_id)
        _require(ids == (answer.log_id, answer.epoch_id), "epoch_id", ids, "the frames are the named log's")
        _require(header.first_lsn == lsn + 1, "first", header.first_lsn, f"LSN {lsn + 1:,} follows")
        _require(header.records == header.span, "delta", header.records, f"there are {header.span:,} records")
        _require(header.position >= position, "first", header.position, f"it is from {position:,} on")
        lsn, position, at = header.last_lsn, header.end_position, at + header.footprint
        frames.append((header, frame))
    _require(lsn == answer.end.lsn, "end", answer.end.lsn, f"the delta ends with LSN {lsn:,}")
    _require(position <= answer.end.position, "end", answer.end.position, f"the delta ends at {position:,}")
    return frames


def check_request(request: PollRequest) -> None:
    """Raise ProtocolError for a request with a value that no reader sends."""
    applied = request.applied
    _require(0 <= request.session_id < 1 << 64, "session_id", request.session_id, "it has 64 bits")
    _require(1 <= request.session_epoch < 1 << 63, "session_epoch", request.session_epoch, "it counts from 1")
    _require(0 <= applied.lsn <= LSN_MAX, "applied", applied, "it is an LSN, or 0")
    _require(0 <= applied.position <= POSITION_MAX, "applied", applied, "it is a position")
    _require(request.version >= 0, "version", request.version, "versions count from 0")
    _require(
        request.wait_ms is None or request.wait_ms >= 0, "wait_ms", request.wait_ms, "it is not negative"
    )


def _require(holds: bool, field: str, found: object, rule: str) -> None:
    if not holds:
        raise _wrong(field, found, rule)


def _wrong(field: str, found: object, rule: str) -> ProtocolError:
    return ProtocolError(
        f"a poll has {field}={found!r:.80}: {rule}. Nothing of it was used", field=field, found=found
    )
