"""A replica's connection to its primary: one gRPC call, and the thread that receives its messages."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, TypeAlias

from walkit._internal.arguments import check_bool, refuse
from walkit._internal.threads import LogThread, WakeEvent
from walkit.errors import OptionsError, WalkitError
from walkit.replication.protocol.checks import plain_text
from walkit.replication.protocol.failures import PeerError
from walkit.replication.protocol.messages import FromPublisher, FromSubscriber
from walkit.replication.protocol.wire import METHOD, WireError, decode_from_publisher, encode_from_subscriber
from walkit.replication.transport.access import TOKEN_KEY, check_token
from walkit.replication.transport.address import Address, parse_address
from walkit.replication.transport.grpc_common import channel_options, grpc
from walkit.replication.transport.threads import ByteBudget
from walkit.replication.transport.tls import ClientTLS, channel_credentials, name_options, tls_fault

INBOX_BYTES = 16 << 20
"""Reading from a publisher stops while so many bytes wait to be handled: twice the most in flight."""
OUTBOX_MESSAGES = 16_384
"""The connection to a publisher that has not read so many answers is given up: fewer batches are in flight."""

MAY_BE_TLS = ("handshake failed", "erification", "Socket closed")
"""Texts of gRPC for a failed connection that TLS may have caused."""

Received: TypeAlias = FromPublisher | BaseException | str
"""A message, an error that ends replication, or why the connection ended."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The address of a primary, and the credentials for it."""

    address: str
    token: str | None = field(default=None, repr=False)
    tls: ClientTLS | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The token of each call, if there is one."""
        return () if self.token is None else ((TOKEN_KEY, self.token),)

    def channel(self, frame_bytes_max: int) -> Any:
        """Return a new gRPC channel; OptionsError if a file of its TLS cannot be used."""
        options = (*channel_options(frame_bytes_max), *name_options(self.tls))
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=options)
        return grpc.secure_channel(self.address, channel_credentials(self.tls), options=options)


def destination_of(source: object, token: object, tls: ClientTLS | None, insecure: object) -> Destination:
    """Return the address of a primary and the credentials for it; OptionsError if invalid, before anything is sent.

    A token without TLS goes to the loopback address alone, unless `insecure` is True. No name is looked up: what it
    means may change between two connections, so of the names only localhost is loopback.
    """
    channel_credentials(tls)
    check_bool(insecure, "insecure")
    address = parse_address(source, "source")
    token = check_token(token)
    if token is not None and tls is None and not insecure and not _is_loopback(address):
        text = "tls=ClientTLS(ca=...) (--tls-ca FILE), or insecure=True (--insecure) in a trusted network"
        refuse(
            "source", source, f"a token is not sent in the clear except to a loopback address: give {text}"
        )
    return Destination(str(address), token, tls)


def _is_loopback(address: Address) -> bool:
    try:
        return ip_address(address.host).is_loopback
    except ValueError:  # a name
        return address.host.removesuffix(".").lower() == "localhost"


class Connection:
    """One call to a publisher: its thread receives messages, and passes them to `inbox` with itself."""

    def __init__(
        self,
        destination: Destination,
        frame_bytes_max: int,
        inbox: deque[tuple[Connection, Received, int]],
        wake: WakeEvent,
    ) -> None:
        """Begin the call. PeerError if the system has no thread left."""
        self._inbox, self._wake, self._destination = inbox, wake, destination
        self.inbox_budget = ByteBudget(INBOX_BYTES)
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = destination.channel(frame_bytes_max)
        self._call = self._channel.stream_stream(METHOD)(self._outgoing(), metadata=destination.metadata)
        try:
            LogThread(target=self._listen, name="walkit-replica-receiver", daemon=True).start()
        except RuntimeError as error:
            self.close()
            raise PeerError(
                f"no thread to receive from {destination.address}: {error}", address=destination.address
            ) from error

    def send(self, message: FromSubscriber) -> None:
        """Queue a message to the publisher; a publisher that takes none of them loses the connection."""
        if self._out.qsize() >= OUTBOX_MESSAGES:
            self._call.cancel()
            return
        self._out.put(encode_from_subscriber(message))

    def _outgoing(self) -> Iterator[bytes]:
        while (data := self._out.get()) is not None:
            yield data

    def _listen(self) -> None:
        end: Received = "the publisher ended the call"
        try:
            for data in self._call:
                self.inbox_budget.take(len(data))
                self._deliver(decode_from_publisher(data), len(data))
                self.inbox_budget.wait()
        except WireError as error:
            end = str(error)
        except grpc.RpcError as error:
            end = call_error(error, self._destination)
        except BaseException as error:  # noqa: BLE001 - the replica's thread raises it: this one has no caller
            end = error
        self._deliver(end)

    def _deliver(self, what: Received, size: int = 0) -> None:
        self._inbox.append((self, what, size))
        self._wake.set()

    def close(self) -> None:
        """End the call."""
        self.inbox_budget.close()
        self._out.put(None)
        self._call.cancel()
        self._channel.close()


def call_error(error: Any, destination: Destination) -> WalkitError | str:
    """Return an error that lasts, or the words of one that may pass."""
    code, details = error.code(), plain_text(error.details() or "")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return OptionsError(f"the primary refused this replica: {details}", option="token")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return OptionsError(f"the server there is not a walkit primary: {details}", option="source")
    if code == grpc.StatusCode.UNAVAILABLE and any(word in details for word in MAY_BE_TLS):
        fault = tls_fault(destination.address, destination.tls)
        if fault:
            return OptionsError(
                f"{destination.address} cannot be followed: {plain_text(fault)}", option="tls"
            )
    return f"{code.name.lower()}: {details}"
