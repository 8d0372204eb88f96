"""What a protocol core asks of its shell: the outputs of `Publisher` and `Subscriber`, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from walkit.errors import WalkitError
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.frame_batch import FrameRun
from walkit.replication.identity import Identity
from walkit.replication.messages import FromPublisher, FromSubscriber, Hello, Welcome


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message to the subscriber."""

    message: FromPublisher


@dataclass(frozen=True, slots=True)
class Say:
    """Send this message to the publisher."""

    message: FromSubscriber


@dataclass(frozen=True, slots=True)
class Admit:
    """The subscriber is the one that it says, or a new one: find a place for it, and answer its hello."""

    hello: Hello
    proved: bool
    """Whether it has proved its id; otherwise it needs an identity."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read whole durable frames that follow `after`, about `limit_bytes`, and give them to `frames`."""

    after: LogEnd
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class MoveHold:
    """The subscriber needs records from here on; those before are on its stable storage."""

    first_lsn: int


@dataclass(frozen=True, slots=True)
class End:
    """The session is over; what was sent is still to be delivered."""

    why: str


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the publisher, and say `connected` or `lost`."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection, if there is one."""

    why: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep the identity that the publisher has minted, durably."""

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
class Fail:
    """Replication cannot continue, and trying again does not help."""

    error: WalkitError


PublisherStep: TypeAlias = Send | Admit | Read | MoveHold | End
SubscriberStep: TypeAlias = Say | Connect | Disconnect | Keep | Adopt | Import | Fail
