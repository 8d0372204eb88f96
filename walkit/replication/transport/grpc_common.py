"""The gRPC of primary and replica: its import, and its options."""

from __future__ import annotations

import os
from typing import Any

from walkit.errors import MissingExtraError
from walkit.format.layout import FRAME_BYTES_LIMIT
from walkit.replication.protocol.wire import SUBSCRIBER_BYTES_MAX, publisher_bytes_max

# With fork support, gRPC starts its threads again in a forked child: if that is about to become another program
# (PySpark's Java, any subprocess with a preexec_fn) they find their descriptors closed, and abort it (grpc/grpc#43055).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
try:
    import grpc as _grpc
except ImportError as error:
    raise MissingExtraError("replication", "grpcio") from error

grpc: Any = _grpc

METADATA_BYTES_MAX = 8 << 10
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", SUBSCRIBER_BYTES_MAX),
    ("grpc.max_send_message_length", publisher_bytes_max(FRAME_BYTES_LIMIT)),
    # Two servers on one port would each get half of the replicas.
    ("grpc.so_reuseport", 0),
    # A replica sends little: its unread messages stay small, however fast it could send.
    ("grpc.http2.bdp_probe", 0),
    # A connection without a call holds a descriptor: it is closed after these times.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 30_000),
    # Metadata comes before the check of its token: longer metadata is refused unread.
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", 2 * METADATA_BYTES_MAX),
    ("grpc.max_concurrent_streams", 100),
)

CONNECTIONS_MAX = 2048


def server_options() -> tuple[tuple[str, int], ...]:
    """Return the options of a primary's server, as things are in this process.

    The connections of an address take at most a quarter of the descriptors that the process may have: a client that
    only connects, without a token and without a call, must not take those that the log needs for its next segment.
    """
    most = min(max(descriptors_max() // 4, 1), CONNECTIONS_MAX)
    return (*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most))


def descriptors_max() -> int:
    """Return how many descriptors this process may have open; a large number if unknown."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return 4 * CONNECTIONS_MAX
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4 * CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft


def channel_options(frame_bytes_max: int) -> tuple[tuple[str, int], ...]:
    """Return the options of a replica's channel: a message that is larger than they say is refused unread."""
    return (
        ("grpc.max_receive_message_length", publisher_bytes_max(frame_bytes_max)),
        ("grpc.max_send_message_length", SUBSCRIBER_BYTES_MAX),
        # A failed connection is not shared with the next attempt: the backoff is the subscriber's own.
        ("grpc.use_local_subchannel_pool", 1),
        # Else gRPC asks the proxy of the environment (http_proxy) for every address, the loopback one included.
        ("grpc.enable_http_proxy", 0),
    )
