"""What primary and replica share of gRPC: how it is imported, and its options."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from walkit._threads import LogThread
from walkit.errors import MissingExtraError
from walkit.format.layout import FRAME_BYTES_LIMIT
from walkit.replication.protocol.wire import SUBSCRIBER_BYTES_MAX, publisher_bytes_max

# With fork support, gRPC starts its threads again in a forked child: where that is about to become another program
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
    # A replica says little: what it has said and was not read stays small, however fast it could send.
    ("grpc.http2.bdp_probe", 0),
    # A connection without a call holds a descriptor: it is closed after these times.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 30_000),
    # What comes before a call is looked at, the token in it: a longer one is refused unread.
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
    """Return how many descriptors this process may have open; a large number where nothing says so."""
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


class ByteBudget:
    """Counts the bytes that one thread has taken in and another has not dealt with yet. Safe from any thread.

    What is taken in may be over the limit once; then nothing more is until the rest is dealt with.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Count so many bytes more."""
        with self._changed:
            self._used += size

    def give(self, size: int) -> None:
        """Say that so many of them are dealt with."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until there is room, or until the budget is closed. To be called before more is taken in."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._used < self._limit)

    def close(self) -> None:
        """End every wait: nothing runs that could receive more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class DaemonExecutor(Executor):
    """Runs each call of a server on a new daemon thread.

    The threads of a ThreadPoolExecutor are joined when the interpreter ends, so a primary that was not stopped would
    keep its process alive for ever.

    Where the system has no thread to give, a call waits for one: an error of `submit` would end the only thread of gRPC
    that takes calls, and the server with it, for good and in silence.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have `fn` run on a thread, as soon as there is one, and return its future."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the future raises it
                future.set_exception(error)

        self._waiting.append(run)
        self.start_waiting()
        return future

    def start_waiting(self) -> None:
        """Start a thread for each call that waits for one; to be called now and then."""
        for _ in range(len(self._waiting)):
            try:
                LogThread(target=self._run_one, name="walkit-publisher", daemon=True).start()
            except (RuntimeError, MemoryError):
                return

    def _run_one(self) -> None:
        try:
            run = self._waiting.popleft()
        except IndexError:
            return  # another one of two that were started for one call has it
        run()
