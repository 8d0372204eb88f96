"""Every way a replica ends is a state with its error: crafted messages over real gRPC, and any error inside."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import walkit
from tests.replication.blocking_callers import WAIT_S, quick, until
from tests.replication.forged_messages import (
    Mutator,
    first_batch,
    forged_primary,
    pb,
    welcome,
    welcomed,
)
from tests.replication.frame_history import History, whole
from tests.replication.test_cores import hello_at
from tests.support.crashes import SMALL
from tests.support.examples import examples
from tests.support.threads import Task
from walkit._internal.threads import LogThread, WakeEvent
from walkit.cli import main
from walkit.copier.plan import MissingRange
from walkit.errors import StorageError, WalkitError
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.models import CrashingStorage
from walkit.replication import DeltaReader, Primary, ProtocolError, Replica, ReplicaFailedError
from walkit.replication.core.actions import Admit, Adopt, Import, MoveClaim, Prepare, PublisherStep, Read
from walkit.replication.core.bootstrap import FETCHES_MAX
from walkit.replication.core.publisher import HISTORY_CHARS, Publisher
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.protocol.messages import (
    Ack,
    Chunk,
    FromPublisher,
    FromSubscriber,
    Heartbeat,
    Hello,
    Nack,
    Plan,
    Refusal,
)
from walkit.replication.protocol.wire import (
    WireError,
    decode_from_publisher,
    decode_from_subscriber,
    encode_from_publisher,
    encode_from_subscriber,
)
from walkit.replication.transport.connection import Destination, call_error
from walkit.replication.transport.grpc_common import grpc

HUGE = (1 << 64) - 1


def twice(lineage: tuple[EpochRecord, ...]) -> tuple[EpochRecord, ...]:
    """A lineage whose last epoch's number is given twice."""
    return (*lineage, replace(lineage[-1], id=lineage[-1].id ^ 1))


FORGED_CONTENT: dict[str, tuple[str, Callable[[History], Sequence[FromPublisher]]]] = {
    "an unknown ack_order": ("ack_order", lambda h: [welcome(h, ack_order="as it comes")]),
    "two welcomes to log 0": ("log_id", lambda h: [welcome(h, log_id=0), welcome(h, log_id=0)]),
    "an epoch's number twice": (
        "lineage",
        lambda h: [welcome(h), first_batch(h, lineage=twice(h.manifest.lineage[:1]))],
    ),
    "an epoch 0": (
        "lineage",
        lambda h: [welcome(h), first_batch(h, lineage=(replace(h.manifest.lineage[0], number=0),))],
    ),
    "a date that no calendar has": ("created_us", lambda h: [welcome(h, created_us=HUGE)]),
    "a source beyond every LSN": ("source_lsn", lambda h: [welcome(h, source_lsn=HUGE)]),
    "a heartbeat beyond every position": (
        "sent_position",
        lambda h: [welcome(h), Heartbeat(sent_position=HUGE, source_lsn=0, source_position=0)],
    ),
    "positions that go back": ("end_position", lambda h: [welcome(h), first_batch(h, after_position=64)]),
    "an unknown codec": ("codec", lambda h: [welcome(h), first_batch(h, codec="lzma")]),
}


@pytest.mark.parametrize("what", FORGED_CONTENT)
def test_content_that_cannot_be_ends_in_a_state_with_its_error(what: str, tmp_path: Path) -> None:
    """Answer a replica over gRPC with such a message: state "failed", a typed error that waiting raises, one event."""
    field, messages = FORGED_CONTENT[what]
    events: list[tuple[str, dict[str, Any]]] = []
    with (
        forged_primary(lambda hello: messages(whole())) as address,
        Replica(
            tmp_path / "r", address, backoff=quick(), events=lambda name, facts: events.append((name, facts))
        ) as replica,
    ):
        with pytest.raises(ProtocolError) as caught:
            replica.wait_for(1, WAIT_S)
        assert caught.value.field == field
        assert pickle.loads(pickle.dumps(caught.value)).field == field
        status = replica.status()
        assert (status.state, status.error, status.reason) == ("failed", str(caught.value), "failure")
        assert status.detail == status.error and status.stalled_s is not None
        assert (status.lag_records, status.lag_bytes, status.lag_ms) == (None, None, None)
        assert replica.error is caught.value
        until(lambda: any(name == "walkit.replica.fail" for name, _ in events), "the event")
    (failed,) = [facts for name, facts in events if name == "walkit.replica.fail"]
    assert failed["error"] == str(caught.value) and failed["source"] == address
    with Replica(tmp_path / "r", "127.0.0.1:1") as again:
        assert again.status().lsn == 0


def test_follow_ends_with_3_and_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Let `walkit follow` meet such a message: exit code 3, a sentence that names the field, no traceback."""
    with forged_primary(lambda hello: FORGED_CONTENT["two welcomes to log 0"][1](whole())) as address:
        assert main(["follow", address, str(tmp_path)]) == 3
    printed = capsys.readouterr()
    assert "the primary sent log_id=" in printed.err and "Traceback" not in printed.err
    assert printed.out.splitlines()[-1].startswith("failed: LSN 0")


def break_import(replica: Replica, error: BaseException) -> None:
    """Let the replica's log raise this when frames are imported."""
    replica.log.import_run = lambda run, lineage: _raise(error)  # type: ignore[method-assign]


def break_store(replica: Replica, error: BaseException) -> None:
    """Let the replica's store raise this when records are applied."""
    replica.store.feed = lambda run: _raise(error)  # type: ignore[method-assign]


def break_core(replica: Replica, error: BaseException) -> None:
    """Let the state machine raise this when a message comes."""
    replica._core.receive = lambda message, now_ms: _raise(error)  # type: ignore[method-assign]


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (break_import, MemoryError("no more")),
        (break_import, KeyboardInterrupt()),
        (break_store, SystemExit(0)),
        (break_core, ValueError("odd")),
    ],
)
def test_any_error_of_the_replicas_thread_is_a_state(
    broken: Callable[[Replica, BaseException], None], error: BaseException, tmp_path: Path
) -> None:
    """Raise no WalkitError inside a running replica: "failed" with that cause, at once, and it stops."""
    with walkit.open(tmp_path / "p") as log, Primary(log) as primary:
        log.append(b"x")
        replica = Replica(tmp_path / "r", primary.address)
        broken(replica, error)
        with replica.start():
            with pytest.raises(ReplicaFailedError) as caught:
                replica.wait_for(2, WAIT_S)
            assert caught.value.__cause__ is error
            assert type(error).__name__ in caught.value.cause
            assert replica.status().state == "failed" and caught.value.cause in str(replica.status().error)
            assert pickle.loads(pickle.dumps(caught.value)).cause == caught.value.cause
        with Replica(tmp_path / "r", primary.address) as again:
            again.wait_for(1, WAIT_S)
            assert [r.value for r in again.log.read()] == [b"x"]


def test_an_error_of_the_listening_thread_is_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run out of memory while a message is decoded, on a thread without a caller: the replica fails with that cause."""
    monkeypatch.setattr(
        "walkit.replication.transport.connection.decode_from_publisher",
        lambda data: _raise(MemoryError("too large")),
    )
    with (
        walkit.open(tmp_path / "p") as log,
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address) as r,
    ):
        log.append(b"x")
        with pytest.raises(ReplicaFailedError, match="MemoryError: too large"):
            r.wait_for(1, WAIT_S)


def mutated(seed: int, history: History) -> Iterator[FromPublisher]:
    """Yield messages of a primary with this history, each with something changed, as far as they are messages."""
    change = Mutator(seed)
    for _ in range(change.random.randint(1, 6)):
        reason = change.random.choice(("closed", "gap", "divergence", "version", "damage"))
        honest: tuple[FromPublisher, ...] = (
            welcome(history),
            first_batch(history, change.random.randint(1, 4)),
            Heartbeat(sent_position=0, source_lsn=0, source_position=0),
            Refusal(reason=reason, message="no"),
            Plan(manifest=bytes(64), sizes=(4096, 9)),
            Chunk(file=0, offset=0, data=bytes(4096)),
        )
        data = encode_from_publisher(change.random.choice(honest))
        with suppress(WireError):
            yield decode_from_publisher(change(pb.PublisherMessage, data))


@settings(max_examples=examples(120))
@given(st.integers(0, 1 << 32), st.booleans())
@example(93843, False)  # a second welcome in a bootstrap
def test_no_content_raises_in_the_core_or_breaks_a_log(seed: int, welcomed: bool) -> None:
    """Say anything that the wire can carry: the core raises nothing, and a log takes what it gives out, and opens."""
    history, storage = whole(), CrashingStorage()
    subscriber = Subscriber("r", bootstraps=True)
    subscriber.start(0)
    subscriber.connected(0)
    with closing(ImportedLog(storage, SMALL)) as log:
        for message in (*[welcome(history)] * welcomed, *mutated(seed, history)):
            for step in subscriber.receive(message, 0):
                if isinstance(step, Adopt):
                    to = step.welcome
                    log.adopt(to.log_id, created_us=to.created_us, ack_order=to.ack_order, extra={})
                elif isinstance(step, Import):
                    subscriber.imported(log.import_run(step.run, step.lineage), 0)
                elif isinstance(step, Prepare):
                    missing = tuple(MissingRange(n, 0, size) for n, size in enumerate(step.plan.sizes))
                    assert len(subscriber.prepared(missing, 0)) <= FETCHES_MAX
        end = log.end
    assert (subscriber.state == "failed") == (subscriber.error is not None)
    assert subscriber.error is None or isinstance(subscriber.error, WalkitError)
    if log.adopted:
        with walkit.open(storage=storage, mode="r") as reader:
            assert reader.durable_lsn == end.last_lsn == len(list(reader.read()))


def test_no_answer_raises_in_a_publisher_or_moves_a_claim_too_far() -> None:
    """Say mutated hellos and answers to a publisher core: nothing is raised, and claims move to ends that were sent."""
    history, did = whole(), Counter[str]()
    ends = [history.end(frames) for frames in (0, 1, 2, 5, len(history.frames))]
    for seed in range(examples(600)):
        change, publisher = Mutator(seed), Publisher(batch_bytes=2048)
        publisher.began(0)
        sent: list[LogEnd] = []
        for turn in range(change.random.randint(1, 8)):
            at = change.random.choice((*ends, *sent[-1:] * 9))
            whole_log = replace(hello_at(history, change.random.choice((0, 5))), id=bytes(range(16)))
            honest: list[Ack | Nack | Hello] = [Ack(end=at), Ack(end=at), Nack(end=at)]
            honest += [whole_log] * (1 if turn else 8)
            data = encode_from_subscriber(change.random.choice(honest))
            if change.random.randrange(3) == 0:
                data = change(pb.SubscriberMessage, data)
            with suppress(WireError):
                steps = deliver_to(publisher, decode_from_subscriber(data))
                did[f"{publisher.state} after {bool(sent)}"] += 1
                while steps:
                    step = steps.pop(0)
                    if isinstance(step, Admit):
                        steps += publisher.admitted(step.hello, history.primary_state(step.hello), 0)
                        sent.append(step.hello.end)
                    elif isinstance(step, Read):
                        run = history.read(step.after, step.limit_bytes)
                        sent += [] if run is None else [run.end]
                        steps += publisher.frames(run, history.lineage(), 0)
                    elif isinstance(step, MoveClaim):
                        did["claims"] += 1
                        assert step.acked in sent
    assert (
        min(did["claims"], did["streaming after True"], did["ended after True"], did["ended after False"]) > 9
    )


def deliver_to(publisher: Publisher, message: FromSubscriber) -> list[PublisherStep]:
    """Say something to a publisher core, as the session does."""
    if publisher.state != "waiting":
        return publisher.receive(message, 0)
    if isinstance(message, Hello):
        return publisher.greeted(message, 0)
    return publisher.refuse(Refusal(reason="protocol", message="the first message is not a hello"), 0)


@pytest.mark.parametrize("reason", ["name", "frame", "lineage", "divergence"])
def test_the_error_that_ends_a_replica_is_one_plain_line(reason: str) -> None:
    """Refuse twice, for reasons that last, with terminal escapes: trouble and final error have none of them."""
    subscriber = Subscriber("r")
    subscriber.start(0)
    for at in (0, 10_000):
        subscriber.tick(at)
        subscriber.connected(at)
        subscriber.receive(Refusal(reason=reason, message="\x1b]0;title\x07" + "gone\n" * 800), at)
        assert (subscriber.reason == reason) == (at == 0)
        assert subscriber.trouble.isprintable() and len(subscriber.trouble) < 500
    assert subscriber.error is not None
    assert str(subscriber.error).isprintable() and len(str(subscriber.error)) < 600


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED])
def test_how_grpc_ends_a_call_is_one_plain_line(code: Any) -> None:
    """End a call with a status whose details a terminal acts upon: the error and the words have none of it."""

    class Ended:
        code = staticmethod(lambda: code)
        details = staticmethod(lambda: "\x1b[2J\n" + "x" * 10_000)

    told = str(call_error(Ended, Destination("127.0.0.1:1")))
    assert told.isprintable() and len(told) < 600


def test_what_is_noted_of_long_messages_stays_small() -> None:
    """Send batches with the longest lineages, all of them known already: what is noted of each is a few lines."""
    history = whole()
    subscriber = welcomed(history)
    subscriber.receive(first_batch(history), 0)
    assert "connected" in subscriber.history[1] and "FrameRun(" in subscriber.history[-1]
    first = history.manifest.lineage[0]
    lineage = tuple(replace(first, number=number) for number in range(1, 5_001))
    for _ in range(3):
        subscriber.receive(first_batch(history, lineage=lineage), 0)
    assert subscriber.duplicates == 3
    assert max(map(len, subscriber.history)) <= HISTORY_CHARS


def refuse_threads(patch: pytest.MonkeyPatch, name: str, *, once: bool = False) -> threading.Event:
    """Refuse the threads of this name, or the first of them; the event is set when one is refused."""
    start, refused = LogThread.start, threading.Event()

    def none_left(thread: LogThread) -> None:
        if thread.name == name and not (once and refused.is_set()):
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(LogThread, "start", none_left)
    return refused


def test_a_reader_whose_load_gets_no_thread_fails_and_wakes_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse the threads that read the log: the delta reader ends in its error, and a wait for a record with it."""
    with walkit.open(tmp_path) as log:
        log.append(b"v", key=b"k")
    refuse_threads(monkeypatch, "walkit-delta-load")
    with (
        DeltaReader(tmp_path, "127.0.0.1:1") as reader,
        pytest.raises(ReplicaFailedError, match="can't start new thread"),
    ):
        reader.wait_for(1, WAIT_S)


def test_a_wait_ends_though_its_ring_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the wake that says that a log was replaced, as an interrupt of another waiter can: the wait ends anyway."""

    class Lost(WakeEvent):
        def set(self) -> None:
            """Wake nothing."""

    def full(*_: object) -> None:
        raise StorageError("no space left", name="manifest")

    monkeypatch.setattr("walkit.replication.logs.imported_log.WakeEvent", Lost)
    log = ImportedLog(CrashingStorage())
    with monkeypatch.context() as patch:
        patch.setattr(ImportedLog, "_open", full)
        with pytest.raises(StorageError):
            log.reopen()
    assert log.is_reopening and not log.closed
    monkeypatch.setattr("walkit.replication.logs.imported_log.LOOK_S", 0.05)
    waiter = Task(lambda: log.wait_for(1))
    log.close()
    assert waiter.result() is False


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log with one record."""
    with walkit.open(storage=CrashingStorage(), options=SMALL) as log:
        log.append(b"v", key=b"k")
        yield log


@pytest.mark.parametrize("name", ["walkit-publisher-claims", "walkit-publisher-watch"])
def test_a_primary_that_gets_no_thread_serves_nothing_and_starts_later(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Refuse one of a primary's threads: its address is free, no thread of it is left, and the next start serves."""
    primary = Primary(log)
    with monkeypatch.context() as patch:
        refuse_threads(patch, name)
        with pytest.raises(RuntimeError, match="can't start"):
            primary.start()
    assert primary.status().state == "stopped"
    assert not [t for t in threading.enumerate() if t.name.startswith("walkit-publisher-claims")]
    with primary, Replica(CrashingStorage(), primary.address, backoff=quick()) as replica:
        replica.wait_for(1, WAIT_S)


@pytest.mark.parametrize("later", [True, False])
def test_a_call_that_gets_no_thread_is_served_when_there_is_one_or_ends_with_the_primary(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """Refuse the threads of a primary's calls: a call waits, and then has all records; stopping the primary ends it."""
    primary = Primary(log).start()
    with monkeypatch.context() as patch:
        refused = refuse_threads(patch, "walkit-publisher")
        with Replica(CrashingStorage(), primary.address, backoff=quick()) as replica:
            assert refused.wait(WAIT_S)
            if later:
                patch.undo()
                replica.wait_for(1, WAIT_S)
            Task(primary.stop).join()


def test_a_replica_that_gets_no_thread_to_receive_tries_again(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse the thread that receives, once: the connection is lost with these words, and the next one has it all."""
    refused = refuse_threads(monkeypatch, "walkit-replica-receiver", once=True)
    with Primary(log) as primary, Replica(CrashingStorage(), primary.address, backoff=quick()) as replica:
        replica.wait_for(1, WAIT_S)
        assert any("can't start new thread" in span.detail for span in replica.status().history)
    assert refused.is_set()
