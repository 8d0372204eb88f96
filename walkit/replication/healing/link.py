"""The caller's side of the call `Frames`: runs of frames after an end, each checked against the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from walkit._internal.threads import LogThread, WakeEvent
from walkit._main_thread import abandonment, end_if_abandoned
from walkit.errors import CorruptionError, WalkitError
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.primary.range_service import FRAMES_METHOD
from walkit.replication.protocol.checks import check_content, checked_run, lasting_error, plain_text
from walkit.replication.protocol.failures import PeerError
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.protocol.messages import LASTING, PROTOCOL_MAX, PROTOCOL_MIN, Batch, Hello, Refusal
from walkit.replication.protocol.wire import WireError, decode_from_publisher, encode_from_subscriber
from walkit.replication.transport.connection import Destination, call_error
from walkit.replication.transport.grpc_common import grpc

SILENCE_S = 30.0
"""A peer that sends nothing for so long has hung up, as far as the caller is concerned."""
LOOK_S = 0.25
"""How often is looked whether it has, and whether Ctrl-C has ended the waiting for the call."""


class RangeLink:
    """A connection to a peer that serves frames. Used by one thread; to be closed."""

    def __init__(self, destination: Destination, frame_bytes_max: int) -> None:
        """Connect at the first call. No frame above `frame_bytes_max`, and no message that holds one, is taken in."""
        self._destination, self._frame_bytes_max = destination, frame_bytes_max
        self._channel = destination.channel(frame_bytes_max)
        self._call = self._channel.unary_stream(FRAMES_METHOD)

    def runs(self, log_id: int, lineage: tuple[EpochRecord, ...], after: LogEnd) -> Iterator[FrameRun]:
        """Yield runs of frames that follow `after`, up to the last durable one of the peer.

        DivergenceError if the peer has another log, or does not have `after`; GapError if it no longer has the frames;
        CorruptionError if the frames are damaged, on the way or at the peer; PeerError for a failure that another try
        may fix; OptionsError.
        """
        hello = Hello(name="heal", log_id=log_id, lineage=lineage, end=after)
        call = self._call(
            encode_from_subscriber(hello), metadata=self._destination.metadata, wait_for_ready=False
        )
        end, watch = after, _SilenceWatch(call)
        try:
            while True:
                with watch.listening():
                    data = next(call, None)
                end_if_abandoned()
                if data is None:
                    return
                run = self._taken(data, log_id, end)
                end = run.end
                yield run
        except grpc.RpcError as error:
            end_if_abandoned()
            said = watch.said or call_error(error, self._destination)
            if isinstance(said, WalkitError):
                raise said from error
            raise PeerError(
                f"{self._destination.address} ended the call: {said}", address=self._destination.address
            ) from error
        finally:
            watch.end()
            with suppress(Exception):  # gRPC's own: the caller gets the error that ended the call
                call.cancel()

    def _taken(self, data: bytes, log_id: int, after: LogEnd) -> FrameRun:
        """Return the run that a message holds, checked."""
        address = self._destination.address
        try:
            message = decode_from_publisher(data)
        except WireError as error:
            raise PeerError(f"{address} sent {error}", address=address) from error
        if isinstance(message, Refusal):
            if message.reason in LASTING:
                raise lasting_error(message, (PROTOCOL_MIN, PROTOCOL_MAX))
            if message.reason == "damage":
                raise CorruptionError(
                    f"{address} has damage of its own after position {after.position:,}: {plain_text(message.message)}",
                    segment=address,
                    position=after.position,
                    first_lost_lsn=after.last_lsn + 1,
                )
            raise PeerError(f"{address} refused: {plain_text(message.message)}", address=address)
        check_content(message)
        if not isinstance(message, Batch):
            raise PeerError(f"{address} sent a {type(message).__name__} out of turn", address=address)
        run, fault = checked_run(message, log_id, after, self._frame_bytes_max)
        if run is None:
            assert fault is not None
            raise CorruptionError(
                f"{address} sent frames that do not follow position {after.position:,}: {fault.value}",
                segment=address,
                position=after.position,
                found=fault.name,
                first_lost_lsn=after.last_lsn + 1,
            )
        return run

    def close(self) -> None:
        """End the connection."""
        with suppress(Exception):  # the same
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _SilenceWatch:
    """Cancels a call whose peer sends nothing for `SILENCE_S`, while it is listened to, or that Ctrl-C gave up.

    Has one thread until `end`.
    """

    def __init__(self, call: Any) -> None:
        self._call, self._since, self._over = call, 0.0, WakeEvent()
        self._given_up = abandonment()
        self.said = ""
        """Why the call was cancelled; "" if it was not."""
        LogThread(target=self._run, name="walkit-range-watch", daemon=True).start()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count the time within as silence."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = 0.0

    def end(self) -> None:
        """Watch no longer."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            since = self._since
            if self._given_up():
                self._call.cancel()
                return
            if since and time.monotonic() - since > SILENCE_S:
                self.said = f"it sent nothing for {SILENCE_S:g} s"
                self._call.cancel()
                return
