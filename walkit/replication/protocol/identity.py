"""Who a replica is: a random id, and a secret that proves it without being sent. Pure.

The primary mints both at the first contact. From then on the replica proves its id by an HMAC-SHA256 with the secret
over a nonce of the primary and what its hello says, so that neither a recorded proof nor another hello passes for it.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from dataclasses import dataclass, field

from walkit.format.manifest import LogEnd
from walkit.replication.protocol.messages import ID_BYTES, NONCE_BYTES, SECRET_BYTES, Hello

_LABEL = b"walkit replica identity 1\0"
_FACTS = struct.Struct("<QQQI")


@dataclass(frozen=True, slots=True)
class Identity:
    """A replica's id and its secret."""

    id: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.id) != ID_BYTES or len(self.secret) != SECRET_BYTES:
            raise ValueError(f"an id has {ID_BYTES} bytes and a secret {SECRET_BYTES}")

    @property
    def key(self) -> str:
        """The id as 32 hexadecimal digits: the name of the replica's hold."""
        return self.id.hex()


@dataclass(frozen=True, slots=True)
class KnownReplica:
    """What a primary keeps of a replica: what proves it, its label, and how far it has acknowledged."""

    identity: Identity
    name: str = ""
    acked: LogEnd = field(default_factory=LogEnd)
    seen_us: int = 0
    """When its last session began or ended, in microseconds since 1970."""


def mint() -> Identity:
    """Return a new identity, of the operating system's randomness."""
    return Identity(secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES))


def new_nonce() -> bytes:
    """Return what one proof is made over, and no other."""
    return secrets.token_bytes(NONCE_BYTES)


def proof_of(identity: Identity, nonce: bytes, hello: Hello) -> bytes:
    """Return what proves to the side that gave `nonce` that this hello is of `identity`."""
    end = hello.end
    facts = _FACTS.pack(hello.log_id, end.last_lsn, end.position, end.chain)
    name = hello.name.encode("utf-8", "surrogatepass")
    return hmac.digest(identity.secret, b"".join((_LABEL, nonce, identity.id, facts, name)), "sha256")


def proves(proof: bytes, identity: Identity, nonce: bytes, hello: Hello) -> bool:
    """Return whether this is the proof; the time does not depend on how much of it is right."""
    return hmac.compare_digest(proof, proof_of(identity, nonce, hello))
