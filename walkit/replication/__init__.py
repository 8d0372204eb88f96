"""The way out of a log: frames travel verbatim to replicas, which keep them at the same LSNs and positions.

`Primary` serves a log, `Replica` follows one. The protocol cores (`publisher`, `subscriber`) do no I/O; gRPC carries
them. Only what is on the primary's stable storage leaves; the first difference of two histories is named and refused.
"""

from __future__ import annotations

from walkit.replication.access import Tokens
from walkit.replication.failures import IdentityError, ProtocolError, ReplicaFailedError
from walkit.replication.primary import FollowerStatus, Primary, PrimaryStatus
from walkit.replication.replica import Replica
from walkit.replication.replicastore import ReplicaStore
from walkit.replication.status import ReplicaStatus
from walkit.replication.tls import ClientTLS, ServerTLS

__all__ = [
    "ClientTLS",
    "FollowerStatus",
    "IdentityError",
    "Primary",
    "PrimaryStatus",
    "ProtocolError",
    "Replica",
    "ReplicaFailedError",
    "ReplicaStatus",
    "ReplicaStore",
    "ServerTLS",
    "Tokens",
]
