"""Shared by the replication tests: a caller that says over gRPC what it likes, and a relay that changes messages."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from walkit.format.checksum import crc32c
from walkit.replication.core.backoff import Backoff
from walkit.replication.protocol.identity import Identity, mint
from walkit.replication.protocol.messages import (
    Batch,
    FromPublisher,
    FromSubscriber,
    Hello,
    Welcome,
)
from walkit.replication.protocol.wire import METHOD, decode_from_publisher, encode_from_subscriber
from walkit.replication.transport.access import TOKEN_KEY
from walkit.replication.transport.grpc_common import grpc
from walkit.replication.transport.threads import DaemonExecutor

WAIT_S = 30.0
UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


def quick() -> Backoff:
    """A backoff for tests: soon, and often."""
    return Backoff(2, 50)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds that another thread brings about."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for: {what}"
        time.sleep(0.002)


class Caller:
    """One call to a primary by a client without a log: it sends the test's messages, and need not read."""

    def __init__(
        self, address: str, *, reads: bool = True, channel: Any = None, token: str | None = None
    ) -> None:
        self._own = grpc.insecure_channel(address, options=UNLIMITED) if channel is None else None
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        used: Any = channel or self._own
        metadata = () if token is None else ((TOKEN_KEY, token),)
        self.call = used.stream_stream(METHOD)(iter(self._out.get, None), metadata=metadata)
        self.received: queue.SimpleQueue[FromPublisher | None] = queue.SimpleQueue()
        self.identity = mint()
        self.ended = threading.Event()
        self.status = ""
        """How gRPC ended the call; "" if it ended in order, or goes on."""
        if reads:
            threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for data in self.call:
                self.received.put(decode_from_publisher(data))
        except grpc.RpcError as error:
            self.status = f"{error.code().name}: {error.details()}"
        self.ended.set()
        self.received.put(None)

    def send(self, message: FromSubscriber | bytes) -> Self:
        """Send a message, or bytes that need not be one."""
        self._out.put(message if isinstance(message, bytes) else encode_from_subscriber(message))
        return self

    def hello(self, name: str, **facts: Any) -> Self:
        """Say hello, as the replica with this caller's identity unless `facts` have another id."""
        return self.send(Hello(name=name, **{"id": self.identity.id, **facts}))

    def hello_as(self, identity: Identity, name: str = "r", **facts: Any) -> Self:
        """Say hello as the replica with this identity."""
        self.identity = identity
        return self.hello(name, **facts)

    def next(self) -> FromPublisher | None:
        """The next message; None at the end of the call."""
        return self.received.get(timeout=WAIT_S)

    def next_of(self, kind: type[Any]) -> Any:
        """The next message of this kind; the others before it are passed over."""
        while not isinstance(message := self.next(), kind):
            assert message is not None, f"the call ended without a {kind.__name__}: {self.status}"
        return message

    def welcomed(self, name: str) -> Batch:
        """Say hello without a log; return the first frames."""
        assert isinstance(self.hello(name).next_of(Welcome), Welcome)
        batch: Batch = self.next_of(Batch)
        return batch

    def close(self) -> None:
        """Go away without a word."""
        self.call.cancel()
        self._out.put(None)
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


Change = Callable[[int, int, bytes], bytes]
"""Gets the number of the call, the number of the message in it, and its bytes; returns what is passed on."""


def as_it_is(call: int, message: int, data: bytes) -> bytes:
    """Pass a message on."""
    return data


class Relay:
    """Stands between replicas and a primary, over gRPC on both sides, and may change each message."""

    def __init__(self, target: str, *, up: Change = as_it_is, down: Change = as_it_is) -> None:
        self._target, self._up, self._down = target, up, down
        self.calls = 0
        self._server = grpc.server(DaemonExecutor(), options=UNLIMITED)
        _, service, method = METHOD.split("/")
        handler = grpc.stream_stream_rpc_method_handler(self._follow)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _follow(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        number, self.calls = self.calls, self.calls + 1
        with grpc.insecure_channel(self._target, options=UNLIMITED) as channel:
            said = (self._up(number, index, data) for index, data in enumerate(_until_it_ends(requests)))
            call = channel.stream_stream(METHOD)(said)
            context.add_callback(call.cancel)
            for index, data in enumerate(_until_it_ends(call)):
                yield self._down(number, index, data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(grace=None).wait()


def _until_it_ends(messages: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from messages
    except grpc.RpcError:
        return


def flipped(data: bytes, bit: int) -> bytes:
    """The same bytes with one bit turned over."""
    at = bit // 8
    return data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


def sealed(message: Any) -> bytes:
    """The bytes of a message that was put together by hand, with the checksum that makes it a message."""
    data: bytes = message.SerializeToString()
    return data + b"\x7d" + crc32c(data).to_bytes(4, "little")
