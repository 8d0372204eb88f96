"""Named events: the log's reports to its host while it works.

An event is a name `walkit.<thing>.<verb>` with attributes. Events go to the callback given as `events=`, else to
`logging.getLogger("walkit")`. A callback must be fast; if it raises, the failure is logged and the log continues
(Quiver's host callbacks are the source of the idea).

A callback may hold a lock, call a log and wait: each handler of `logging` does. So threads that another may
wait for send no event. An event of a caller's call is sent on the caller's thread, once that has given back its
locks and its lead (`EventSink.held`, `is_busy`), and once its worker has ended (`Outbox`). An event of a thread of the
log's own goes to a thread that sends and does nothing else.
"""

from __future__ import annotations

import atexit
import logging
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Protocol

from walkit._internal.arguments import refuse
from walkit._internal.locks import WORK, holds
from walkit._internal.threads import on_log_thread

Send = Callable[[str, dict[str, Any]], None]

KEPT_MAX = 10_000
"""How many events are kept at most; the event `walkit.event.lose` counts the others."""
EXIT_WAIT_S = 1.0
"""How long the end of the process waits for events that are under way."""


class _Sink(Protocol):
    def pass_on(self, name: str, attributes: dict[str, Any]) -> None:
        """Send an event on this thread, or keep it if this thread may send none."""

    def keep(self, name: str, attributes: dict[str, Any]) -> None:
        """Keep an event for a thread that no other waits for."""


class Outbox:
    """Keeps the events of a thread for one that waits for it: `with box:` on the first, `send` on the other."""

    __slots__ = ("_ended", "_left", "kept")

    def __init__(self) -> None:
        self.kept: deque[tuple[_Sink, str, dict[str, Any]]] = deque()
        self._ended = self._left = False

    def __enter__(self) -> None:
        here.box = self

    def __exit__(self, *_: object) -> None:
        here.box = None
        self._ended = True
        if self._left:
            self._hand_over()

    def send(self) -> None:
        """Send all on this thread, which has stopped waiting. Raises as `emit` does."""
        while self.kept:
            sink, name, attributes = self.kept.popleft()
            sink.pass_on(name, attributes)

    def leave(self) -> None:
        """Have all sent elsewhere at the end of the block: the other thread has stopped waiting."""
        self._left = True
        if self._ended:
            self._hand_over()

    def _hand_over(self) -> None:
        with suppress(IndexError):  # the other thread may be at it, too
            while True:
                sink, name, attributes = self.kept.popleft()
                sink.keep(name, attributes)


class _Here(threading.local):
    box: Outbox | None = None


here = _Here()


_sending: set[Any] = set()
"""The locks of the senders that have a thread at this moment."""


class Sender:
    """Events that no thread may send which others wait for: a thread sends them that does nothing else, in order."""

    __slots__ = ("_lost", "_sending", "kept")

    def __init__(self) -> None:
        self.kept: deque[tuple[str, dict[str, Any]]] = deque()
        self._lost = 0
        self._sending = allocate_lock()
        """Held by the thread while it runs."""

    def add(self, name: str, attributes: dict[str, Any]) -> None:
        """Keep one event; takes no lock."""
        if len(self.kept) < KEPT_MAX:
            self.kept.append((name, attributes))
        else:
            self._lost += 1

    def take_lost(self) -> int:
        """Return how many events were not kept since the last call."""
        lost, self._lost = self._lost, 0
        return lost

    def start(self, send: Send) -> None:
        """See that a thread sends the kept events."""
        if self.kept and not self._sending.locked():
            with suppress(
                RuntimeError, MemoryError
            ):  # no thread to be had: the next one that sends takes them
                start_new_thread(self._run, (send,))

    def send_here(self, send: Send) -> None:
        """Send the kept events on this thread, unless the other one is at it."""
        if not self._sending.locked():
            self._send_all(send)

    def _run(self, send: Send) -> None:
        # Whoever adds an event and sees the lock held relies on the look after its release.
        while self.kept and self._sending.acquire(blocking=False):
            _sending.add(self._sending)
            try:
                self._send_all(send)
            finally:
                _sending.discard(self._sending)
                self._sending.release()

    def _send_all(self, send: Send) -> None:
        while self.kept:
            try:
                name, attributes = self.kept.popleft()
            except IndexError:  # another thread has sent the last one
                return
            send(name, attributes)


def _await_senders() -> None:
    """Give the events of the last moments of a process the time to be sent."""
    deadline = monotonic() + EXIT_WAIT_S
    for lock in tuple(_sending):
        lock.acquire(timeout=max(deadline - monotonic(), 0))


atexit.register(_await_senders)


logger = logging.getLogger("walkit")

EventCallback = Callable[[str, dict[str, Any]], None]
"""Receives (name, attributes)."""

EVENTS: dict[str, tuple[int, str]] = {
    "walkit.log.open": (logging.DEBUG, "a log was opened"),
    "walkit.log.close": (logging.DEBUG, "a log was closed"),
    "walkit.log.poison": (logging.ERROR, "a write or sync failed, or a thread of the log; it takes no more"),
    "walkit.policy.fail": (logging.ERROR, "a policy raised; every frame takes all that waits from now on"),
    "walkit.log.drop": (logging.WARNING, "a log was dropped without close()"),
    "walkit.scratch.replace": (
        logging.WARNING,
        "an earlier scratch log of this name was closed, and its files removed",
    ),
    "walkit.log.buffered": (logging.WARNING, "direct_io was asked for, and the place refuses it"),
    "walkit.recovery.cut": (logging.WARNING, "a torn or unacknowledged tail was cut"),
    "walkit.recovery.lost": (
        logging.ERROR,
        "records that may have been acknowledged were given up, as policy salvage does",
    ),
    "walkit.recovery.hole": (logging.WARNING, "frames after a hole of unacknowledged ones were kept"),
    "walkit.read.damage": (
        logging.WARNING,
        "damage was passed by a reading that asked for unverified records; it gave so many of them",
    ),
    "walkit.log.move": (
        logging.WARNING,
        "the folder of an open log was renamed, or the path leads elsewhere: the log continues in its own folder",
    ),
    "walkit.recovery.finish": (logging.DEBUG, "recovery is done"),
    "walkit.segment.prepare": (logging.DEBUG, "a segment was made ahead"),
    "walkit.segment.rotate": (logging.DEBUG, "frames go to a new segment"),
    "walkit.segment.seal": (logging.DEBUG, "the manifest says where a segment ends"),
    "walkit.segment.full": (logging.ERROR, "no room for a new segment on the disk or in the process"),
    "walkit.slot.fail": (
        logging.ERROR,
        "the durable slot could not be written: readers of other processes see an older end; sent once until it works",
    ),
    "walkit.segment.trim": (logging.DEBUG, "segments below the low watermark were dropped"),
    "walkit.segment.rewrite": (
        logging.DEBUG,
        "a copy of the records above the low watermark replaced a segment",
    ),
    "walkit.snapshot.write": (logging.DEBUG, "a snapshot is durable under its name"),
    "walkit.snapshot.skip": (
        logging.WARNING,
        "a snapshot could not be used; an older one, or a longer replay, is",
    ),
    "walkit.checkpoint.finish": (
        logging.DEBUG,
        "a checkpoint was taken, and the log below it was dropped",
    ),
    "walkit.checkpoint.fail": (
        logging.ERROR,
        "a checkpoint failed; the log continues, and the next one makes up for it",
    ),
    "walkit.checkpoint.copied": (
        logging.WARNING,
        "the checkpoint folder of a delta reader is a copy: its reader has a claim of its own from now on",
    ),
    "walkit.compaction.publish": (logging.DEBUG, "a compacted segment took the place of others"),
    "walkit.cursor.reset": (
        logging.WARNING,
        "a damaged cursor was ignored: its consumer starts again, and sees records twice",
    ),
    "walkit.retention.drop": (logging.DEBUG, "segments beyond the limits of retention were dropped"),
    "walkit.retention.refuse": (logging.WARNING, "the log is at its capacity and refuses; reported once"),
    "walkit.claim.drop": (
        logging.WARNING,
        "a claim prevented the hard cap and was dropped; its consumer gets a GapError",
    ),
    "walkit.claim.expire": (logging.WARNING, "the lease of a claim ran out, and the claim was removed"),
    "walkit.claim.damage": (
        logging.WARNING,
        "a claim cannot be read: until it is written again or dropped, it keeps the whole log",
    ),
    "walkit.retention.clock": (
        logging.WARNING,
        "the clock was set, or was wrong when it stamped segments: ages grow by the time that has passed",
    ),
    "walkit.claim.clock": (
        logging.WARNING,
        "a claim was written later than the clock says now: it counts for its lease from now on",
    ),
    "walkit.stream.unclaimed": (
        logging.WARNING,
        "the claim of a stream could not be written: trims and compaction may drop records that it has not read",
    ),
    "walkit.stream.skip": (
        logging.WARNING,
        "a stream with failOnDataLoss=false leaves out records that are gone, from `first_lsn` on",
    ),
    "walkit.diff.undecoded": (
        logging.WARNING,
        "a report of a diff has values that the decoder failed on: their keys count as changed",
    ),
    "walkit.observer.lose": (
        logging.ERROR,
        "an observer ended: it fell so far back that its frames were gone from the log",
    ),
    "walkit.replica.move": (logging.DEBUG, "a replica changed its state"),
    "walkit.replica.lose": (logging.INFO, "a replica lost its primary, or had none to lose; it tries again"),
    "walkit.replica.unclaimed": (
        logging.WARNING,
        "a primary cannot write the claim of a replica, so a trim may outrun it; it is tried again",
    ),
    "walkit.replica.bootstrap": (
        logging.INFO,
        "a replica gets its log again: its primary no longer has the frames, or has them in another form",
    ),
    "walkit.replica.replace": (logging.INFO, "the log that a replica got again replaced its own"),
    "walkit.replica.promote": (
        logging.WARNING,
        "a replica became a primary of its own; the old primary is not fenced",
    ),
    "walkit.replica.rewind": (
        logging.WARNING,
        "a replica that differed from its primary was cut back; the removed bytes are under lost+found",
    ),
    "walkit.replica.fail": (logging.ERROR, "a replica stopped following its primary"),
    "walkit.acks.begin": (logging.INFO, "appends are acknowledged once so many replicas have them"),
    "walkit.acks.late": (
        logging.WARNING,
        "replicas had records not in time: their callers got CommitFailedError; the records stay",
    ),
    "walkit.acks.continue": (
        logging.WARNING,
        "replicas had records not in time: appends are acknowledged without them until they have caught up",
    ),
    "walkit.acks.resume": (logging.INFO, "so many replicas have caught up: appends wait for them again"),
    "walkit.acks.end": (logging.WARNING, "the primary was stopped: appends do not wait for replicas"),
    "walkit.session.move": (logging.DEBUG, "the session of a primary with a replica changed its state"),
    "walkit.callback.fail": (logging.ERROR, "a callback raised, or an observer for the first time"),
    "walkit.event.lose": (logging.WARNING, "a callback was so slow that events were not kept for it"),
    "walkit.maintenance.fail": (logging.ERROR, "background work failed and will be tried again"),
}
"""Every event: its level in `logging`, and its meaning."""

ATTRIBUTES: dict[str, tuple[str, str]] = {
    "acked_lsn": ("lsn", "the last record that was acknowledged"),
    "after_lsn": ("lsn", "the last record that the observer saw"),
    "ahead_s": ("s", "by how much the clock was ahead; below 0: behind"),
    "before": ("text", "the state before"),
    "bytes": ("bytes", "how much was made, cut, dropped, or is there"),
    "bytes_after": ("bytes", "size after it"),
    "bytes_before": ("bytes", "size before it"),
    "cause": ("text", "the first failure, as `repr` shows it"),
    "duration_ms": ("ms", "how long it took"),
    "duration_s": ("s", "how long it took"),
    "end_lsn": ("lsn", "the last record that was kept"),
    "end_position": ("position", "where the segment ends"),
    "epoch": ("number", "the new epoch"),
    "error": ("text", "the failure, in the error's words"),
    "events": ("events", "how many of them"),
    "first_lsn": ("lsn", "the first record that it concerns"),
    "forced_past": ("names", "readers of the removed records"),
    "id": ("text", "the replica's key"),
    "job": ("text", "which background work"),
    "keys": ("keys", "how many of them"),
    "lasted_ms": ("ms", "how long the state before lasted"),
    "last_lsn": ("lsn", "the last record there was"),
    "limit": ("bytes", "the bound that was reached"),
    "location": ("text", "the log's place"),
    "low_watermark": ("lsn", "records at or below it were dropped"),
    "lsn": ("lsn", "the record up to which it reaches"),
    "lsns": ("lsn", "how many LSNs are in the range"),
    "missing_bytes": ("bytes", "bytes still to be fetched"),
    "name": ("text", "of the claim, cursor, replica or log"),
    "number": ("number", "the segment's number"),
    "oldest": ("lsn", "the oldest record that is there now"),
    "owner": ("text", "the random id of the claim's owner"),
    "path": ("text", "the log that is read"),
    "place": ("text", "the folder's place now"),
    "policy": ("text", "the recovery policy"),
    "position": ("position", "where it begins"),
    "reason": ("text", "why the place refuses"),
    "reasons": ("names", "which limits were passed"),
    "records": ("records", "how many records it has"),
    "replicas": ("replicas", "number of replicas that must have acknowledged records"),
    "removed": ("text", "where the earlier log was"),
    "segment": ("text", "the file's name"),
    "segments": ("segments", "how many of them"),
    "source": ("text", "the primary's address"),
    "state": ("text", "the state now"),
    "verdict": ("text", "recovery's verdict"),
    "waste": ("ratio", "the share of the segment that was waste"),
    "what": ("text", "the callback's name"),
    "detail": ("text", "the reason of the move"),
}
"""Every attribute that an event may have: its unit, and its meaning. A position is in bytes of frames."""

CARRIES: dict[str, tuple[str, ...]] = {
    "walkit.log.open": ("location", "verdict"),
    "walkit.log.close": ("location",),
    "walkit.log.poison": ("cause", "acked_lsn"),
    "walkit.policy.fail": ("error",),
    "walkit.log.drop": ("location",),
    "walkit.scratch.replace": ("name", "removed", "location"),
    "walkit.log.buffered": ("location", "reason"),
    "walkit.read.damage": ("segment", "position", "first_lsn", "records", "error"),
    "walkit.log.move": ("location", "place"),
    "walkit.recovery.cut": ("segment", "position", "bytes"),
    "walkit.recovery.lost": ("position", "first_lsn", "lsns"),
    "walkit.recovery.hole": ("position", "first_lsn", "lsns"),
    "walkit.recovery.finish": ("location", "policy", "verdict", "last_lsn", "duration_s"),
    "walkit.segment.prepare": ("number", "bytes"),
    "walkit.segment.rotate": ("number", "position", "first_lsn"),
    "walkit.segment.seal": ("number", "end_position"),
    "walkit.segment.full": ("location", "error"),
    "walkit.slot.fail": ("location", "error"),
    "walkit.segment.trim": ("segments", "bytes", "low_watermark"),
    "walkit.segment.rewrite": ("number", "bytes_before", "bytes_after", "waste"),
    "walkit.snapshot.write": ("lsn", "records"),
    "walkit.snapshot.skip": ("lsn", "error"),
    "walkit.checkpoint.finish": ("lsn", "duration_ms"),
    "walkit.checkpoint.fail": ("error",),
    "walkit.checkpoint.copied": ("location", "owner"),
    "walkit.compaction.publish": ("number", "segments", "bytes_before", "bytes_after"),
    "walkit.cursor.reset": ("name", "error"),
    "walkit.retention.drop": ("segments", "bytes", "low_watermark", "reasons"),
    "walkit.retention.refuse": ("location", "bytes", "limit"),
    "walkit.claim.drop": ("name", "first_lsn", "oldest", "owner"),
    "walkit.claim.expire": ("name", "first_lsn", "oldest", "owner"),
    "walkit.claim.damage": ("name", "error"),
    "walkit.retention.clock": ("ahead_s",),
    "walkit.claim.clock": ("name", "ahead_s"),
    "walkit.stream.unclaimed": ("path", "error"),
    "walkit.stream.skip": ("path", "first_lsn", "oldest"),
    "walkit.diff.undecoded": ("keys", "first_lsn", "error"),
    "walkit.observer.lose": ("after_lsn", "error"),
    "walkit.replica.move": ("name", "source", "before", "state", "detail", "lasted_ms"),
    "walkit.replica.lose": ("name", "source", "before", "state", "detail", "lasted_ms"),
    "walkit.replica.unclaimed": ("id", "first_lsn", "error"),
    "walkit.replica.bootstrap": ("name", "source", "lsn", "missing_bytes"),
    "walkit.replica.replace": ("name", "source", "lsn"),
    "walkit.replica.promote": ("location", "epoch", "first_lsn"),
    "walkit.replica.rewind": ("location", "end_lsn", "last_lsn", "forced_past"),
    "walkit.replica.fail": ("name", "source", "before", "state", "detail", "lasted_ms", "error"),
    "walkit.acks.begin": ("replicas", "acked_lsn"),
    "walkit.acks.late": ("replicas", "acked_lsn", "records"),
    "walkit.acks.continue": ("replicas", "acked_lsn", "records"),
    "walkit.acks.resume": ("replicas", "acked_lsn"),
    "walkit.acks.end": ("replicas", "acked_lsn", "records"),
    "walkit.session.move": ("name", "id", "before", "state", "detail", "lasted_ms"),
    "walkit.callback.fail": ("what", "error"),
    "walkit.event.lose": ("events",),
    "walkit.maintenance.fail": ("job", "error"),
}
"""The attributes that each event has; a failed delta reader is a `walkit.replica.fail` without a state."""


def is_main() -> bool:
    """Say whether this is the main thread."""
    return get_ident() == threading.main_thread().ident


def _is_logged(level: int) -> bool:
    """Say whether a logger takes events of a level. Unlike `isEnabledFor`, it takes no lock of `logging`."""
    return max(logger.getEffectiveLevel(), logger.manager.disable + 1) <= level


class EventSink:
    """Sends events to a callback, or to `logging` without one, and to listeners. Safe from any thread."""

    __slots__ = ("_callback", "_calling", "_listeners", "_sender", "is_busy", "is_leading", "kept")

    def __init__(self, callback: EventCallback | None = None) -> None:
        if callback is not None and not callable(callback):
            refuse("events", callback, "a callable that takes (name, attributes)")
        self._callback = callback
        self._listeners: list[EventCallback] = []
        self._calling = threading.local()
        self._sender = Sender()
        self.kept = self._sender.kept
        """Events of threads that may not call foreign code yet: `send_kept` sends them."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether this very thread leads a frame or holds a lock of the log, which a callback might wait for."""
        self.is_leading: Callable[[], bool] = lambda: False
        """Whether this very thread leads a frame, and calls `send_kept` when it has led."""

    @property
    def is_calling(self) -> bool:
        """Whether this very thread is in a callback of this sink: during the operation that the event reports."""
        return getattr(self._calling, "depth", 0) > 0

    def add_listener(self, listener: EventCallback) -> None:
        """Send every event from now on to `listener` too; where events went before, they still go."""
        self._listeners.append(listener)

    def remove_listener(self, listener: EventCallback) -> None:
        """Remove a listener; does nothing for one that is not listening."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep this thread's events until the block ends, which holds locks that a callback may wait for."""
        if here.box is not None:
            yield  # within another block, or on a worker
            return
        box = Outbox()
        try:
            with box:
                yield
        finally:
            box.send()

    def emit(self, name: str, /, **attributes: Any) -> None:
        """Send one event. Never raises, except a BaseException of a signal handler on the main thread."""
        self.pass_on(name, attributes)

    def pass_on(self, name: str, attributes: dict[str, Any]) -> None:
        """Send an event of another sink: a callback for a part with events of its own. Raises as `emit` does."""
        box = here.box
        if box is not None and len(box.kept) < KEPT_MAX:
            box.kept.append((self, name, attributes))
        elif box is not None or self.is_busy() or holds(WORK) or on_log_thread():
            self.keep(name, attributes)
        else:
            self._send(name, attributes)

    def keep(self, name: str, attributes: dict[str, Any]) -> None:
        """Keep one event for a thread without waiters; takes no lock. Does nothing if nothing receives it."""
        if self._callback is None and not self._listeners and not _is_logged(EVENTS[name][0]):
            return
        self._sender.add(name, attributes)
        if not self.is_leading() or on_log_thread():
            self._sender.start(self._send_one)

    def send_kept(self) -> None:
        """Send the events that threads kept while they led a frame or held a lock. Raises as `emit` does.

        Not on this thread if it is still busy: foreign code that ran inside a call may come here before the call ends.
        """
        if on_log_thread() or holds(WORK):
            self._sender.start(self._send_one)
        else:
            self._sender.send_here(self._send_one)

    def _send_one(self, name: str, attributes: dict[str, Any]) -> None:
        self._send(name, attributes)
        if not self.kept and (lost := self._sender.take_lost()):
            self.emit("walkit.event.lose", events=lost)

    def _send(self, name: str, attributes: dict[str, Any]) -> None:
        level, meaning = EVENTS[name]
        if self._callback is None:
            with suppress(Exception):  # a handler's own error, or the end of the stack
                logger.log(level, "%s: %s %s", name, meaning, attributes)
        calling = self._calling
        calling.depth = getattr(calling, "depth", 0) + 1
        try:
            for callback in (self._callback, *self._listeners):
                if callback is None:
                    continue
                try:
                    callback(name, dict(attributes))
                except BaseException as error:
                    with suppress(Exception):
                        logger.exception("the events callback raised on %s %s", name, attributes)
                    if not isinstance(error, Exception) and is_main():
                        raise
        finally:
            calling.depth -= 1
