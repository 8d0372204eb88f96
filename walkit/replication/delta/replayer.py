"""The core of a delta reader's replay: answers in, loads and applications out, in order; without I/O.

A delta is used if it begins at the end of everything before it; any other range is loaded from the shared log. Loads
run in parallel, and their frames are applied in the order of the records. `applied` moves over applied records only: a
failure is tried again, or ends the replay; no range is ever skipped.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from walkit._internal.arguments import check_whole
from walkit.errors import DivergenceError, StorageError, WalkitError
from walkit.replication.core.absence import PAUSE_MOST_MS, Absence
from walkit.replication.core.backoff import Backoff
from walkit.replication.delta.messages import DeltaEnd, PollAnswer, delta_frames

_LIMITS_MOST = {
    "loads_max": 64,
    "load_bytes": 1 << 30,
    "bytes_max": 1 << 40,
    "parts_max": 1 << 20,
    "tries_max": 1 << 20,
}


@dataclass(frozen=True, slots=True)
class LoadRange:
    """Read the records of these LSNs from the log, and report `loaded` or `load_failed`."""

    number: int
    first_lsn: int
    last_lsn: int


@dataclass(frozen=True, slots=True)
class ApplyRange:
    """Apply this to the state, and report `done`, `apply_failed`, or of a delta `spoiled`.

    `payload` is the result of a load, or the (header, bytes) of each frame of a delta.
    """

    number: int
    first_lsn: int
    last_lsn: int
    payload: object = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndReplay:
    """The replay cannot continue: nothing after `applied` was applied, and nothing will be."""

    error: Exception


ReplayStep: TypeAlias = LoadRange | ApplyRange | EndReplay


@dataclass(frozen=True, kw_only=True)
class ReplayLimits:
    """The bounds of a replay. One load more than `bytes_max` may be held, if everything waits for that one.

    A load brings whole frames: each of those under way may be larger than its share by one frame.
    """

    loads_max: int = 4
    """Loads that run at the same time."""
    load_bytes: int = 1 << 20
    """About the most bytes that are loaded at once."""
    bytes_max: int = 16 << 20
    """Bytes that are loaded, being loaded, or in deltas that wait."""
    parts_max: int = 1024
    """Ranges that wait at the same time; above that a delta is not kept, and its range is loaded."""
    tries_max: int = 10
    """How often a range that the log should have is read short before that ends the replay."""

    def __post_init__(self) -> None:
        """OptionsError for a number out of its bounds: with no load nothing would ever come."""
        for each in fields(self):
            check_whole(getattr(self, each.name), f"limits.{each.name}", 1, _LIMITS_MOST[each.name])


@dataclass(slots=True)
class ReplayCounts:
    """Counts of records and bytes by path."""

    deltas: int = 0
    delta_bytes: int = 0
    loads: int = 0
    loaded_bytes: int = 0
    retries: int = 0
    damaged: int = 0
    """Deltas that did not fit their answer; their ranges were loaded."""
    unfit: int = 0
    """Deltas that did not continue, or came while loads waited for others; their ranges were loaded."""


@dataclass(slots=True, eq=False)
class _Part:
    """A range of records on its way to the state: those after `first` up to `end`."""

    number: int
    first: DeltaEnd
    end: DeltaEnd
    state: Literal["waiting", "loading", "ready", "applying"] = "waiting"
    size_bytes: int = 0
    payload: object = None
    tries: int = 0
    retry_at_ms: float = 0.0
    backoff: Backoff | None = None


class DeltaReplayer:
    """Brings a state to the ends that answers name. Not thread-safe. Times are milliseconds of the shell's clock.

    `answered`, `loaded`, `load_failed`, `done`, `apply_failed` and `tick` as things happen; each returns the steps to
    take, in order. At most one `ApplyRange` is under way.
    """

    def __init__(
        self,
        applied: DeltaEnd,
        *,
        log_id: int,
        limits: ReplayLimits | None = None,
        chance: Callable[[], float] = random.random,
        frames_of: Callable[[PollAnswer], object] = delta_frames,
    ) -> None:
        """Begin with a state that has everything up to `applied`, of the log with this id.

        `frames_of` checks an answer's delta and takes it apart; a WalkitError of it says that the delta is damaged.
        """
        self.applied = applied
        self.failure: Exception | None = None
        self._failed_end = applied
        """The newest end that was known at the failure: it stays known."""
        self.counts = ReplayCounts()
        self.limits = limits or ReplayLimits()
        self._log_id, self._chance, self._check_delta = log_id, chance, frames_of
        self._parts: list[_Part] = []
        self._numbers = 0
        self._absence = Absence()
        self._pumped_ms = -math.inf
        """When the loadable ranges were last checked."""

    @property
    def known(self) -> DeltaEnd:
        """The newest end that is applied or on its way. Safe from any thread."""
        last = self._parts[-1:]
        return last[0].end if last else max(self.applied, self._failed_end, key=lambda end: end.lsn)

    @property
    def parts(self) -> int:
        """How many ranges are on their way: loaded, applied or waiting."""
        return len(self._parts)

    @property
    def held_bytes(self) -> int:
        """Bytes that are loaded, being loaded, or in deltas that wait."""
        return sum(part.size_bytes for part in self._parts)

    @property
    def wake_at_ms(self) -> float | None:
        """When to call `tick`: at the next time at which a load is tried again.

        A load whose time has come waits for room, not for a time: an event of its own makes room.
        """
        times = (part.retry_at_ms for part in self._parts if part.state == "waiting" and part.tries)
        return min((time for time in times if time > self._pumped_ms), default=None)

    def answered(self, answer: PollAnswer, now_ms: float) -> list[ReplayStep]:
        """A poll was answered: the log is durable up to the answer's end, and its delta may be there."""
        if self.failure is not None:
            return []
        if answer.log_id != self._log_id:
            text = f"the server's log has the id {answer.log_id:#x}, the reader's {self._log_id:#x}"
            return self._fail(DivergenceError(text, first_lsn=1))
        known, first, end = self.known, answer.first, answer.end
        if end.lsn > known.lsn:
            frames = self._frames_of(answer)
            if frames is None or first is None:
                self._append_range(end)
            else:
                if first.lsn > known.lsn:
                    self._append_range(first)
                self._append_delta(answer, frames)
        return self._pump(now_ms)

    def loaded(
        self, number: int, payload: object, size_bytes: int, end: DeltaEnd, now_ms: float
    ) -> list[ReplayStep]:
        """A load has brought its records, of `size_bytes` bytes, up to `end`.

        Fewer than requested are a failed load, unless it has as many bytes as a load may: then the rest is loaded next.
        """
        part = self._part(number, "loading")
        if part is None:
            return []
        is_full = part.first.lsn < end.lsn < part.end.lsn and size_bytes >= self.limits.load_bytes
        if end.lsn != part.end.lsn and not is_full:
            text = f"the log ends with LSN {end.lsn:,} for this reader, and LSN {part.end.lsn:,} is durable"
            return self.load_failed(number, StorageError(text), now_ms)
        if is_full:
            self._numbers += 1
            self._parts.insert(self._parts.index(part) + 1, _Part(self._numbers, end, part.end))
        part.state, part.payload, part.size_bytes, part.end = "ready", payload, size_bytes, end
        self.counts.loads += 1
        self.counts.loaded_bytes += size_bytes
        return self._pump(now_ms)

    def note_absence(self, error: Exception, now_ms: float) -> None:
        """The storage was absent for another part of the reader: damage within a minute after is tried again."""
        self._absence.covers(error, now_ms)

    def load_failed(self, number: int, error: Exception, now_ms: float) -> list[ReplayStep]:
        """A load has failed: it is tried again after a while, without an end as long as the storage is absent.

        A StorageError that names no error of the system is tried `tries_max` times. Damage within a minute after the
        storage was absent is tried again too: it may be half there. Any other error ends the replay.
        """
        part = self._part(number, "loading")
        if part is None:
            return []
        again = isinstance(error, StorageError) and part.tries < self.limits.tries_max
        if not (self._absence.covers(error, now_ms) or again):
            return self._fail(error)
        part.backoff = part.backoff or Backoff(most_ms=PAUSE_MOST_MS, chance=self._chance)
        part.state, part.size_bytes = "waiting", 0
        part.retry_at_ms = now_ms + part.backoff.next_ms()
        self.counts.retries += 1
        return self._pump(now_ms)

    def done(self, number: int, now_ms: float) -> list[ReplayStep]:
        """A part was applied."""
        part = self._part(number, "applying")
        if part is None:
            return []
        assert part is self._parts[0] and part.first.lsn == self.applied.lsn
        del self._parts[0]
        self.applied = part.end
        return self._pump(now_ms)

    def apply_failed(self, number: int, error: Exception) -> list[ReplayStep]:
        """The state could not take a range: the replay ends, as it may have taken a part of it."""
        return [] if self._part(number, "applying") is None else self._fail(error)

    def spoiled(self, number: int, now_ms: float) -> list[ReplayStep]:
        """A delta cannot be taken apart, and the state has none of it, or whole frames alone: its range is loaded."""
        part = self._part(number, "applying")
        if part is None:
            return []
        part.state, part.size_bytes = "waiting", 0
        self.counts.damaged += 1
        return self._pump(now_ms)

    def tick(self, now_ms: float) -> list[ReplayStep]:
        """Time has passed."""
        return self._pump(now_ms)

    # -- parts

    def _frames_of(self, answer: PollAnswer) -> object | None:
        """Return the frames of an answer's delta; None if its range has to be loaded."""
        first, delta = answer.first, answer.delta
        if first is None or not delta:
            return None
        # Ranges that wait for a load grow into one. A delta between two of them would make two small loads of it, and
        # many small loads are slower than the log alone.
        crowded = any(part.state == "waiting" for part in self._parts[-1:])
        room = self.held_bytes + len(delta) <= self.limits.bytes_max
        full = crowded or not room or len(self._parts) >= self.limits.parts_max
        if first.lsn < self.known.lsn or full:
            self.counts.unfit += 1
            return None
        try:
            return self._check_delta(answer)
        except WalkitError:  # the log is read instead, and shows any damage of its own
            self.counts.damaged += 1
            return None

    def _append_range(self, end: DeltaEnd) -> None:
        last = self._parts[-1] if self._parts else None
        if last is not None and last.state == "waiting" and not last.tries:
            last.end = end
            return
        self._append(end)

    def _append_delta(self, answer: PollAnswer, frames: object) -> None:
        size = len(answer.delta or b"")
        part = self._append(answer.end)
        part.state, part.payload, part.size_bytes = "ready", frames, size
        self.counts.deltas += 1
        self.counts.delta_bytes += size

    def _append(self, end: DeltaEnd) -> _Part:
        self._numbers += 1
        part = _Part(self._numbers, self.known, end)
        self._parts.append(part)
        return part

    def _part(self, number: int, state: str) -> _Part | None:
        """Return the part of this number if it is in this state: a second or late report changes nothing."""
        if self.failure is not None:
            return None
        return next((part for part in self._parts if part.number == number and part.state == state), None)

    # -- steps

    def _pump(self, now_ms: float) -> list[ReplayStep]:
        if self.failure is not None:
            return []
        self._pumped_ms = now_ms
        steps: list[ReplayStep] = []
        loading = sum(part.state == "loading" for part in self._parts)
        at = 0
        while at < len(self._parts) and loading < self.limits.loads_max:
            part = self._parts[at]
            if part.state == "waiting" and part.retry_at_ms <= now_ms:
                size = self._cut(at)
                if at and self.held_bytes + size > self.limits.bytes_max:
                    break
                part.state, part.size_bytes, part.tries = "loading", size, part.tries + 1
                loading += 1
                steps.append(LoadRange(part.number, part.first.lsn + 1, part.end.lsn))
            at += 1
        head = self._parts[0] if self._parts else None
        if head is not None and head.state == "ready":
            head.state = "applying"
            steps.append(ApplyRange(head.number, head.first.lsn + 1, head.end.lsn, head.payload))
            head.payload = None
        self._check()
        return steps

    def _cut(self, at: int) -> int:
        """Cut a waiting part to the range loaded at once, as far as known; return its bytes."""
        part = self._parts[at]
        first, end = part.first, part.end
        records, size = end.lsn - first.lsn, max(end.position - first.position, 0)
        if size <= self.limits.load_bytes or records == 1:
            return size
        loaded = max(records * self.limits.load_bytes // size, 1)
        position = first.position + size * loaded // records
        middle = DeltaEnd(first.lsn + loaded, position)
        part.end = middle
        self._numbers += 1
        self._parts.insert(at + 1, _Part(self._numbers, middle, end))
        return position - first.position

    def _fail(self, error: Exception) -> list[ReplayStep]:
        self.failure, self._failed_end = error, self.known
        self._parts.clear()
        return [EndReplay(error)]

    def _check(self) -> None:
        """Assert that the parts cover all from the applied end to the known one, and that one part is applied."""
        at = self.applied.lsn
        for part in self._parts:
            assert part.first.lsn == at < part.end.lsn
            at = part.end.lsn
        assert all(part.state != "applying" for part in self._parts[1:])
