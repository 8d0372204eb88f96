"""Errors of replication itself, besides those of logs."""

from __future__ import annotations

from walkit.errors import DivergenceError, WalkitError


class ProtocolError(WalkitError):
    """The other side sent an intact message whose content cannot be. Nothing of it was used.

    `field` names the wrong field and `found` is its value.
    """

    code = "protocol"

    def __init__(self, message: str, *, field: str, found: object) -> None:
        super().__init__(message)
        self.field, self.found = field, found


class IdentityError(WalkitError):
    """A replica's folder is not the one that its identity was made for. Nothing was changed, on either side.

    `reason`: "copied" (its folder is a copy: `location` names it),
    "rewound" (it ends below what it acknowledged before). `new_identity=True` follows under a new one, with the data
    that is there.
    """

    code = "identity"

    def __init__(self, message: str, *, reason: str, location: str = "") -> None:
        super().__init__(message)
        self.reason, self.location = reason, location


class RewindError(DivergenceError):
    """A log that differs from its primary's from `first_lsn` on was not rewound. Nothing was changed.

    `reason`: "held" (`readers` have read what would go: holds, claims, chained replicas), "bootstrap" (a snapshot, a
    trim or a compaction has passed the common point, so that only a bootstrap from the primary helps), "foreign"
    (nothing is common), or "records" (only frames without records were to go, and there are others).
    """

    code = "rewind"

    def __init__(self, message: str, *, first_lsn: int, reason: str, readers: tuple[str, ...] = ()) -> None:
        super().__init__(message, first_lsn=first_lsn)
        self.reason, self.readers = reason, readers


class ReplicaFailedError(WalkitError):
    """The replica's own thread ended with an error that walkit does not raise on purpose.

    What was imported stays. `cause` is that error as text; `__cause__` the error itself, which a pickled copy no
    longer has.
    """

    code = "replica-failed"

    def __init__(self, message: str, *, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class PeerError(WalkitError):
    """A peer at `address` could not be reached, or did not send the requested answer. Another try may succeed."""

    code = "peer"

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message)
        self.address = address
