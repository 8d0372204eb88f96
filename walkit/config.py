"""Options: frozen, keyword-only, validated once, defaults in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

from walkit._internal.arguments import (
    NUMBER_MAX,
    check_bool,
    check_choice,
    check_kind,
    check_number,
    check_whole,
    refuse,
)
from walkit._internal.html import options as options_html


class Policy(Protocol):
    """When to seal a frame: `walkit.policy` defines its question and answers, and has the usual ones."""

    def decide(self, queue: Any) -> Any:
        """Decide about the waiting records: `Take` or `Wait`."""


KIB = 1024
MIB = 1024 * KIB

Durability = Literal["sync", "interval", "none"]
RecoveryPolicy = Literal["prefix", "holes", "absolute", "salvage"]

DURABILITY_PROMISES: dict[str, tuple[str, str, str, bool]] = {
    "sync": ("nothing", "nothing", "on stable storage", False),
    "interval": ("nothing", "what the last interval took", "in the page cache, synced by a timer", True),
    "none": ("nothing", "anything since the last sync() or seal", "in the page cache", True),
}
"""Per durability level: the acknowledged records lost by a killed process, those lost by a power cut, where an
acknowledged record is, and whether LSNs of acknowledged records may be given again after a power cut."""

INTERVAL_MS_DEFAULT = 50
IDLE_MARKER_MS_DEFAULT = 200
ALIGNMENT_BUFFERED = 64
ALIGNMENT_DIRECT = 4096
SEGMENT_BYTES_MIN = 64 * KIB
SEGMENT_BYTES_MAX = 1 << 40
FRAME_BYTES_MAX_MAX = 1 << 30
WINDOW_BYTES_MAX = 1 << 40
JOURNAL_SLOTS_MAX = 1 << 24


class Following(int):
    """A default that follows from another option or the place, and is worked out again if that is replaced."""

    __slots__ = ()


FRAME_BYTES_MAX_DEFAULT = Following(4 * MIB)
IN_FLIGHT_DEFAULT = Following(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Limits of age, bytes and records beyond which the log drops records by itself. None means no limit.

    Any limit is enough to drop a segment, any claim enough to keep it; only over `hard_bytes_max` those in the
    way are dropped. Whole segments go, oldest first; the newest one stays, however old or large it is. With
    `at_capacity="refuse"` nothing is dropped for its bytes: appends are refused until a trim makes room.
    """

    age_s: float | None = None
    """Drop a segment when its newest record is older, in seconds."""
    bytes_max: int | None = None
    """Drop the oldest while the segment files, as far as they are used, are larger."""
    records_max: int | None = None
    """Drop the oldest while there are more records in the log."""
    below_claims: bool = False
    """Drop the records that the slowest claim has passed; none without a claim."""
    hard_bytes_max: int | None = None
    """Drop the oldest while the segment files are larger, regardless of claims: a consumer so slow gets a
    GapError."""
    at_capacity: Literal["drop", "refuse"] = "drop"
    """At `bytes_max`, drop the oldest, or refuse records that need a new segment: LogFullError (reason "retention").
    Looked at once a segment, so the files never pass `bytes_max`, which has room for two segments at least. The other
    limits still drop."""

    def __post_init__(self) -> None:
        check_number(self.age_s, "age_s", 0, 1e10, above=True, or_none=True)
        for name in ("bytes_max", "records_max", "hard_bytes_max"):
            check_whole(getattr(self, name), name, 1, NUMBER_MAX, or_none=True)
        _check_bools(self)
        check_choice(self.at_capacity, ("drop", "refuse"), "at_capacity")
        limit, hard = self.bytes_max, self.hard_bytes_max
        if self.at_capacity == "refuse" and (limit is None or hard is not None):
            refuse("at_capacity", "refuse", "needs bytes_max, and excludes hard_bytes_max, which drops", hard)
        if limit is not None and hard is not None and hard < limit:
            refuse("hard_bytes_max", hard, f"at least bytes_max={limit!r}", limit)

    def _repr_html_(self) -> str:
        return options_html("Retention", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogOptions:
    """How a log is written, read back and recovered. Byte counts are bytes, times are milliseconds.

    One option stays fixed for a log's life and is stored in it: `ack_order`. None means the log's own ("append" for a
    new one); a conflict is an OptionsError that names both values. Limits bind only the segments made from now on.
    """

    durability: Durability = "sync"
    """The promise of an acknowledgement: see DURABILITY_PROMISES."""
    interval_ms: int | None = None
    """durability="interval" only: the longest time an acknowledged record waits for its sync. Default 50."""
    in_flight: int = IN_FLIGHT_DEFAULT
    """Frames written at the same time; 1 is group commit. Default: 1, and 16 for a log on object storage."""
    ack_order: Literal["append", "completion"] | None = None
    """Whether acknowledgements follow append order or completion order; fixed for the log's life."""
    reorder_window_bytes: int | None = None
    """How far frames may be past the oldest that is still being written; stored in each segment, so that recovery
    knows how far past a hole to look. None: `in_flight * frame_bytes_max`. Only with `in_flight` above 1."""
    policy: Policy | None = None
    """When to seal a frame: see `walkit.policy`; None takes all that waits. One object for one log."""
    write_timeout_ms: int | None = 30_000
    """A call to the device that has not returned after this time, and a second of grace, has failed, with everything
    after it: the log is poisoned, and no caller waits longer, except one that writes its own frame in `append`.
    `close` raises StorageError then, and the lock is freed when the device answers. None waits forever."""
    direct_io: bool = False
    """Write past the page cache (O_DIRECT, and O_DSYNC at level "sync"), frames aligned to 4096 bytes. If the place
    refuses that, the log is written through the page cache, and an event reports it."""
    segment_bytes: int = 64 * MIB
    """Size of one segment file, header included."""
    frame_bytes_max: int = FRAME_BYTES_MAX_DEFAULT
    """Largest frame, header and padding included; so also the limit of one record or transaction. Default: 4 MiB, or
    what a segment of `segment_bytes` has room for where that is less."""
    codec: Literal["zstd"] | None = None
    """Compresses the body of a frame if that makes it smaller."""
    queue_bytes_max: int = 64 * MIB
    """Most bytes of records that wait for their frame."""
    on_full: Literal["block", "raise"] = "block"
    """The behaviour of an append when the queue is full."""
    recovery: RecoveryPolicy = "prefix"
    """The treatment of damage at an opening: see `walkit.recovery.plan`. All of them refuse a
    folder with several histories: `walkit repair --policy salvage` makes a log of each history."""
    retention: Retention = field(default_factory=Retention)
    """Limits beyond which the log drops records by itself."""
    idle_marker_ms: int = IDLE_MARKER_MS_DEFAULT
    """After this idle time one mark frame promises the tail; 0 writes none."""
    link_over: int | None = None
    """Values of more bytes go to `payload_log`, and the log keeps a link to each: see docs/link-records.md."""
    payload_log: Any = None
    """The place of the log that keeps these values: a path, a URL, a storage or an object store. It belongs to this log
    alone."""

    def __post_init__(self) -> None:
        _check_bools(self)
        _check_choices(self)
        _follow_segment_bytes(self)
        _check_numbers(self)
        _check_retention(self)
        _check_window(self)
        _check_links(self)
        if self.interval_ms is not None and self.durability != "interval":
            text = f"only with durability='interval', not {self.durability!r}"
            refuse("interval_ms", self.interval_ms, text, self.durability)

    @property
    def interval_s(self) -> float:
        """Seconds between two syncs of durability="interval"."""
        return (INTERVAL_MS_DEFAULT if self.interval_ms is None else self.interval_ms) / 1000

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain values, for run records and reports."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["frame_bytes_max"], values["in_flight"] = int(self.frame_bytes_max), int(self.in_flight)
        values["policy"] = None if self.policy is None else repr(self.policy)
        values["payload_log"] = None if self.payload_log is None else str(self.payload_log)
        values["retention"] = {f.name: getattr(self.retention, f.name) for f in fields(Retention)}
        return values

    def _repr_html_(self) -> str:
        return options_html("LogOptions", self)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """How a store keeps its state."""

    journal_slots: int | None = None
    """Records that may be in no checkpoint: an append beyond them waits for one, or is refused. None: no bound."""
    checkpoint_margin: int | None = None
    """`journal_slots` only: a checkpoint is taken by itself when so many records still fit. Default an eighth of the
    slots. 0: none is taken for that, and a full journal refuses until the caller has taken one."""
    checkpoint_every: int | None = None
    """Records after which a checkpoint is taken by itself."""

    def __post_init__(self) -> None:
        _check_bools(self)
        slots, margin = self.journal_slots, self.checkpoint_margin
        check_whole(slots, "journal_slots", 2, JOURNAL_SLOTS_MAX, or_none=True)
        check_whole(margin, "checkpoint_margin", 0, or_none=True)
        if margin is not None and (slots is None or margin >= slots):
            refuse("checkpoint_margin", margin, f"below journal_slots={slots!r}", slots)
        check_whole(self.checkpoint_every, "checkpoint_every", or_none=True)

    @property
    def margin(self) -> int:
        """Records that still fit when a checkpoint is forced; 0: never forced."""
        if self.journal_slots is None:
            return 0
        return max(self.journal_slots // 8, 1) if self.checkpoint_margin is None else self.checkpoint_margin

    @property
    def checkpoint_after(self) -> int | None:
        """Records after which a checkpoint is taken automatically, for any reason; None: never."""
        forced = None
        if self.journal_slots is not None and self.margin:
            forced = self.journal_slots - self.margin
        return min((n for n in (self.checkpoint_every, forced) if n is not None), default=None)

    def _repr_html_(self) -> str:
        return options_html("StoreOptions", self)


def _check_bools(options: LogOptions | StoreOptions | Retention) -> None:
    """Every field whose default is True or False takes these two."""
    for f in fields(options):
        if isinstance(f.default, bool):
            check_bool(getattr(options, f.name), f.name)


def _check_choices(options: LogOptions) -> None:
    choices: dict[str, tuple[object, ...]] = {
        "durability": ("sync", "interval", "none"),
        "ack_order": (None, "append", "completion"),
        "codec": (None, "zstd"),
        "on_full": ("block", "raise"),
        "recovery": ("prefix", "holes", "absolute", "salvage"),
    }
    for name, allowed in choices.items():
        check_choice(getattr(options, name), allowed, name)


def _follow_segment_bytes(options: LogOptions) -> None:
    """Work out the default of `frame_bytes_max`; one that the caller gave stays as it is."""
    size = options.segment_bytes
    if type(options.frame_bytes_max) is Following and type(size) is int and size >= SEGMENT_BYTES_MIN:
        fitting = Following(min(FRAME_BYTES_MAX_DEFAULT, size - 4 * KIB))
        object.__setattr__(options, "frame_bytes_max", fitting)


def _check_numbers(options: LogOptions) -> None:
    bounds: dict[str, tuple[int, int]] = {
        "in_flight": (1, 1024),
        "segment_bytes": (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
        "frame_bytes_max": (4 * KIB, FRAME_BYTES_MAX_MAX),
        "queue_bytes_max": (4 * KIB, 1 << 40),
        "idle_marker_ms": (0, 86_400_000),
    }
    if options.interval_ms is not None:
        bounds["interval_ms"] = (1, 86_400_000)
    if options.write_timeout_ms is not None:
        bounds["write_timeout_ms"] = (1, 86_400_000)
    if options.reorder_window_bytes is not None:
        bounds["reorder_window_bytes"] = (8 * KIB, WINDOW_BYTES_MAX)
    for name, (low, high) in bounds.items():
        check_whole(getattr(options, name), name, low, high)
    frame, least, segment = options.frame_bytes_max, 2 * ALIGNMENT_DIRECT, options.segment_bytes
    if options.direct_io and frame < least:
        refuse("frame_bytes_max", frame, f"at least {least:,} with direct_io, which aligns frames", least)
    if frame > segment - 4 * KIB:
        text = f"at most {segment - 4 * KIB:,}, to fit segment_bytes={segment!r} beside the segment's header"
        refuse("frame_bytes_max", frame, text, segment)


def _check_window(options: LogOptions) -> None:
    policy = options.policy
    if policy is not None and (isinstance(policy, type) or not callable(getattr(policy, "decide", None))):
        text = "an object with decide(queue), such as walkit.policy.Linger(...) or walkit.policy.named('adaptive')"
        refuse("policy", policy, text)
    window, least = options.reorder_window_bytes, 2 * options.frame_bytes_max
    if window is not None and (options.in_flight == 1 or window < least):
        text = f"at least {least:,} (two frames of frame_bytes_max), with in_flight above 1"
        refuse("reorder_window_bytes", window, text, least)


def _check_retention(options: LogOptions) -> None:
    check_kind(options.retention, Retention, "retention", or_none=False)
    limit, least = options.retention.bytes_max, 2 * options.segment_bytes
    if options.retention.at_capacity == "refuse" and limit is not None and limit < least:
        text = "with at_capacity='refuse', as only the segment that is not in use can be trimmed"
        refuse("bytes_max", limit, f"at least two segments ({least:,}) {text}", least)


LINK_OVER_MIN = 64
"""A link has 40 bytes, so a value below this limit would gain nothing."""


def _check_links(options: LogOptions) -> None:
    over, place = options.link_over, options.payload_log
    if (over is None) != (place is None):
        refuse("link_over", over, "given together with payload_log, or neither of them", place)
    if over is not None:
        check_whole(over, "link_over", LINK_OVER_MIN, int(options.frame_bytes_max) // 2)
