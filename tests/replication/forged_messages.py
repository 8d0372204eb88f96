"""A gRPC server that answers a replica with what a test has prepared, in place of a primary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.replication.sim_network import History
from walkit.format.manifest import EpochRecord
from walkit.replication.protocol.messages import Batch, FromPublisher, Hello, Welcome
from walkit.replication.protocol.wire import METHOD, decode_from_subscriber, encode_from_publisher
from walkit.replication.transport.grpc_common import grpc
from walkit.replication.transport.threads import DaemonExecutor

Answer = Callable[[Hello], Sequence[FromPublisher]]


@contextmanager
def crafted_primary(answer: Answer) -> Iterator[str]:
    """Serve on the loopback address, and yield the address: each hello gets the messages that `answer` returns.

    A call stays open until the replica ends it.
    """

    def follow(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        hello = decode_from_subscriber(next(requests))
        assert isinstance(hello, Hello)
        for message in answer(hello):
            yield encode_from_publisher(message)
        for _ in requests:
            pass

    with serving(METHOD, grpc.stream_stream_rpc_method_handler(follow)) as address:
        yield address


@contextmanager
def serving(path: str, handler: Any) -> Iterator[str]:
    """Serve one call, named by its path, on the loopback address, and yield that."""
    server = grpc.server(DaemonExecutor())
    _, service, name = path.split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def welcome(history: History, **changes: Any) -> Welcome:
    """The welcome of a primary with this history, with these fields changed."""
    end = history.end()
    facts: dict[str, Any] = {
        "version": 2,
        "log_id": history.manifest.log_id,
        "created_us": 1,
        "ack_order": "append",
        "source_lsn": end.last_lsn,
        "source_position": end.position,
    }
    return Welcome(**(facts | changes))


def first_batch(history: History, frames: int = 2, **changes: Any) -> Batch:
    """The first frames of a history as a primary sends them, with these fields changed."""
    group = history.frames[:frames]
    segment, end = group[0][0], history.end(frames)
    lineage: tuple[EpochRecord, ...] = history.manifest.lineage[:1]
    facts: dict[str, Any] = {
        "after_position": 0,
        "start_position": 0,
        "end_position": end.position,
        "epoch": segment.epoch,
        "epoch_id": segment.epoch_id,
        "alignment": segment.alignment,
        "frame_bytes_max": segment.frame_bytes_max,
        "source_lsn": history.end().last_lsn,
        "source_position": history.end().position,
        "lineage": lineage,
        "data": b"".join(frame[2] for frame in group),
    }
    return Batch(**(facts | changes))
