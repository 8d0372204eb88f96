"""The identity of a replica: a random id, which proves it.

The replica mints the id and sends it in each hello. It is secret: claims, events, metrics and statuses have a digest of
it, the key.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from walkit.replication.protocol.messages import ID_BYTES

_LABEL = b"walkit replica key 1\0"


@dataclass(frozen=True, slots=True)
class Identity:
    """A replica's id."""

    id: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.id) != ID_BYTES:
            raise ValueError(f"an id has {ID_BYTES} bytes")

    @property
    def key(self) -> str:
        """The digest of the id as 32 hexadecimal digits: the name of the replica's claim."""
        return key_of(self.id)


def mint() -> Identity:
    """Return a new identity, of the operating system's randomness."""
    return Identity(secrets.token_bytes(ID_BYTES))


def key_of(replica_id: bytes) -> str:
    """Return the key of an id; the id cannot be computed from it."""
    return hashlib.sha256(_LABEL + replica_id).digest()[:ID_BYTES].hex()
