"""The protocol cores by themselves: hello and its refusals, gaps, duplicates, flow control, heartbeats, backoff."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replication.blocking_callers import flipped
from tests.replication.forged_messages import first_batch, welcome, welcomed
from tests.replication.frame_history import History, batches_of, history_of, messages_of, whole
from walkit.errors import DivergenceError, FormatVersionError, GapError, StorageError, WalkitError
from walkit.format.manifest import LogEnd
from walkit.replication.core.actions import (
    Connect,
    Disconnect,
    End,
    Fail,
    Import,
    Read,
    Send,
    SendToPublisher,
)
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import HEARTBEAT_MS, Publisher
from walkit.replication.core.subscriber import RENACK_MS, Subscriber
from walkit.replication.delta.messages import DeltaEnd, PollAnswer
from walkit.replication.delta.replayer import DeltaReplayer, LoadRange, ReplayLimits
from walkit.replication.protocol.lineage import why_refused
from walkit.replication.protocol.messages import (
    Ack,
    FromPublisher,
    Heartbeat,
    Hello,
    Nack,
    Refusal,
    Welcome,
)
from walkit.replication.protocol.wire import decode_from_subscriber, encode_from_subscriber


@pytest.fixture
def history() -> History:
    """A log of three epochs, all of it durable."""
    return whole()


def hello_at(history: History, frames: int) -> Hello:
    """The hello of an honest replica that has so many frames of this history."""
    epochs = {f[0].epoch for f in history.frames[:frames]}
    lineage = tuple(e for e in history.manifest.lineage if e.number in epochs)
    log_id = history.manifest.log_id if frames else 0
    return Hello(name="r", log_id=log_id, lineage=lineage, end=history.end(frames), codecs=("zstd",))


def error_of(subscriber: Subscriber, *messages: FromPublisher) -> WalkitError:
    """The error that ends a subscriber that gets these messages, and again after it has reconnected."""
    for message in messages:
        steps = subscriber.receive(message, 0)
    assert [type(s) for s in steps] == [Disconnect]
    assert subscriber.wake_at_ms is not None
    assert [type(s) for s in subscriber.tick(subscriber.wake_at_ms)] == [Connect]
    subscriber.connected(0)
    for message in messages:
        steps = subscriber.receive(message, 0)
    (failed,) = [s for s in steps if isinstance(s, Fail)]
    assert subscriber.wake_at_ms is None
    return failed.error


def test_every_honest_prefix_is_welcome(history: History) -> None:
    """Say hello with every prefix of the primary's frames, the whole and the empty one included: none is refused."""
    for frames in range(len(history.frames) + 1):
        hello = hello_at(history, frames)
        assert why_refused(hello, history.primary_state(hello)) is None


def test_the_first_difference_of_two_histories_is_named(history: History) -> None:
    """A replica of another log, epoch, end or chain is refused with the LSN where the histories part."""
    whole = hello_at(history, len(history.frames))
    elsewhere = replace(whole.end, position=whole.end.position - 64)
    second = history.manifest.lineage[1]
    first_of_third = history.manifest.lineage[2].first_lsn
    frames_1 = next(i for i, f in enumerate(history.frames) if f[0].epoch == 2)
    other_id = replace(second, id=second.id ^ 2)
    table = [
        ("another log", replace(whole, log_id=whole.log_id ^ 2), 1),
        ("another second epoch", replace(whole, lineage=(whole.lineage[0], other_id)), second.first_lsn),
        (
            "an epoch more, that starts inside",
            replace(
                hello_at(history, frames_1),
                lineage=(whole.lineage[0], replace(other_id, first_lsn=5)),
            ),
            5,
        ),
        (
            "more of the second epoch than the primary kept",
            replace(
                whole,
                lineage=whole.lineage[:2],
                end=LogEnd(last_lsn=first_of_third + 3, position=history.end().position, chain=7),
            ),
            first_of_third,
        ),
        ("another chain at the end", replace(whole, end=replace(whole.end, chain=1)), first_of_third),
        ("no frame ends there", replace(whole, end=elsewhere), first_of_third),
        (
            "ahead of the primary",
            replace(whole, end=LogEnd(last_lsn=whole.end.last_lsn + 9, position=whole.end.position + 640, chain=3)),
            whole.end.last_lsn + 1,
        ),
        (
            "a later epoch and more records",
            replace(
                whole,
                lineage=(*whole.lineage, replace(second, number=9, id=77, first_lsn=whole.end.last_lsn + 1)),
                end=LogEnd(last_lsn=whole.end.last_lsn + 50, position=whole.end.position + 6400, chain=5),
            ),
            whole.end.last_lsn + 1,
        ),
        (
            "a marker frame more than the primary",
            replace(whole, end=replace(whole.end, position=whole.end.position + 64, chain=3)),
            whole.end.last_lsn + 1,
        ),
    ]  # fmt: skip
    for what, hello, lsn in table:
        refusal = why_refused(hello, history.primary_state(hello))
        assert refusal is not None, what
        assert (refusal.reason, refusal.lsn) == ("divergence", lsn), what
        more = encode_from_subscriber(replace(hello, lineage=hello.lineage + whole.lineage * 9))
        taken = decode_from_subscriber(more, len(history.manifest.lineage) + 1)
        assert why_refused(taken, history.primary_state(taken)) == why_refused(  # type: ignore[arg-type]
            replace(hello, lineage=hello.lineage + whole.lineage * 9), history.primary_state(hello)
        ), "one epoch more than the source has is enough to tell"


@pytest.mark.parametrize(
    ("theirs", "ours", "agreed"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 3), (1, 1), 1),
        ((1, 2), (2, 5), 2),
        ((2, 4), (1, 3), 3),
        ((2, 2), (1, 1), None),
        ((1, 1), (2, 3), None),
    ],
)
def test_the_highest_common_version_is_taken(
    history: History, theirs: tuple[int, int], ours: tuple[int, int], agreed: int | None
) -> None:
    """Older and newer ranges on both sides: the highest that both know, or a typed refusal with both ranges."""
    publisher = Publisher(versions=ours)
    subscriber = Subscriber("r", versions=theirs)
    subscriber.start(0)
    (said,) = subscriber.connected(0)
    assert isinstance(said, SendToPublisher)
    assert isinstance(said.message, Hello)
    steps = publisher.admitted(said.message, history.primary_state(said.message), 0)
    sent = [s.message for s in steps if isinstance(s, Send)]
    if agreed is None:
        assert isinstance(sent[0], Refusal)
        error = error_of(subscriber, sent[0])
        assert isinstance(error, FormatVersionError)
        assert f"{ours[0]} to {ours[1]}" in str(error)
        assert publisher.state == "ended"
    else:
        assert isinstance(sent[0], Welcome)
        assert sent[0].version == agreed
        subscriber.receive(sent[0], 0)
        assert subscriber.state == "streaming"


def test_a_trimmed_range_is_a_typed_gap(history: History) -> None:
    """Say hello from below the oldest segment: the subscriber fails with the record it wanted and the oldest one."""
    hello = hello_at(history, 3)
    oldest = history.frames[10][1]
    state = replace(
        history.primary_state(hello), oldest_lsn=oldest.first_lsn, oldest_position=oldest.position
    )
    refusal = why_refused(hello, state)
    assert refusal is not None
    subscriber = Subscriber("r", log_id=hello.log_id, lineage=hello.lineage, end=hello.end)
    subscriber.start(0)
    subscriber.connected(0)
    error = error_of(subscriber, refusal)
    assert isinstance(error, GapError)
    assert (error.wanted, error.oldest) == (hello.end.last_lsn + 1, oldest.first_lsn)


def test_a_gap_is_asked_for_once_and_again_only_after_a_while(history: History) -> None:
    """Lose one batch of many: one nack, the rest are gaps without a nack, a repeat is a duplicate and no gap."""
    first, *rest = batches_of(history)
    assert len(rest) > 2
    core = welcomed(history)
    asked = [step for batch in rest for step in core.receive(batch, 0)]
    assert asked == [SendToPublisher(Nack(end=LogEnd()))]
    assert core.receive(rest[0], RENACK_MS) == asked
    assert core.gaps == len(rest) + 1
    for batch in (first, first, *rest):
        steps = core.receive(batch, RENACK_MS)
        assert all(isinstance(step, Import) for step in steps) or core.duplicates == 1
    assert (core.duplicates, core.gaps, core.next) == (1, len(rest) + 1, history.end())


def test_a_repeated_batch_is_acknowledged_as_far_as_it_is_durable(history: History) -> None:
    """Repeat a batch whose import has not ended: the acknowledgement has the end on the disk."""
    core = welcomed(history)
    core.receive(first_batch(history, 1), 0)
    assert core.next != core.end == LogEnd()
    assert core.receive(first_batch(history, 1), 0) == [SendToPublisher(Ack(end=LogEnd()))]


def test_a_batch_that_overlaps_is_taken_from_where_the_log_ends(history: History) -> None:
    """A batch that begins below the end and reaches beyond it: only the frames after the end are imported."""
    core = welcomed(history)
    core.receive(first_batch(history, 1), 0)
    core.imported(history.end(1), 0)
    (step,) = core.receive(first_batch(history, 4), 0)
    assert isinstance(step, Import)
    assert (step.run.after, step.run.end) == (history.end(1), history.end(4))
    assert step.run.data == b"".join(frame[2] for frame in history.frames[1:4])


def test_damaged_frames_are_asked_for_again_and_then_given_up(history: History) -> None:
    """Flip a bit in each batch: never imported, asked for again, and after three times the connection is dropped."""
    core, batch = welcomed(history), first_batch(history)
    again = [SendToPublisher(Nack(end=LogEnd()))]
    damaged = [replace(batch, data=flipped(batch.data, len(batch.data) * 4 + turn)) for turn in range(3)]
    assert [core.receive(each, 0) for each in damaged[:2]] == [again, again]
    assert [type(step) for step in core.receive(damaged[2], 0)] == [Disconnect]
    assert (core.damaged, core.state, core.next) == (3, "detached", LogEnd())


def test_intact_frames_of_another_history_fail_for_good(history: History) -> None:
    """Welcome a replica, send it frames of another chain, twice: a divergence at the next LSN, nothing imported."""
    other, hello = history_of(9, 7, 8, 6), hello_at(history, 4)
    subscriber = Subscriber("r", log_id=hello.log_id, lineage=hello.lineage, end=hello.end)
    subscriber.start(0)
    subscriber.connected(0)
    run, at = other.read(other.end(4), 500), hello.end.position
    assert run is not None
    batch = first_batch(
        history, after_position=at, start_position=at, end_position=at + len(run.data), data=run.data
    )
    error = error_of(subscriber, welcome(history), batch)
    assert isinstance(error, DivergenceError)
    assert error.first_lsn == hello.end.last_lsn + 1
    assert subscriber.next == hello.end


def test_bytes_in_flight_stay_below_the_window_until_they_are_acknowledged(history: History) -> None:
    """A subscriber that says nothing gets one window full and no more; an acknowledgement lets it go on."""
    publisher = Publisher(window_bytes=4096, batch_bytes=1024)
    hello = hello_at(history, 0)
    messages_of(publisher, history, publisher.admitted(hello, history.primary_state(hello), 0))
    assert 4096 <= publisher.in_flight_bytes < 4096 + 20_000
    assert publisher.source_moved(1 << 30, 1 << 40, 1) == []
    steps = publisher.receive(Ack(end=publisher.sent), 2)
    assert any(isinstance(s, Read) for s in steps)
    never_sent = LogEnd(last_lsn=1 << 20, position=1 << 40, chain=0)
    steps = publisher.receive(Ack(end=never_sent), 3)
    assert isinstance(steps[-1], End)
    assert publisher.state == "ended"


def test_silence_is_filled_by_heartbeats_and_ends_both_sides(history: History) -> None:
    """Nothing to send: a heartbeat after its time, answered by an ack; silence ends the session and reconnects."""
    publisher, hello = Publisher(), hello_at(history, len(history.frames))
    subscriber = welcomed(history, log_id=hello.log_id, lineage=hello.lineage, end=hello.end)
    messages_of(publisher, history, publisher.admitted(hello, history.primary_state(hello), 0))
    (step,) = publisher.tick(1.1 * HEARTBEAT_MS)
    assert isinstance(step, Send) and isinstance(step.message, Heartbeat)
    answer = subscriber.receive(step.message, 1.1 * HEARTBEAT_MS)
    assert answer == [SendToPublisher(Ack(end=history.end()))]
    silent_ms = 1.1 * HEARTBEAT_MS + 16_000
    assert isinstance(publisher.tick(silent_ms)[0], End)
    assert isinstance(subscriber.tick(silent_ms)[0], Disconnect)
    assert subscriber.state == "detached"
    wake = subscriber.wake_at_ms
    assert wake is not None
    assert subscriber.tick(wake - 1) == []
    assert isinstance(subscriber.tick(wake)[0], Connect)


def test_a_refusal_that_may_pass_is_tried_again() -> None:
    """A closing source does not end a subscriber, however often it refuses: it waits its backoff and connects."""
    core = Subscriber("r")
    core.start(0)
    for at in (0, 10_000, 20_000):
        core.tick(at)
        core.connected(at)
        steps = core.receive(Refusal(reason="closed", message="the primary stops"), at)
        assert [type(step) for step in steps] == [Disconnect]
        assert (core.state, core.trouble) == ("detached", "the primary stops")


def test_backoff_doubles_is_capped_and_jittered() -> None:
    """Draw delays with the lowest and the highest chance: half of the bound to the bound, doubling up to the cap."""
    low, high = Backoff(100, 1000, lambda: 0.0), Backoff(100, 1000, lambda: 1.0)
    assert [low.next_ms() for _ in range(5)] == [50, 100, 200, 400, 500]
    assert [high.next_ms() for _ in range(5)] == [100, 200, 400, 800, 1000]
    high.reset()
    assert high.next_ms() == 100
    for _ in range(5000):
        assert high.next_ms() <= 1000


def test_lag_is_counted_from_when_it_was_first_known(history: History) -> None:
    """The source gets ahead at 100 ms and again at 200 ms: the lag counts from the first, and ends with the import."""
    subscriber = Subscriber("r")
    subscriber.start(0)
    subscriber.connected(0)
    welcome = Welcome(version=4, log_id=5, created_us=0, ack_order="append", source_lsn=0, source_position=0)
    subscriber.receive(welcome, 0)
    assert subscriber.lag.ms(50) == 0
    subscriber.receive(Heartbeat(sent_position=0, source_lsn=10, source_position=640), 100)
    subscriber.receive(Heartbeat(sent_position=0, source_lsn=20, source_position=1280), 200)
    assert subscriber.lag.ms(300) == 200
    subscriber.imported(LogEnd(last_lsn=10, position=640, chain=1), 300)
    assert subscriber.lag.ms(300) == 100
    subscriber.imported(LogEnd(last_lsn=20, position=1280, chain=1), 310)
    assert subscriber.lag.ms(400) == 0


# -- when they are to be woken

ODD_MS = [160.7, 0.1 + 0.2, 1389.4999999999998, 1e9 / 3, 947.157165193392]


@pytest.mark.parametrize("now_ms", ODD_MS)
def test_a_publisher_that_is_woken_at_its_time_acts(now_ms: float) -> None:
    """Tick a publisher at exactly the time that it names, at times that do not add up: each tick does something."""
    waiting = Publisher(hello_ms=0.3)
    waiting.began(now_ms)
    assert waiting.wake_at_ms is not None
    assert isinstance(waiting.tick(waiting.wake_at_ms)[-1], End)
    streaming = Publisher(heartbeat_ms=0.1, silence_ms=0.7)
    streaming.admitted(Hello(name="r"), History([], whole().manifest).primary_state(Hello(name="r")), now_ms)
    for _ in range(100):
        if streaming.wake_at_ms is None:
            break
        steps = streaming.tick(streaming.wake_at_ms)
        assert isinstance(steps[0], Send | End)
    assert streaming.state == "ended"


def test_a_load_that_waits_for_room_names_no_time() -> None:
    """Let a load fail while others have all places: its time comes, and the replayer waits for a load, not a time."""
    limits = ReplayLimits(loads_max=1, load_bytes=100)
    replayer = DeltaReplayer(DeltaEnd(), log_id=7, limits=limits, chance=lambda: 1.0)
    answer = PollAnswer(version=0, session_id=1, session_epoch=1, end=DeltaEnd(4, 400), log_id=7, epoch_id=0)
    (first,) = replayer.answered(answer, 0.0)
    assert isinstance(first, LoadRange)
    (second,) = replayer.load_failed(first.number, StorageError("once"), 0.0)
    assert isinstance(second, LoadRange)
    due_ms = replayer.wake_at_ms
    assert due_ms is not None and due_ms > 0
    assert replayer.tick(due_ms) == []
    assert replayer.wake_at_ms is None
    steps = replayer.loaded(second.number, None, 100, DeltaEnd(second.last_lsn, 200), due_ms + 1)
    assert [step.first_lsn for step in steps if isinstance(step, LoadRange)] == [1]
