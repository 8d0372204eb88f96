"""The way out of a log: frames travel verbatim to replicas, which keep them at the same LSNs and positions.

`Primary` serves a log, `Replica` follows one; `DeltaReader` shares the log's storage and polls for what is new. The
protocol cores (`core.publisher`, `core.subscriber`, `delta.polls`, `delta.replayer`) do no I/O; gRPC carries them. Only
what is on the primary's stable storage leaves; the first difference of two histories is named and refused.
"""

from __future__ import annotations

from walkit.replication.delta.polls import DeltaOptions, SessionStatus
from walkit.replication.delta.reader import DeltaReader
from walkit.replication.delta.replayer import ReplayLimits
from walkit.replication.delta.state import LATENCIES, HitRow, ReaderState
from walkit.replication.delta.status import DeltaReaderStatus
from walkit.replication.healing.heal import HealedSegment, HealReport, heal
from walkit.replication.primary.server import Primary
from walkit.replication.primary.status import FollowerStatus, PrimaryStatus
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
from walkit.replication.replica.status import ReplicaStatus, StateSpan
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
    "HitRow",
    "IdentityError",
    "PeerError",
    "Primary",
    "PrimaryStatus",
    "PromotionReport",
    "ProtocolError",
    "ReaderState",
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
    "promote",
    "rewind",
]
