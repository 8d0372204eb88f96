"""A delta reader's calls to its primary: one poll at a time, without a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from walkit.errors import OptionsError, WalkitError
from walkit.replication.delta.messages import PollAnswer, PollRefusal, PollRequest
from walkit.replication.delta.service import DELTA_BYTES_SENT_MAX
from walkit.replication.delta.wire import ANSWER_WORDS_BYTES, POLL_METHOD, decode_reply, encode_poll
from walkit.replication.transport.connection import Destination, call_error
from walkit.replication.transport.grpc_common import grpc

POLL_WAIT_MS = 1_000.0
"""A poll requests an answer within this time, whatever the primary's long poll is."""
POLL_TIMEOUT_S, LEAVE_S = 5.0, 1.0

Received: TypeAlias = "PollAnswer | PollRefusal | WalkitError | str"
"""A reply; an error that lasts; or why no reply came."""


class PollLink:
    """Sends polls and passes on each reply, with the request. Used by one thread; `on_reply` is called on gRPC's."""

    def __init__(self, destination: Destination, on_reply: Callable[[PollRequest, Received], object]) -> None:
        self._destination, self._on_reply = destination, on_reply
        self._channel: Any = None
        self._call: Any = None

    def leave(self, session_id: int, session_epoch: int) -> None:
        """End the session at the primary, as far as it answers soon; otherwise it expires there."""
        if self._call is not None:
            request = PollRequest(session_id=session_id, session_epoch=session_epoch, leave=True)
            with suppress(grpc.RpcError, ValueError):  # a channel that is closed meanwhile
                self._call(encode_poll(request), timeout=LEAVE_S, metadata=self._destination.metadata)

    def send(self, request: PollRequest) -> None:
        """Send a poll; `on_reply` gets its outcome. OptionsError if a file of the TLS cannot be used."""
        if self._channel is None:
            self._channel = self._destination.channel(DELTA_BYTES_SENT_MAX + ANSWER_WORDS_BYTES)
            self._call = self._channel.unary_unary(POLL_METHOD)
        future = self._call.future(
            encode_poll(replace(request, wait_ms=POLL_WAIT_MS)),
            timeout=POLL_TIMEOUT_S,
            metadata=self._destination.metadata,
        )
        future.add_done_callback(lambda done: self._on_reply(request, self._received(done)))

    def reconnect(self) -> None:
        """Give the connection up: the next poll makes a new one, at the reader's own pace."""
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()

    close = reconnect

    def _received(self, done: Any) -> Received:
        try:
            return decode_reply(done.result())
        except grpc.FutureCancelledError:
            return "the connection was given up"
        except grpc.RpcError as error:
            found = call_error(error, self._destination)
            return found if isinstance(found, OptionsError | str) else str(found)
        except WalkitError as error:
            return f"a reply came damaged: {error}"
        except Exception as error:  # noqa: BLE001 - gRPC's thread has no caller that it could be raised to
            return f"{type(error).__name__}: {error}"
