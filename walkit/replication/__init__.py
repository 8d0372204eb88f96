"""The way out of a log: frames travel verbatim to replicas, which keep them at the same LSNs and positions.

`Primary` serves a log, `Replica` follows one; `DeltaReader` shares the log's storage and polls for new records. Only
frames on the primary's stable storage are sent; the first difference of two histories is named and refused.

The room has eight parts. Each knows itself and those before it; `commands` beside them runs `serve` and `follow`:

- `protocol` is shared by both sides: messages and their bytes, frames on their way, lineage, identity, and the checks;
- `core` has the two state machines, `Publisher` and `Subscriber`, without I/O, threads or a clock;
- `transport` is gRPC: addresses, TLS, tokens, the calls of a primary, a replica's connection to one;
- `logs` has a publisher's sources of frames, and the imported log of a replica;
- `delta` is delta poll, both sides of it; `polls`, `session`, `buffer`, `poller` and `replayer` are its cores;
- `primary` serves: a session around each publisher, with claims, identities and the plans of bootstraps;
- `replica` follows: the loop around the subscriber, the store that it feeds, rewind and promotion;
- `healing` replaces damaged segments of a log by a peer's frames, and lets an old primary follow a new one.

A bootstrap of a replica is a copy by `walkit.copier`; only the link is here.

A program starts a primary or a replica. Publisher and subscriber are the state machines of their protocol; a shell
around each (`Session`, `ReplicaLoop`) passes events in by method calls and performs the steps that come out.

The way of a frame from the primary's commit to the replica's acknowledgement:

1. `logs/source.py`: a commit, or another process's durable slot, makes it durable; `Source.watch` wakes the session.
2. `primary/session.py`: `Session.run` reads how far the source is durable, and passes it to the publisher.
3. `core/publisher.py`: `source_moved` answers with a step `Read` if the window of bytes in flight has room.
4. `primary/frame_reader.py`: `FrameReader.read` walks and checks whole frames and makes one `FrameRun` of them
   (`protocol/frame_run.py`); `primary/shared_runs.py` keeps it for other sessions.
5. `core/publisher.py`: `frames` makes a message of the run, to be sent (`core/answers.py`: `batch_of`).
6. `primary/session.py`: `Session.run` yields its bytes to gRPC (`protocol/wire.py`: `encode_from_publisher`).
7. `transport/connection.py`: the receiving thread decodes it, bounds the queue, and wakes the replica's loop.
8. `core/subscriber.py`: `receive` checks that it follows the log's end (`protocol/checks.py`: `checked_run`), and
   answers with a step `Import`; a gap is answered with a `Nack`.
9. `replica/loop.py`: runs that came quickly are joined, and `_import_queued` imports them.
10. `logs/imported_log.py`: `import_run` goes to `logs/importer.py`, whose `logs/imported_segments.py` writes the
    same bytes at the same position with a synced write, then publishes the end in the durable slot. It is durable.
11. `core/subscriber.py`: `imported` answers with an `Ack`; then `replica/store.py` applies the records.
12. `core/publisher.py`: `receive` compares the `Ack` with the frames sent. It is acknowledged: `MoveClaim` moves the
    replica's claim (`primary/claims.py`), before which the primary may trim, and which keeps the end. With
    `ack_replicas` it counts for the log's own acknowledgements (`primary/replica_acks.py`).
"""

from __future__ import annotations

from walkit.replication.core.states import StateSpan
from walkit.replication.delta.poll_server import DeltaOptions, SessionStatus
from walkit.replication.delta.reader import DeltaReader
from walkit.replication.delta.replayer import ReplayLimits
from walkit.replication.delta.state import LATENCIES, ReaderState
from walkit.replication.delta.status import DeltaReaderStatus
from walkit.replication.healing.heal import HealedSegment, HealReport, heal
from walkit.replication.healing.rejoin import RejoinReport, rejoin
from walkit.replication.primary.server import Primary
from walkit.replication.primary.status import FollowerStatus, PrimaryStatus
from walkit.replication.primary.status_call import primary_status
from walkit.replication.protocol.failures import (
    IdentityError,
    PeerError,
    ProtocolError,
    ReplicaFailedError,
    RewindError,
)
from walkit.replication.replica.follower import Replica
from walkit.replication.replica.promote import PromotionReport, promote
from walkit.replication.replica.rewind import RewindReport, rewind
from walkit.replication.replica.status import ReplicaStatus
from walkit.replication.replica.store import ReplicaStore
from walkit.replication.transport.access import Tokens
from walkit.replication.transport.tls import ClientTLS, ServerTLS

__all__ = [
    "LATENCIES",
    "ClientTLS",
    "DeltaOptions",
    "DeltaReader",
    "DeltaReaderStatus",
    "FollowerStatus",
    "HealReport",
    "HealedSegment",
    "IdentityError",
    "PeerError",
    "Primary",
    "PrimaryStatus",
    "PromotionReport",
    "ProtocolError",
    "ReaderState",
    "RejoinReport",
    "ReplayLimits",
    "Replica",
    "ReplicaFailedError",
    "ReplicaStatus",
    "ReplicaStore",
    "RewindError",
    "RewindReport",
    "ServerTLS",
    "SessionStatus",
    "StateSpan",
    "Tokens",
    "heal",
    "primary_status",
    "promote",
    "rejoin",
    "rewind",
]
