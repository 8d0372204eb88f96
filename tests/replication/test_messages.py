"""Messages of publisher and subscriber: every flipped bit is seen, none costs more than its limit."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

import walkit
from tests.replication.blocking_callers import WAIT_S, Relay, flipped, sealed, until
from tests.replication.forged_messages import serving_bytes, welcomed
from tests.replication.frame_history import messages_of, whole
from tests.support.crashes import SMALL
from walkit.errors import DivergenceError, OptionsError
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.models import CrashingStorage
from walkit.replication import Primary, Replica
from walkit.replication.core.actions import Disconnect, Fail, Import
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import Publisher
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.protocol import walkit_pb2
from walkit.replication.protocol.codecs import chosen
from walkit.replication.protocol.messages import (
    LASTING,
    LINEAGE_EPOCHS_MAX,
    Ack,
    Batch,
    Chunk,
    Fetch,
    FromPublisher,
    FromSubscriber,
    Heartbeat,
    Hello,
    Nack,
    Plan,
    Refusal,
    Welcome,
)
from walkit.replication.protocol.wire import (
    SUBSCRIBER_BYTES_MAX,
    DamagedMessageError,
    WireError,
    decode_from_publisher,
    decode_from_subscriber,
    encode_from_publisher,
    encode_from_subscriber,
    publisher_bytes_max,
)

pb: Any = walkit_pb2
EPOCHS = tuple(
    EpochRecord(number=n, id=n << 40 | 5, first_lsn=n * 9, position=n * 640, chain=n) for n in (1, 2)
)
END = LogEnd(last_lsn=20, position=1_300, chain=99)
TO_PUBLISHER: tuple[FromSubscriber, ...] = (
    Hello(name="r", log_id=77, lineage=EPOCHS, end=END, codecs=("zstd",)),
    Hello(name="r", end=END, id=bytes(range(16))),
    Ack(end=END),
    Nack(end=END),
    Hello(name="r", bootstrap=True),
    Fetch(file=3, offset=1 << 33, size=1 << 20),
)
BATCH = Batch(
    after_position=1_280, start_position=1_280, end_position=1_408, epoch=2, epoch_id=EPOCHS[1].id, alignment=64,
    frame_bytes_max=4096, source_lsn=30, source_position=9_000, lineage=EPOCHS, codec="", data=bytes(range(128)),
)  # fmt: skip
WELCOME = Welcome(
    version=4, log_id=77, created_us=5, ack_order="append", source_lsn=30, source_position=9_000
)
TO_SUBSCRIBER: tuple[FromPublisher, ...] = (
    WELCOME,
    Refusal(reason="gap", message="gone", lsn=5, other_lsn=9),
    BATCH,
    Plan(manifest=bytes(range(64)), sizes=(4096, 1 << 33), snapshot_lsn=9),
    Chunk(file=1, offset=4096, data=bytes(range(64))),
    Heartbeat(sent_position=1_280, source_lsn=30, source_position=9_000),
)


@pytest.mark.parametrize("message", [*TO_PUBLISHER, *TO_SUBSCRIBER], ids=lambda m: type(m).__name__)
def test_every_flipped_bit_and_every_cut_is_seen(message: FromSubscriber | FromPublisher) -> None:
    """Turn over each bit of each kind of message, and cut it at each byte: the checksum shows every one."""
    if isinstance(message, Hello | Ack | Nack | Fetch):
        data, decode = encode_from_subscriber(message), decode_from_subscriber
    else:
        data, decode = encode_from_publisher(message), decode_from_publisher  # type: ignore[assignment]
    assert decode(data) == message
    for bit in range(len(data) * 8):
        with pytest.raises(DamagedMessageError):
            decode(flipped(data, bit))
    for size in range(len(data)):
        with pytest.raises(DamagedMessageError):
            decode(data[:size])
    with pytest.raises(DamagedMessageError):
        decode(data + b"\0")


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log with records of two epochs."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=SMALL) as log:
        log.append_many([b"first"] * 10)
    with walkit.open(storage=storage, options=SMALL) as log:
        log.append_many([b"second"] * 10)
        yield log


@pytest.mark.parametrize("reason", LASTING)
def test_a_lasting_refusal_is_tried_once_more(log: walkit.WriteAheadLog, tmp_path: Path, reason: str) -> None:
    """Refuse a replica once for each reason that lasts: it tries again and follows; the same again ends it."""
    refusal = encode_from_publisher(Refusal(reason=reason, message="no", lsn=3, other_lsn=4))
    refused = 1

    def refuse(call: int, message: int, data: bytes) -> bytes:
        return refusal if call < refused and message == 0 else data

    with Primary(log) as primary, Relay(primary.address, down=refuse) as relay:
        with Replica(tmp_path / "r", relay.address, backoff=Backoff(1, 2)) as replica:
            assert replica.wait_for(20, WAIT_S) == 20
            assert replica.status().error is None
        refused = relay.calls + 2
        with Replica(tmp_path / "r", relay.address, backoff=Backoff(1, 2)) as replica:
            until(lambda: replica.status().state == "failed", "the second refusal")
            assert relay.calls == refused
            with pytest.raises(walkit.WalkitError):
                replica.wait_for(21, WAIT_S)


def test_progress_between_two_refusals_makes_them_two_first_ones() -> None:
    """Refuse a subscriber, let it import, refuse it for the same reason: only a third refusal in a row ends it."""
    history = whole()
    subscriber = Subscriber("r")
    subscriber.start(0)
    refusal = Refusal(reason="divergence", message="m", lsn=5)

    def refused_now() -> list[Any]:
        subscriber.tick(1e9)
        subscriber.connected(0)
        return subscriber.receive(refusal, 0)

    subscriber.connected(0)
    assert [type(s) for s in subscriber.receive(refusal, 0)] == [Disconnect]
    subscriber.imported(history.end(3), 0)
    assert [type(s) for s in refused_now()] == [Disconnect]
    assert [type(s) for s in refused_now()] == [Disconnect, Fail]
    assert isinstance(subscriber.error, DivergenceError)


# -- memory


@contextmanager
def peak_below(limit: int) -> Iterator[None]:
    """Fail where more than so many bytes are allocated at a time within the block."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak:,} bytes"


@cache
def bomb(size: int, *, says_size: bool = True) -> bytes:
    """So many zeros, compressed in pieces."""
    packer = zstandard.ZstdCompressor().compressobj(size if says_size else -1)
    piece = bytes(1 << 20)
    return b"".join([*(packer.compress(piece) for _ in range(size >> 20)), packer.flush()])


def test_the_first_codec_that_both_know_is_taken() -> None:
    """Offer codecs in an order, unknown ones among them: the subscriber's first known one, or none."""
    assert chosen(("lzma", "snappy", "zstd")) == "snappy"
    assert chosen(("zstd", "snappy")) == "zstd"
    assert chosen(("lzma",)) == chosen(()) == ""


SAYS_A_GIGABYTE = b"\x80\x80\x80\x80\x04" + bytes(5000)
"""The beginning of a content of snappy."""


@pytest.mark.parametrize("codec", ["zstd", "zstd without its size", "snappy"])
@pytest.mark.parametrize("claimed", [1 << 30, 1 << 20])
def test_a_compressed_gigabyte_is_not_unpacked(claimed: int, codec: str) -> None:
    """Send a few kilobytes that become 1 GiB, as what they are and as less: refused in a few MiB of memory."""
    data = SAYS_A_GIGABYTE if codec == "snappy" else bomb(1 << 30, says_size=codec == "zstd")
    assert len(data) < 200_000
    subscriber = welcomed(whole(), frame_bytes_max=64 << 20)
    batch = replace(
        BATCH, after_position=0, start_position=0, end_position=claimed, frame_bytes_max=1 << 30,
        codec=codec.split(maxsplit=1)[0], data=data,
    )  # fmt: skip
    with peak_below(1 << 20 if codec == "snappy" else 8 << 20):
        steps = subscriber.receive(batch, 0)
    assert not any(isinstance(s, Import) for s in steps)
    assert subscriber.damaged == 1


def test_a_frame_that_the_replica_takes_is_unpacked_up_to_its_limit() -> None:
    """Send a batch of a frame as large as the batch's own limit, and one above: the first alone is unpacked."""
    history = whole()
    for size, unpacked in ((8 << 20, True), (9 << 20, False)):
        subscriber = welcomed(history, frame_bytes_max=64 << 20)
        batch = replace(
            BATCH, after_position=0, start_position=0, end_position=size, frame_bytes_max=8 << 20,
            codec="zstd", data=bomb(size),
        )  # fmt: skip
        tracemalloc.start()
        subscriber.receive(batch, 0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (peak >= size) == unpacked
        assert subscriber.damaged == 1


def long_lineage(epochs: int, **more: Any) -> Any:
    """A lineage of so many epochs, as it travels."""
    whole = [7] * epochs
    return pb.Lineage(
        **{"number": whole, "id": whole, "first_lsn": whole, "position": whole, "chain": whole, **more}
    )


@pytest.mark.parametrize(
    ("lineage", "problem"),
    [
        (long_lineage(LINEAGE_EPOCHS_MAX + 1), "65,536 is the most"),
        (long_lineage(0, number=[1] * 100_000), "65,536 is the most"),
        (long_lineage(5, chain=[1] * 4), "incomplete"),
        (long_lineage(2, first_lsn=[1, 1 << 63]), "beyond the largest position"),
        (long_lineage(2, position=[1, 1 << 63]), "beyond the largest position"),
    ],
)
def test_a_lineage_that_no_log_has_is_refused_before_it_is_unpacked(lineage: Any, problem: str) -> None:
    """Send too many epochs, incomplete ones, and ones beyond any log, both ways: a WireError in little memory."""
    hello = sealed(pb.SubscriberMessage(hello=pb.Hello(name="r", lineage=lineage)))
    batch = sealed(pb.PublisherMessage(batch=pb.Batch(lineage=lineage)))
    with peak_below(1 << 20):
        for decode, data in ((decode_from_subscriber, hello), (decode_from_publisher, batch)):
            with pytest.raises(WireError, match=problem):
                decode(data)


def test_the_longest_lineage_fits_the_largest_message_and_a_longer_one_is_not_sent() -> None:
    """Encode a hello with as many epochs as there may be, each field at its largest; one more is a WireError."""
    epoch = EpochRecord(
        number=(1 << 64) - 1, id=(1 << 64) - 1, first_lsn=(1 << 63) - 1, position=(1 << 63) - 1, chain=(1 << 32) - 1
    )  # fmt: skip
    hello = Hello(name="\U0001f600" * 128, lineage=(epoch,) * LINEAGE_EPOCHS_MAX, end=END)
    data = encode_from_subscriber(hello)
    assert len(data) <= SUBSCRIBER_BYTES_MAX
    assert decode_from_subscriber(data) == hello
    with pytest.raises(WireError):
        encode_from_subscriber(replace(hello, lineage=(epoch,) * (LINEAGE_EPOCHS_MAX + 1)))
    with peak_below(100_000):
        assert decode_from_subscriber(data, 3) == replace(hello, lineage=hello.lineage[:3])
    million = (epoch,) * 1_000_000
    with pytest.raises(WireError, match="1,000,000 epochs"), peak_below(1 << 20):
        encode_from_publisher(replace(BATCH, lineage=million))


@pytest.mark.parametrize(
    "message",
    [
        pb.SubscriberMessage(ack=pb.Ack(end=pb.LogEnd(last_lsn=1 << 63))),
        pb.SubscriberMessage(nack=pb.Nack(end=pb.LogEnd(position=(1 << 64) - 1))),
        pb.SubscriberMessage(hello=pb.Hello(name="r", codecs=["x"] * 17)),
        pb.SubscriberMessage(),
    ],
)
def test_numbers_beyond_any_log_are_refused(message: Any) -> None:
    """Send LSNs, positions and lists beyond what can be, with a right checksum: a WireError, not a damaged message."""
    with pytest.raises(WireError) as refused:
        decode_from_subscriber(sealed(message))
    assert not isinstance(refused.value, DamagedMessageError)


def test_messages_over_their_limit_are_not_read(tmp_path: Path) -> None:
    """Send a replica one byte more than the largest message: gRPC refuses it and says the limit."""
    size = publisher_bytes_max(64 << 20) + 1
    with (
        serving_bytes(bytes(size)) as address,
        Replica(tmp_path / "r", address, backoff=Backoff(5, 50)) as replica,
    ):
        until(lambda: "resource_exhausted" in replica.status().trouble, "the limit")
        assert f"({size} vs. {size - 1})" in replica.status().trouble
    options = walkit.LogOptions(frame_bytes_max=96 << 20, segment_bytes=256 << 20)
    with (
        serving_bytes(bytes(size)) as address,
        Replica(tmp_path / "larger", address, options=options, backoff=Backoff(5, 50)) as replica,
    ):
        until(lambda: "checksum" in replica.status().trouble, "a message within the larger limit")


def test_a_frame_larger_than_a_replica_takes_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Follow a log with a frame above the limit: OptionsError that names the option; with that option it goes on."""
    monkeypatch.setattr("walkit.replication.replica.opening.FRAME_BYTES_TAKEN", 1 << 20)
    large = walkit.LogOptions(frame_bytes_max=4 << 20)
    with walkit.open(tmp_path / "p", options=large) as log, Primary(log) as primary:
        log.append(b"small")
        log.append(bytes(2 << 20))
        with Replica(tmp_path / "r", primary.address, backoff=Backoff(1, 2)) as replica:
            with pytest.raises(OptionsError) as refused:
                replica.wait_for(2, WAIT_S)
            assert refused.value.option == "frame_bytes_max"
            assert "after LSN 1, and the replica takes 1,048,576" in str(refused.value)
            assert replica.log.durable_lsn == 1
        with Replica(tmp_path / "r", primary.address, options=large) as replica:
            assert replica.wait_for(2, WAIT_S) == 2


def test_no_more_batches_are_in_flight_than_can_be_compared() -> None:
    """Send a frame at a time and acknowledge nothing: after so many batches nothing is read until one is answered."""
    from walkit.replication.core import publisher as module

    history = whole()
    publisher = Publisher(window_bytes=1 << 40, batch_bytes=1)
    hello = Hello(name="r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATCHES_MAX", 5)
        sent = messages_of(publisher, history, publisher.admitted(hello, history.primary_state(hello), 0))
        assert sum(isinstance(message, Batch) for message in sent) == 5
        assert publisher.receive(Ack(end=history.end(2)), 0)


def test_answers_that_a_publisher_does_not_take_are_bounded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Send a replica more heartbeats than it may have answers waiting, and read none: it gives the connection up."""
    monkeypatch.setattr("walkit.replication.transport.connection.OUTBOX_MESSAGES", 20)
    beat = encode_from_publisher(Heartbeat(sent_position=0, source_lsn=0, source_position=0))
    answers = encode_from_publisher(WELCOME), *[beat] * 20_000
    with (
        serving_bytes(*answers) as address,
        Replica(tmp_path / "r", address, backoff=Backoff(5, 50)) as replica,
    ):
        until(lambda: "cancelled" in replica.status().trouble, "the connection to be given up")


# -- the generated code


if TYPE_CHECKING:
    from tests.conftest import Checkout

PROTO = "walkit/replication/protocol/walkit.proto"
GENERATED = "walkit/replication/protocol/walkit_pb2.py"


def meaning(code: str) -> list[str]:
    """The generated code without the lines that only name the protobuf version."""
    lines = code.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("_sym_db"))
    return lines[begin:]


def test_the_generated_code_is_current(checkout: Checkout, tmp_path: Path) -> None:
    """Generate it again and compare; `python -m grpc_tools.protoc -I. --python_out=. FILE` rebuilds it."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools, of the dev extra, is not installed")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", PROTO]
    subprocess.run(command, cwd=checkout.root, check=True, timeout=60)
    made = (tmp_path / GENERATED).read_text()
    kept = (checkout.root / GENERATED).read_text()
    assert "AddSerializedFile" in made
    assert meaning(made) == meaning(kept)
