"""Hooks on the path of a record, given to a log at its opening: an `ack_sink`, a gate, observers of frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from walkit.commit.frame import SealedFrame
from walkit.errors import WalkitError
from walkit.events import EventSink

AcknowledgementSink: TypeAlias = Callable[[SealedFrame], object]
"""Called with each acknowledged frame that has records, in LSN order, before any caller sees it acknowledged.

Under completion order: when the contiguous prefix passes the frame, which may be later. It is called under the commit
path's lock, so it does next to nothing and never raises: its error poisons the log. `frame.columns` has the
records.
"""


class GatedQueue(Protocol):
    """The queue as its gate may use it. From any thread."""

    events: EventSink

    @property
    def refusal(self) -> WalkitError | None:
        """The error that refuses all work once the log has failed or is closed; None before."""

    def queued_lsn(self) -> int:
        """Return the LSN that the last record queued by now will have, if nothing is refused."""


class AdmissionGate(Protocol):
    """Says which records may be queued; it is asked before anything is, so refused records were never written."""

    records_max: int
    """Most records of one call that stay together; a call of more is cut into frames of so many."""

    def attach(self, queue: GatedQueue) -> None:
        """Take the queue that this gate guards. Called once, before anything is queued."""

    def admit(self, count: int) -> bool:
        """Let so many records in, all or none; False if the calling thread may wait by `wait` or `on_space`.

        `entered` follows on the same thread if they are let in. Raises a final refusal.
        """

    def entered(self) -> None:
        """The records that this thread was let in with are queued now, or the queue refused them."""

    def wait(self, timeout: float | None) -> bool:
        """Wait until this thread's refused records may have room; raises their refusal after `timeout` s.

        False at once if this gate has kept nothing of this thread out: then the queue has no room.
        """

    def on_space(self, callback: Callable[[], object]) -> bool:
        """Call back once when this thread's refused records may have room; from any thread.

        The callback must only wake something. False as in `wait`: then it is not called.
        """


class FrameSink(Protocol):
    """Where frames go.

    `begin_segment` and `assign` are called by one thread at a time, in the order of the frames; the others from any.
    `publish` alone is called under the commit lock, so it calls no device.
    """

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """Prepare a new segment for frames from `position` on; return its end position.

        Blocks until a segment is there. LogFullError if disk or process has no room for one (`BACK_PRESSURE`),
        LogExhaustedError if no segment number is left: nothing has changed then.
        """

    def assign(self, frame: SealedFrame) -> None:
        """A frame was sealed, and is about to be written: note where it goes. May wait for a zeroing under way."""

    def write(self, frame: SealedFrame, *, sync: bool) -> None:
        """Write an assigned frame at its position; durable on return with `sync`. StorageError poisons the log."""

    def passed(self, position: int) -> None:
        """All frames below this position are written: segments that end there can be sealed."""

    def sync(self) -> None:
        """Put all frames written before this call on stable storage, in every segment."""

    def publish(self, position: int, lsn: int) -> None:
        """Tell other processes how far the log is on stable storage."""


class FrameObserver(Protocol):
    """Sees each frame written, and each sync apart from a write; for measurement. Times are of `perf_counter_ns`.

    Called by the thread that writes or syncs, of which several may do so at once. Whatever it does delays the frame,
    and its error fails it. Calls that wait for the log (`append`, `sync`, `Ticket.result`) raise CallbackError.
    """

    def writing(self, frame: SealedFrame) -> None:
        """The write of a frame begins."""

    def wrote(self, frame: SealedFrame, began_ns: int, ended_ns: int) -> None:
        """A frame was written (and synced, if its write is), and is about to be acknowledged."""

    def synced(self, began_ns: int, ended_ns: int) -> None:
        """A sync that was made apart from a write has ended well."""


class Owner(NamedTuple):
    """The log that opens its payload log."""

    log_id: int
    key: int
    """Known to this log alone."""
    payload_log_id: int = 0
    """The payload log that the manifest names at this place; 0 if it names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPorts:
    """Hooks given to a log at its opening by the parts built on it."""

    ack_sink: AcknowledgementSink | None = None
    gate: AdmissionGate | None = None
    owner: Owner | None = None
    """For a payload log: the log that it belongs to."""
