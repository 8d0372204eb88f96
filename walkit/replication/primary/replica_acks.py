"""Semi-synchronous mode: an append is acknowledged when it is durable here and on k replicas.

Each session reports the acknowledgements of its replica. The k-th largest of these ends, each replica counted once, is
the limit of the log's acknowledgements (`AckLimit`), which only grows. A replica counts while it is connected:
one that comes again counts with its first acknowledgement. So of n replicas each n-k+1 include one with all that was
acknowledged. Delta readers and the replicas of replicas have no session here, and do not count.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Literal, get_args

from walkit._internal.arguments import check_choice, check_whole, refuse
from walkit._internal.locks import once
from walkit._internal.text import counted
from walkit.errors import CommitTimeoutError
from walkit.events import EventSink
from walkit.log.wal import WriteAheadLog
from walkit.store import Store

OnAckTimeout = Literal["fail", "continue"]
ACK_TIMEOUT_MS = 10_000
ACK_TIMEOUT_MS_MAX = 86_400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class AckStatus:
    """The replicas that a primary with `ack_replicas` waits for."""

    replicas: int
    """The number of replicas that must have an acknowledged record."""
    counted: int
    """So many are connected, and have acknowledged something since."""
    reached_lsn: int
    """The last LSN that so many have; 0 if fewer are counted."""
    state: str
    """"waiting": for each append; "continuing": the time-out has passed, and appends are acknowledged without replicas
    until so many have caught up; "off": not started, or stopped."""
    waiting_records: int
    """Records that are written here and not acknowledged."""
    late_records: int
    """Records that replicas had not in time, so that their callers got CommitFailedError."""

    def text(self) -> str:
        """Return it in words."""
        words = f"{self.state}, {self.counted:,} of {counted(self.replicas, 'replica')}"
        return f"{words} at LSN {self.reached_lsn:,}, {counted(self.waiting_records, 'record')} waiting"


class ReplicaAcks:
    """Counts the replicas of one primary for the acknowledgements of its log. Safe from any thread."""

    def __init__(
        self, log: WriteAheadLog, replicas: int, timeout_ms: int, on_timeout: str, events: EventSink
    ) -> None:
        self.replicas, self._timeout_ms, self._on_timeout = replicas, timeout_ms, on_timeout
        self._limit, self._core, self._events = log.parts.driver.ack_limit, log.parts.core, events
        # Guards all below. Taken before the commit lock.
        self._lock = threading.RLock()
        self._ends: dict[object, tuple[str, int]] = {}
        """By session: the key of its replica, and the last LSN that this has acknowledged in it."""
        self._begun = self._continuing = False
        self._probe = (0, 0.0)
        """While it continues: an LSN that was written at a time, to see how long replicas take to have it."""

    def start(self) -> None:
        """Let appends wait for replicas. OptionsError if another primary of this log does so."""
        with once(self._lock), self._lock:
            self._limit.begin(self._timeout_ms * 1000, self._late)
            self._begun, self._continuing = True, False
        self._events.emit("walkit.acks.begin", replicas=self.replicas, acked_lsn=self._core.acked_lsn)

    def stop(self) -> None:
        """End the mode: waiting appends end as at their time-out, and later ones do not wait."""
        with once(self._lock), self._lock:
            if not self._begun:
                return
            records = self._limit.end(self._error("the primary was stopped") if self._fails else None)
            self._begun = False
        self._events.emit(
            "walkit.acks.end", replicas=self.replicas, acked_lsn=self._core.acked_lsn, records=records
        )

    def acknowledged(self, session: object, key: str, lsn: int) -> None:
        """The replica of this key has acknowledged all up to this LSN, in this session."""
        with once(self._lock), self._lock:
            self._ends[session] = key, lsn
            reached = self._reached()
            resumes = self._continuing and self._begun and self._has_caught_up(reached)
            if resumes:
                self._continuing = False
                self._limit.restore(reached)
        if resumes:
            self._events.emit("walkit.acks.resume", replicas=self.replicas, acked_lsn=reached)
        self._limit.raise_to(reached)

    def leave(self, session: object) -> None:
        """This session is over: its replica does not count, unless another session has it."""
        with once(self._lock), self._lock:
            self._ends.pop(session, None)

    def status(self) -> AckStatus:
        """Return the end that is waited for now."""
        keys = {key for key, _ in list(self._ends.values())}
        state = "off" if not self._begun else "continuing" if self._continuing else "waiting"
        return AckStatus(
            replicas=self.replicas,
            counted=len(keys),
            reached_lsn=self._reached(),
            state=state,
            waiting_records=self._limit.unacked_records,
            late_records=self._limit.late_records,
        )

    def _reached(self) -> int:
        """Return the last LSN that `replicas` different replicas have acknowledged; 0 if fewer are there."""
        furthest: dict[str, int] = {}
        for key, lsn in list(self._ends.values()):
            furthest[key] = max(lsn, furthest.get(key, 0))
        ends = sorted(furthest.values(), reverse=True)
        return ends[self.replicas - 1] if len(ends) >= self.replicas else 0

    @property
    def _fails(self) -> bool:
        return self._on_timeout == "fail"

    def _error(self, detail: str) -> CommitTimeoutError:
        text = "it is written here, and counts as acknowledged once they have it"
        replicas = counted(self.replicas, "replica")
        return CommitTimeoutError(
            f"{detail}, and {replicas} had not acknowledged the record: {text}",
            acked_lsn=self._core.acked_lsn,
        )

    def _late(self) -> None:
        """The time-out of a wait has passed; on the log's timer."""
        with once(self._lock), self._lock:
            if not self._begun:
                return
            if self._fails:
                records = self._limit.give_up_late(self._error(f"{self._timeout_ms:,} ms have passed"))
            else:
                records = self._limit.unacked_records
                self._continuing, self._probe = True, (self._core.written_lsn, time.monotonic())
                self._limit.lift()
        if not records:
            return
        about = {"replicas": self.replicas, "acked_lsn": self._core.acked_lsn, "records": records}
        if self._fails:
            self._events.emit("walkit.acks.late", **about)
        else:
            self._events.emit("walkit.acks.continue", **about)

    def _has_caught_up(self, reached: int) -> bool:
        """Return whether so many replicas have all, or had the newest record recently, well within the time-out."""
        lsn, at = self._probe
        if reached < lsn:
            return False
        now, written = time.monotonic(), self._core.written_lsn
        self._probe = written, now
        return reached >= written or (now - at) * 1000 <= self._timeout_ms / 2


def replica_acks_of(
    source: object, replicas: int | None, timeout_ms: int, on_timeout: str, places: int, events: EventSink
) -> ReplicaAcks | None:
    """Return the counter of replicas for the log of this source; None without `ack_replicas`. OptionsError."""
    check_whole(timeout_ms, "ack_timeout_ms", 1, ACK_TIMEOUT_MS_MAX)
    check_choice(on_timeout, get_args(OnAckTimeout), "on_ack_timeout")
    if replicas is None:
        return None
    check_whole(replicas, "ack_replicas", 1, places)
    log = source.log if isinstance(source, Store) else source
    if not isinstance(log, WriteAheadLog):
        refuse("ack_replicas", replicas, "the source has to be the open log or Store that is appended to")
    if log.parts.core.completion_order:
        text = (
            "replicas get frames in append order; a log of ack_order='completion' acknowledges out of order"
        )
        refuse("ack_replicas", replicas, text)
    return ReplicaAcks(log, replicas, timeout_ms, on_timeout, events)
