"""Named events: what the log reports to its host while it works.

An event is a name `walkit.<thing>.<verb>` with attributes. Events go to the callback given as `events=`, else to
`logging.getLogger("walkit")`. A callback runs on the thread where the thing happened (for what the main thread asks
for, as `close`, another one) and must be quick; if it raises, the failure is logged and the log continues (Quiver's
host callbacks are the source of the idea). It runs under no lock of the log, and while its thread leads no frame: an
event of such a moment is kept until then (`EventSink.held`, `is_busy`). So a callback may call the log as everywhere;
on a thread of the log's own, what would have to wait for that very thread is refused by a CallbackError.
"""

from __future__ import annotations

import logging
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from walkit._locks import WORK, holds
from walkit.errors import OptionsError

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
        "a copy of what is above the low watermark took the place of a segment",
    ),
    "walkit.snapshot.write": (logging.DEBUG, "a snapshot is durable under its name"),
    "walkit.snapshot.skip": (
        logging.WARNING,
        "a snapshot could not be used; an older one, or a longer replay, is",
    ),
    "walkit.checkpoint.finish": (
        logging.DEBUG,
        "a checkpoint was taken, and what it makes needless was dropped",
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
        "a damaged cursor was taken for none: its consumer begins again, and sees records twice",
    ),
    "walkit.retention.drop": (logging.DEBUG, "segments beyond the limits of retention were dropped"),
    "walkit.retention.refuse": (logging.WARNING, "the log is at its capacity and refuses; reported once"),
    "walkit.hold.drop": (
        logging.WARNING,
        "a hold prevented the hard cap and was dropped; its consumer gets a GapError",
    ),
    "walkit.hold.expire": (logging.WARNING, "the lease of a hold ran out"),
    "walkit.claim.drop": (
        logging.WARNING,
        "a claim prevented the hard cap and was dropped; its consumer gets a GapError",
    ),
    "walkit.claim.expire": (logging.WARNING, "the lease of a claim ran out, and the claim was removed"),
    "walkit.claim.damage": (
        logging.WARNING,
        "a claim cannot be read: until it is written anew or dropped, it keeps the whole log",
    ),
    "walkit.claim.clock": (
        logging.WARNING,
        "a claim was written later than the clock says now: it counts for its lease from now on",
    ),
    "walkit.stream.unclaimed": (
        logging.WARNING,
        "the claim of a stream could not be written: trims and compaction may drop what it has not read",
    ),
    "walkit.diff.undecoded": (
        logging.WARNING,
        "a report of a diff has values that the decoder failed on: their keys count as changed",
    ),
    "walkit.observer.lose": (
        logging.ERROR,
        "an observer fell so far behind that frames had to be read from the log, and they are not there: it ended",
    ),
    "walkit.replica.move": (logging.DEBUG, "a replica changed its state"),
    "walkit.replica.lose": (logging.INFO, "a replica lost its primary, or had none to lose; it tries again"),
    "walkit.replica.unclaimed": (
        logging.WARNING,
        "a primary cannot write the claim of a replica, so a trim may outrun it; it is tried again",
    ),
    "walkit.replica.bootstrap": (
        logging.INFO,
        "a replica gets its log anew: what it needs is gone from its primary, or is there in another form",
    ),
    "walkit.replica.replace": (logging.INFO, "the log that a replica got anew took the place of its own"),
    "walkit.replica.promote": (
        logging.WARNING,
        "a replica became a primary of its own; the old primary is not fenced",
    ),
    "walkit.replica.rewind": (
        logging.WARNING,
        "a replica that differed from its primary was cut back; what went is under lost+found",
    ),
    "walkit.replica.fail": (logging.ERROR, "a replica follows its primary no more"),
    "walkit.session.move": (logging.DEBUG, "the session of a primary with a replica changed its state"),
    "walkit.callback.fail": (logging.ERROR, "a callback raised, or an observer for the first time"),
    "walkit.upkeep.fail": (logging.ERROR, "background work failed and will be tried again"),
}
"""Every event: its level in `logging`, and what it means."""

ATTRIBUTES: dict[str, tuple[str, str]] = {
    "acked_lsn": ("lsn", "the last record that was acknowledged"),
    "after_lsn": ("lsn", "the last record that the observer saw"),
    "ahead_s": ("s", "how far the claim's time is after the clock's"),
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
    "error": ("text", "what failed, in the error's words"),
    "first_lsn": ("lsn", "the first record that it concerns"),
    "forced_past": ("names", "readers that had read what went"),
    "id": ("text", "the replica's id"),
    "job": ("text", "which background work"),
    "keys": ("keys", "how many of them"),
    "lasted_ms": ("ms", "how long the state before lasted"),
    "last_lsn": ("lsn", "the last record there was"),
    "limit": ("bytes", "the bound that was reached"),
    "location": ("text", "where the log is"),
    "low_watermark": ("lsn", "what is at or below it was dropped"),
    "lsn": ("lsn", "the record up to which it reaches"),
    "lsns": ("lsn", "how many LSNs are in the range"),
    "missing_bytes": ("bytes", "what is still to be fetched"),
    "name": ("text", "of the hold, claim, cursor, replica or log"),
    "number": ("number", "the segment's number"),
    "oldest": ("lsn", "the oldest record that is there now"),
    "owner": ("text", "the random id of the claim's owner"),
    "path": ("text", "the log that is read"),
    "place": ("text", "where the folder is now"),
    "policy": ("text", "the recovery policy"),
    "position": ("position", "where it begins"),
    "reason": ("text", "why the place refuses"),
    "reasons": ("names", "which limits were passed"),
    "records": ("records", "how many records it has"),
    "removed": ("text", "where the earlier log was"),
    "segment": ("text", "the file's name"),
    "segments": ("segments", "how many of them"),
    "source": ("text", "the primary's address"),
    "state": ("text", "the state now"),
    "verdict": ("text", "what recovery found"),
    "waste": ("ratio", "the share of the segment that was needless"),
    "what": ("text", "the callback's name"),
    "why": ("text", "what moved it"),
}
"""Every attribute that an event may have: its unit, and what it is. A position is in bytes of frames."""

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
    "walkit.hold.drop": ("name", "first_lsn", "oldest"),
    "walkit.hold.expire": ("name", "first_lsn"),
    "walkit.claim.drop": ("name", "first_lsn", "oldest", "owner"),
    "walkit.claim.expire": ("name", "first_lsn", "oldest", "owner"),
    "walkit.claim.damage": ("name", "error"),
    "walkit.claim.clock": ("name", "ahead_s"),
    "walkit.stream.unclaimed": ("path", "error"),
    "walkit.diff.undecoded": ("keys", "first_lsn", "error"),
    "walkit.observer.lose": ("after_lsn", "error"),
    "walkit.replica.move": ("name", "source", "before", "state", "why", "lasted_ms"),
    "walkit.replica.lose": ("name", "source", "before", "state", "why", "lasted_ms"),
    "walkit.replica.unclaimed": ("id", "first_lsn", "error"),
    "walkit.replica.bootstrap": ("name", "source", "lsn", "missing_bytes"),
    "walkit.replica.replace": ("name", "source", "lsn"),
    "walkit.replica.promote": ("location", "epoch", "first_lsn"),
    "walkit.replica.rewind": ("location", "end_lsn", "last_lsn", "forced_past"),
    "walkit.replica.fail": ("name", "source", "before", "state", "why", "lasted_ms", "error"),
    "walkit.session.move": ("name", "id", "before", "state", "why", "lasted_ms"),
    "walkit.callback.fail": ("what", "error"),
    "walkit.upkeep.fail": ("job", "error"),
}
"""The attributes that each event has; a failed delta reader is a `walkit.replica.fail` without a state."""


def is_main() -> bool:
    """Say whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()


class EventSink:
    """Sends events to a callback, or to `logging` when there is none, and to listeners. Safe from any thread."""

    __slots__ = ("_callback", "_calling", "_listeners", "is_busy", "kept", "on_keep")

    def __init__(self, callback: EventCallback | None = None) -> None:
        if callback is not None and not callable(callback):
            raise OptionsError(
                f"events={callback!r}: a callable that takes (name, attributes)",
                option="events",
                wanted=callback,
            )
        self._callback = callback
        self._listeners: list[EventCallback] = []
        self._calling = threading.local()
        self.kept: deque[tuple[str, dict[str, Any]]] = deque()
        """Events of threads that may not call foreign code yet: `send_kept` sends them."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether this very thread leads a frame or holds a lock of the log, which a callback might wait for."""
        self.on_keep: Callable[[], object] = lambda: start_new_thread(self.send_kept, ())
        """Called when an event is kept: another thread sends it where this one does not come to it."""

    @property
    def is_calling(self) -> bool:
        """Whether this very thread is in a callback of this sink: in the midst of what the event is about."""
        return getattr(self._calling, "depth", 0) > 0

    def add_listener(self, listener: EventCallback) -> None:
        """Send every event from now on to `listener` too; where events went before, they still go."""
        self._listeners.append(listener)

    def remove_listener(self, listener: EventCallback) -> None:
        """End what `add_listener` began; does nothing for one that is not listening."""
        with suppress(ValueError):
            self._listeners.remove(listener)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep this thread's events until the block ends, which holds locks that a callback may wait for."""
        calling = self._calling
        if getattr(calling, "kept", None) is not None:
            yield  # within another block
            return
        kept: list[tuple[str, dict[str, Any]]] = []
        calling.kept = kept
        try:
            yield
        finally:
            calling.kept = None
            for name, attributes in kept:
                self.pass_on(name, attributes)

    def emit(self, name: str, /, **attributes: Any) -> None:
        """Send one event. Never raises, but on the main thread what is no Exception: a signal handler may raise it."""
        self.pass_on(name, attributes)

    def pass_on(self, name: str, attributes: dict[str, Any]) -> None:
        """Send an event of another sink: a callback for what has events of its own. Raises as `emit` does."""
        kept = getattr(self._calling, "kept", None)
        if kept is not None:
            kept.append((name, attributes))
        elif self.is_busy() or holds(WORK):
            self.kept.append((name, attributes))
            self.on_keep()
        else:
            self._send(name, attributes)

    def send_kept(self) -> None:
        """Send what threads have kept that led a frame or held a lock; this one does neither. Raises as `emit` does."""
        while self.kept:
            try:
                name, attributes = self.kept.popleft()
            except IndexError:  # another thread has sent the last one
                return
            self._send(name, attributes)

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
