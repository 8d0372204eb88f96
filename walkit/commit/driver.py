"""The thread driver: runs the ordering core on real storage with threads.

With one frame in flight, the caller that finds nobody leading becomes the leader: it takes all that waits, writes it
as one frame with one sync, and releases the others itself (the leader/follower commit of LevelDB and RocksDB). That is
what makes one writer as fast as the device: no other thread is on its path. With `in_flight` frames as many callers
lead at the same time. Callers that do not wait (`submit`, asyncio) are led by the writer threads, and so is a crowd of
those that do. Callbacks and observers run on the delivery thread.

What is under the lock is small: queueing, taking, marking. Encoding, writing, syncing and releasing are not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from walkit.commit.asyncio_wait import TaskWait
from walkit.commit.commit_signal import News
from walkit.commit.entering import STOP_LOOK_S, Entering
from walkit.commit.frame import SealedFrame
from walkit.commit.leader import call_all
from walkit.commit.ticket import SingleTicket, TicketCallback, new_gate
from walkit.errors import WalkitError


class CommitDriver(Entering):
    """The commit path of one open log. All methods are safe from any thread unless they say otherwise."""

    @property
    def hung(self) -> bool:
        """Whether a call to the device was found to hang, and may still be under way."""
        return self._watch.hung

    # -- the line

    def wait_for_room(self, size_bytes: int, timeout: float | None) -> bool:
        """Wait until a submission of this size would find room; False after `timeout` seconds."""
        core = self.core
        self.refuse_waiting()
        return self._news.wait_for(
            lambda: (
                self.refusal is not None
                or not core.pending
                or core.pending_bytes + size_bytes <= self.queue_bytes_max
            ),
            timeout,
        )

    def on_room(self, callback: Callable[[], object]) -> None:
        """Call back once when the queue has moved (from the leader: it must only wake something)."""
        with self._lock:
            if self.core.pending and self.refusal is None:
                self._news.call_next_locked(callback)
                return
        callback()

    def withdraw(self, ticket: SingleTicket) -> bool:
        """Take a ticket back before any frame took it; then nothing of it is ever written."""
        with self._lock:
            withdrawn = self.core.withdraw(ticket)
            callbacks = self._news.tell_locked() if withdrawn else []
        call_all(callbacks)
        return withdrawn

    # -- what tickets ask

    def attach_waiter(self, ticket: Any) -> Any:
        """See TicketHost."""
        self.refuse_waiting()
        with self._lock:
            if ticket.done():
                return None
            ticket.attach()
            if ticket.waiter is None:
                ticket.waiter = new_gate()
            return ticket.waiter

    def attach_wait(self, ticket: Any, wait: TaskWait) -> bool:
        """See TicketHost."""
        with self._lock:
            if ticket.done():
                return False
            ticket.attach()
            if ticket.wait is not None:
                return False
            ticket.wait = wait
            return True

    def attach_callback(self, ticket: Any, callback: TicketCallback) -> None:
        """See TicketHost."""
        with self._lock:
            if not ticket.done():
                ticket.attach()
                if ticket.callbacks is None:
                    ticket.callbacks = []
                ticket.callbacks.append(callback)
                return
        self.delivery.put_callback(ticket, callback)

    # -- the end

    def is_free(self) -> bool:
        """Say whether the lock is free now: not held by this very thread either (a finaliser may run anywhere)."""
        if not self._lock.acquire(blocking=False):
            return False
        self._lock.release()
        return True

    def wait_acked(self) -> None:
        """Wait until everything that was queued before this call is acknowledged, or the log has failed."""
        self.refuse_waiting()
        with self._lock:
            target = self.core.queued_lsn
            self.core.flush()
        self._kick()
        self._news.wait_for(lambda: self.core.acked_lsn >= target or self._is_idle())

    def _is_idle(self) -> bool:
        if self._watch.hung and self._leaders <= len(self._watch):
            return True  # who leads still hangs on the device, and everybody has been told
        return not self._leaders and not self.core.pending

    def stop(self, refusal: WalkitError) -> None:
        """Refuse new work, finish what is queued, end the threads. Callbacks still queued are delivered."""
        with self._lock:
            if self.refusal is None:
                self.refusal = refusal
            self.core.flush()
        self._kick()
        self._news.wait_for(self._is_idle)
        self._stopped = True  # a sync that comes now is refused: what comes next may close the files
        while not self._hand.close(STOP_LOOK_S) and not self._watch.hung:
            pass
        self._writers.close(wait=not self._watch.hung)
        if self._timer is not None:
            self._timer.close()
        self.delivery.close()

    def after_fork(self, refusal: WalkitError) -> None:
        """In a forked child: refuse everything, and forget locks that a thread of the parent may have held.

        Tickets that were on their way fail here, so that nobody waits for the parent's threads; the parent's copies
        go their own way.
        """
        self._lock = threading.Lock()
        self._news = News(self._lock)
        self.refusal = refusal
        core = self.core
        waiting = [t for group in self._taken.values() for t in group if t.frame is None]
        SealedFrame.refused([*waiting, *core.refuse()], refusal)
        for frame in core.in_flight:
            if frame.state == "sealed":
                frame.error, frame.state = refusal, "failed"
