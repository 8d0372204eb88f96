"""The messages of publisher and subscriber, as plain values: the protocol without its encoding.

`wire.py` turns them into the protobuf messages of `walkit.proto` and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from walkit.format.layout import FRAME_BYTES_LIMIT
from walkit.format.manifest import EpochRecord, LogEnd

PROTOCOL_MIN = 4
PROTOCOL_MAX = 4
"""The versions of the protocol that this walkit speaks."""
NAME_CHARS_MAX = 128
ID_BYTES = 16
CODECS_MAX = 16
LINEAGE_EPOCHS_MAX = 1 << 16
"""A log with more epochs is not replicated: its lineage would have to be taken in whole."""
BATCH_BYTES_MAX = 4 << 20
"""A batch of several frames holds at most so much; one that is larger holds one frame."""

CHUNK_BYTES_MAX = 1 << 20
"""So many bytes of a file are asked for at once."""
PLAN_FILES_MAX = 1 << 20
"""A plan with more files is not taken."""


def is_name(text: object) -> bool:
    """Return whether a subscriber may have this name: the manifest of the primary's log holds it."""
    return isinstance(text, str) and 1 <= len(text) <= NAME_CHARS_MAX and text.isprintable()


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The subscriber's first message: its name, its log's end, and the versions it understands."""

    name: str
    """A label for people: the id identifies the replica."""
    version_min: int = PROTOCOL_MIN
    version_max: int = PROTOCOL_MAX
    log_id: int = 0
    """0: it has no log yet."""
    lineage: tuple[EpochRecord, ...] = ()
    end: LogEnd = field(default_factory=LogEnd)
    codecs: tuple[str, ...] = ()
    frame_bytes_max: int = FRAME_BYTES_LIMIT
    """The largest frame that it takes."""
    id: bytes = field(default=b"", repr=False)
    """16 bytes, which prove the replica; b"" in a call `Frames`, which has no session."""
    bootstrap: bool = False
    """Whether it takes a Plan if its log cannot be continued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    """The publisher's answer: the frames after the subscriber's end follow."""

    version: int
    log_id: int
    created_us: int
    ack_order: str
    source_lsn: int
    """How far the source is on stable storage."""
    source_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The publisher's last message: why it will not, or cannot, continue.

    `reason` is one of REASONS; `lsn` and `other_lsn` are the facts of the error that it becomes.
    """

    reason: str
    message: str
    lsn: int = 0
    other_lsn: int = 0
    version_min: int = 0
    version_max: int = 0


REASONS = {
    "version": "no version of the protocol is known to both",
    "divergence": "the logs differ from `lsn` on",
    "gap": "record `lsn` is gone; the oldest that can be had is `other_lsn`",
    "name": "a subscriber cannot have this name",
    "rewound": "the subscriber ends below what it has acknowledged before",
    "frame": "the next frame is larger than the subscriber takes",
    "lineage": "the log has more epochs than can be sent",
    "absent": "the storage of the source is away; try again",
    "damage": "the source has found damage in its own log; try again after its repair",
    "closed": "the primary stops, or its log was closed; try again",
    "level": "the source is written at a durability level that promises nothing; try again after another opening",
    "busy": "another session of this id is live; try again",
    "full": "no more replicas are taken now; try again",
    "damaged": "a message was damaged on its way; try again",
    "protocol": "a message that is invalid in this state; try again",
}
LASTING = ("version", "divergence", "gap", "name", "rewound", "frame", "lineage")
"""Reasons that a retry does not fix. A subscriber still tries once more, and ends at the second one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Whole frames, verbatim, of one epoch and of contiguous positions: they follow `after_position`.

    `data` is as `codec` says ("", "zstd" or "snappy"); unpacked it holds the bytes of [start_position, end_position).
    `lineage` is the primary's up to the epoch of the frames, given if the subscriber may lack it.
    """

    after_position: int
    start_position: int
    end_position: int
    epoch: int
    epoch_id: int
    alignment: int
    frame_bytes_max: int
    source_lsn: int
    source_position: int
    lineage: tuple[EpochRecord, ...] = ()
    codec: str = ""
    data: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """Sent after a while without another message. `sent_position` is the end of the frames sent."""

    sent_position: int
    source_lsn: int
    source_position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """All before this end is on the subscriber's stable storage. Also the answer to a heartbeat."""

    end: LogEnd


@dataclass(frozen=True, kw_only=True, slots=True)
class Nack:
    """The last frames did not follow this end, or were not intact: send again from here. Acknowledges nothing."""

    end: LogEnd


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The log to fetch if the subscriber's own cannot be continued: a manifest, and files.

    `manifest` are the bytes of one whose segments are all sealed, `sizes` those of the segments' files in its order,
    then of the snapshot at `snapshot_lsn`, if that is not 0.
    """

    manifest: bytes = field(repr=False)
    sizes: tuple[int, ...]
    snapshot_lsn: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """The subscriber asks for `size` bytes at `offset` of a file of the plan, by the index of its size."""

    file: int
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """The answer to a Fetch. Answers come in the order of the requests."""

    file: int
    offset: int
    data: bytes = field(repr=False)


FromSubscriber: TypeAlias = Hello | Ack | Nack | Fetch
FromPublisher: TypeAlias = Welcome | Refusal | Batch | Heartbeat | Plan | Chunk
