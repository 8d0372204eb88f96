"""One call of a primary: the shell around one publisher core."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from walkit._threads import Bell
from walkit.errors import GapError, LogClosedError, OptionsError, WalkitError
from walkit.log.holds import Hold
from walkit.replication.actions import Admit, End, MoveHold, PublisherStep, Read, Send
from walkit.replication.calls import CallTable
from walkit.replication.frame_reader import FrameReader
from walkit.replication.identity import Identity, mint, new_nonce
from walkit.replication.lineage import judge
from walkit.replication.messages import Hello, Refusal
from walkit.replication.publisher import Publisher
from walkit.replication.registry import ReplicaRegistry
from walkit.replication.source import Source, hold_name, standing_of
from walkit.replication.transport import ByteBudget, grpc
from walkit.replication.wire import (
    REPLY_BYTES_MAX,
    DamagedMessageError,
    WireError,
    decode_from_subscriber,
    encode_from_publisher,
)

POLL_S = 0.005
"""How often a session looks whether more is durable, where no observer notifies it."""
INBOX_BYTES = 64 << 10
"""The session reads no more from its replica while so much was received and not handled."""
NOTE_MS = 1_000.0
"""The registry of replicas gets acknowledgements this often, and at the end of the session."""
PEER_FAULTS = ("protocol", "name", "damaged", "identity", "rewound")
"""Reasons to refuse that the primary shows in its status, with the address of the peer."""


def now_ms() -> float:
    """Return the milliseconds of the monotonic clock."""
    return time.monotonic() * 1000


class Session:
    """Runs one publisher core: what the replica says comes by one thread, everything else happens on another."""

    def __init__(
        self,
        source: Source,
        core: Publisher,
        calls: CallTable,
        context: Any,
        *,
        registry: ReplicaRegistry,
        unpacking: threading.Lock,
        on_trouble: Callable[[str], None],
    ) -> None:
        self.core = core
        self._source, self._calls, self._context = source, calls, context
        self._registry = registry
        self._unpacking, self._on_trouble = unpacking, on_trouble
        self._reader = FrameReader(source)
        self._inbox: deque[bytes] = deque()
        self._room = ByteBudget(INBOX_BYTES)
        self._wake = Bell()
        self._gone = False
        self._stopping = False
        self._sending_ms: float | None = None
        self._hold: Hold | None = None
        self._id = b""
        self._noted_ms = 0.0
        self._unwatch = source.watch(self._wake.set)

    # -- other threads

    def listen(self, requests: Iterator[bytes]) -> None:
        """Take in what the replica says, until the call ends; waits while the session has not taken what it said."""
        try:
            for data in requests:
                self._room.take(len(data))
                self._inbox.append(data)
                self._wake.set()
                del data  # it may be large, and the next one may be long in coming
                self._room.wait()
        except grpc.RpcError:
            pass  # the call is over; `hang_up` says so
        self.hang_up()

    def hang_up(self) -> None:
        """The call is over."""
        self._gone = True
        self._room.close()
        self._wake.set()

    def stop(self) -> None:
        """The primary stops serving."""
        self._stopping = True
        self._wake.set()

    def cancel(self) -> None:
        """See Call."""
        self._context.cancel()
        self.hang_up()

    def is_stalled(self, now_ms: float) -> bool:
        """See Call: the session's own thread is in the midst of sending then, and cannot look at the time."""
        since = self._sending_ms
        limit_ms = self.core.silence_ms if self.core.state == "streaming" else self.core.hello_ms
        return since is not None and now_ms - since > limit_ms

    # -- the session's own thread

    def run(self) -> Iterator[bytes]:
        """Yield messages to the replica until the session is over."""
        self.core.began(now_ms())
        steps: deque[PublisherStep] = deque()
        while not self._gone:
            self._wake.clear()
            while self._inbox and not steps:
                steps.extend(self._heard())
            if self._stopping:
                steps.extend(self._refuse("closed", "the primary stops"))
            if not steps:
                steps.extend(self._look())
            if not steps:
                self._wake.wait(self._pause_s())
            while steps and not self._gone:
                step = steps.popleft()
                if isinstance(step, Send):
                    if isinstance(step.message, Refusal) and step.message.reason in PEER_FAULTS:
                        self._on_trouble(f"{self._context.peer()}: {step.message.message}")
                    self._sending_ms = now_ms()
                    yield encode_from_publisher(step.message)
                    self._sending_ms = None
                elif isinstance(step, End):
                    return
                else:
                    steps.extend(self._do(step))

    def _pause_s(self) -> float:
        if self.core.state == "streaming":
            return POLL_S
        wake_at_ms = self.core.wake_at_ms
        return 0 if wake_at_ms is None else max(wake_at_ms - now_ms(), 0) / 1000

    def _heard(self) -> list[PublisherStep]:
        """Take one message of the replica."""
        data = self._inbox.popleft()
        self._room.give(len(data))
        try:
            if self.core.state == "waiting":
                return self._greeted(data)
            if len(data) > REPLY_BYTES_MAX:
                raise WireError(f"a message of {len(data):,} bytes after the hello")
            at = now_ms()
            steps = self.core.receive(decode_from_subscriber(data), at)
            if self.core.key and at - self._noted_ms >= NOTE_MS:
                self._noted_ms = at
                self._registry.acknowledged(self._id, self.core.acked)
            return steps
        except DamagedMessageError as error:
            return self._refuse("damaged", str(error))
        except WireError as error:
            return self._refuse("protocol", f"replica {self.core.name!r} sent {error}")
        except WalkitError as error:
            return self._failed(error)

    def _greeted(self, data: bytes) -> list[PublisherStep]:
        """Look at the first message, which must be a hello.

        It is unpacked for one caller at a time, as a lineage may be long.
        """
        epochs = len(self._source.manifest().lineage) + 1
        with self._unpacking:
            hello = decode_from_subscriber(data, epochs)
        if not isinstance(hello, Hello):
            return self._refuse("protocol", "the first message is no hello")
        known = self._registry.find(hello.id) if hello.id else None
        return self.core.greeted(hello, known, new_nonce(), now_ms())

    def _admit(self, hello: Hello, proved: bool) -> list[PublisherStep]:
        """Find a place for a subscriber, compare the histories, and keep the identity of a new one."""
        why = self._source.ended()
        if why:  # "nothing is missing" would not be true for long
            raise LogClosedError(why)
        minted = None if proved else mint()
        self._id = hello.id if minted is None else minted.id
        refusal = self._calls.seat(self, self._id.hex(), hello.name, self._source.held())
        if refusal is not None:
            return self.core.refuse(refusal, now_ms())
        standing = standing_of(self._source, hello)
        if minted is None:
            self._registry.seen(hello.id, hello.name)
        elif judge(hello, standing, self.core.versions) is None:
            why = self._not_kept(minted, hello.name)
            if why:
                return self._refuse("full", why)
        return self.core.hello(hello, standing, now_ms(), minted)

    def _not_kept(self, minted: Identity, name: str) -> str:
        """Keep a new identity, durably, before it is given out; return why that fails."""
        try:
            if self._registry.add(minted, name, self._calls.seated() | self._source.held()):
                return ""
        except WalkitError as error:
            return (
                f"the primary cannot keep the identity of a new replica: {error}; Primary(registry=FOLDER) (walkit "
                "serve --registry) names another place"
            )
        return f"the primary knows {len(self._registry):,} replicas, and none of them may be forgotten"

    def _look(self) -> list[PublisherStep]:
        """Return what is to be done where the source has moved, or time has passed."""
        if self.core.state != "streaming":
            return self.core.tick(now_ms())
        why = self._source.ended()  # before the end is read, which is the last one then
        try:
            lsn, position = self._source.durable()
            if why and self.core.sent.position >= position:
                raise LogClosedError(why)
        except WalkitError as error:
            return self._failed(error)
        at = now_ms()
        return self.core.source_moved(lsn, position, at) or self.core.tick(at)

    def _do(self, step: PublisherStep) -> list[PublisherStep]:
        try:
            if isinstance(step, Read):
                run = self._reader.read(step.after, step.limit_bytes)
                return self.core.frames(run, self._reader.lineage(), now_ms())
            if isinstance(step, Admit):
                return self._admit(step.hello, step.proved)
            if isinstance(step, MoveHold):
                self._move_hold(step.first_lsn)
        except WalkitError as error:
            return self._failed(error)
        return []

    def _move_hold(self, first_lsn: int) -> None:
        log = self._source.log
        if log is None or log.closed:
            return
        if self._hold is None:
            self._hold = log.hold(hold_name(self.core.key), first_lsn)
        else:
            self._hold.move(first_lsn)

    def _refuse(self, reason: str, message: str) -> list[PublisherStep]:
        return self.core.refuse(Refusal(reason=reason, message=message), now_ms())

    def _failed(self, error: WalkitError) -> list[PublisherStep]:
        if isinstance(error, GapError):
            refusal = Refusal(reason="gap", message=str(error), lsn=error.wanted, other_lsn=error.oldest)
            return self.core.refuse(refusal, now_ms())
        reason = "closed" if isinstance(error, LogClosedError) or self._source.ended() else "damage"
        if isinstance(error, OptionsError):
            reason = "level"
        what = f"{type(error).__name__}: " if reason == "damage" else ""
        return self._refuse(reason, f"{what}{error}")

    def close(self) -> None:
        """Release files and observer; the hold remains until its lease is over."""
        self._room.close()
        if self.core.key:
            self._registry.acknowledged(self._id, self.core.acked)
            self._registry.save(now=True)
        self._unwatch()
        self._reader.close()
        if self._hold is not None:
            with suppress(
                WalkitError
            ):  # the log is closing, or its disk is gone: the claim remains as it was saved
                self._hold.leave()
