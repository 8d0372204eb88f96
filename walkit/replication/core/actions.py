"""The outputs of `Publisher` and `Subscriber`, as plain values: each is a request to the shell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from walkit.errors import WalkitError
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.protocol.identity import Identity
from walkit.replication.protocol.messages import (
    Ack,
    Batch,
    Chunk,
    Fetch,
    FromPublisher,
    FromSubscriber,
    Hello,
    Plan,
    Welcome,
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message to the subscriber."""

    message: FromPublisher


@dataclass(frozen=True, slots=True)
class SendToPublisher:
    """Send this message to the publisher."""

    message: FromSubscriber


@dataclass(frozen=True, slots=True)
class Admit:
    """Find a place for the subscriber, and answer its hello."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class Read:
    """Read whole durable frames that follow `after`, about `limit_bytes`, and give them to `frames`."""

    after: LogEnd
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class MoveClaim:
    """The subscriber needs the records after this end; those before are on its stable storage."""

    acked: LogEnd


@dataclass(frozen=True, slots=True)
class MakePlan:
    """The subscriber's log cannot be continued: claim all records, and answer with `planned`."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Read these bytes of a file of the plan, and give them to `part`."""

    fetch: Fetch


@dataclass(frozen=True, slots=True)
class End:
    """The session is over; sent messages are still to be delivered."""

    detail: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the publisher, and say `connected` or `lost`."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection, if there is one."""

    detail: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep the identity durably: a publisher has accepted it."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make the replica's log one of this log id, durably, before anything is imported."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class Import:
    """Put these frames after the end of the replica's log, durably, and report `imported`."""

    run: FrameRun
    lineage: tuple[EpochRecord, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Prepare:
    """Find the parts of this plan that are here already, and answer with `prepared`."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class StorePart:
    """Put these bytes into their file, beside the log."""

    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Publish:
    """All files of the plan are there: check them, put the log in their place, and answer with `published`."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Replication cannot continue, and trying again does not help."""

    error: WalkitError


PublisherStep: TypeAlias = Send | Admit | Read | MoveClaim | MakePlan | ReadPart | End
SubscriberStep: TypeAlias = (
    SendToPublisher | Connect | Disconnect | Keep | Adopt | Import | Prepare | StorePart | Publish | Fail
)


def in_brief(what: object) -> str:
    """Return an event or a step in words; few for those of each batch, as the repr of a dataclass is slow."""
    if isinstance(what, Send) and isinstance(what.message, Batch):
        batch = what.message
        return f"Send(Batch {batch.after_position} to {batch.end_position}, {batch.codec or 'plain'} {len(batch.data)})"
    if isinstance(what, Ack):
        return f"Ack({what.end.last_lsn} at {what.end.position})"
    if isinstance(what, Read):
        return f"Read(after {what.after.position}, {what.limit_bytes})"
    return what if isinstance(what, str) else repr(what)
