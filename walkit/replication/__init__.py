"""The way out of a log: frames travel verbatim to replicas, which keep them at the same LSNs and positions.

`Primary` serves a log, `Replica` follows one; `DeltaReader` shares the log's storage and polls for what is new. The
protocol cores (`publisher`, `subscriber`, `delta_poll`, `delta_replayer`) do no I/O; gRPC carries them. Only what is on
the primary's stable storage leaves; the first difference of two histories is named and refused.
"""

from __future__ import annotations

from walkit.replication.access import Tokens
from walkit.replication.delta_poll import DeltaOptions, SessionStatus
from walkit.replication.delta_reader import DeltaReader
from walkit.replication.delta_replayer import ReplayLimits
from walkit.replication.delta_state import LATENCIES, HitRow, ReaderState
from walkit.replication.delta_status import DeltaReaderStatus
from walkit.replication.failures import (
    IdentityError,
    PeerError,
    ProtocolError,
    ReplicaFailedError,
    RewindError,
)
from walkit.replication.heal import HealedSegment, HealReport, heal
from walkit.replication.primary import Primary
from walkit.replication.primary_status import FollowerStatus, PrimaryStatus
from walkit.replication.promote import PromotionReport, promote
from walkit.replication.replica import Replica
from walkit.replication.replica_store import ReplicaStore
from walkit.replication.rewind import RewindReport, rewind
from walkit.replication.status import ReplicaStatus, StateSpan
from walkit.replication.tls import ClientTLS, ServerTLS

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
