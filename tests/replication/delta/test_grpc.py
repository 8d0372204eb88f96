"""The call Poll of a primary over real gRPC: exact answers, who may poll, and the bounds on how many and how often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S
from tests.replication.delta.test_feed import after, answered, is_observed
from tests.support.logs import memory_log, tiny
from tests.support.threads import wait_until
from walkit.errors import OptionsError
from walkit.replication import Primary
from walkit.replication.delta.messages import (
    DeltaEnd,
    PollAnswer,
    PollRefusal,
    PollRequest,
    checksum_of,
    delta_frames,
)
from walkit.replication.delta.poll_server import DeltaOptions
from walkit.replication.delta.wire import (
    POLL_METHOD,
    decode_poll,
    decode_reply,
    encode_poll,
    encode_reply,
)
from walkit.replication.protocol.wire import WireError
from walkit.replication.transport.grpc_common import grpc

Poll = Callable[[PollRequest], "PollAnswer | PollRefusal"]


@pytest.fixture
def log(stack: ExitStack) -> walkit.WriteAheadLog:
    """An empty log in memory, with segments that no test fills by accident."""
    return stack.enter_context(memory_log(tiny(segment_bytes=1 << 20)))


def caller(stack: ExitStack, address: str, **metadata: str) -> Any:
    """Return the call Poll of a primary, as bytes to bytes."""
    channel = stack.enter_context(
        grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
    )
    call = channel.unary_unary(POLL_METHOD)
    return lambda data: call(data, timeout=WAIT_S, metadata=tuple(metadata.items()))


def poll_of(stack: ExitStack, address: str) -> Poll:
    """Return what polls a primary."""
    call = caller(stack, address)
    return lambda request: decode_reply(call(encode_poll(request)))


ANSWER = PollAnswer(
    version=2,
    session_id=3,
    session_epoch=4,
    end=DeltaEnd(9, 640),
    log_id=5,
    epoch_id=6,
    first=DeltaEnd(7, 512),
    delta=b"frames",
    crc=1,
)
REPLIES = [
    ANSWER,
    replace(ANSWER, delta=b""),
    replace(ANSWER, delta=None, crc=None),
    replace(ANSWER, log_id=0, first=DeltaEnd()),
    ANSWER.as_version(1),
    PollRefusal(reason="busy", message="later"),
]


@pytest.mark.parametrize("reply", REPLIES, ids=range(len(REPLIES)))
def test_a_reply_is_the_same_after_the_wire(reply: PollAnswer | PollRefusal) -> None:
    """Encode, decode and encode again: equal, byte for byte; absent, zero and empty fields are kept apart."""
    data = encode_reply(reply)
    assert decode_reply(data) == reply
    assert encode_reply(decode_reply(data)) == data
    for at in range(len(data)):
        with pytest.raises(WireError):
            decode_reply(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize("wait_ms", [None, 0.0, 2.5])
def test_a_poll_is_the_same_after_the_wire(wait_ms: float | None) -> None:
    """Encode and decode polls: equal; a wait without end, an LSN beyond all and cut bytes are refused."""
    request = PollRequest(session_id=(1 << 64) - 1, session_epoch=8, applied=DeltaEnd(3, 64), wait_ms=wait_ms)
    assert decode_poll(encode_poll(request)) == request
    for wrong in (
        encode_poll(replace(request, wait_ms=float("inf"))),
        encode_poll(replace(request, applied=DeltaEnd(1 << 63, 0))),
        encode_poll(request)[:-1],
        bytes(300),
    ):
        with pytest.raises(WireError):
            decode_poll(wrong)


def test_sixty_four_rounds_of_deltas_and_each_repeat_is_byte_for_byte(
    stack: ExitStack, log: walkit.WriteAheadLog
) -> None:
    """Append three records and poll, 64 times, each number twice: the frames of just these, and equal bytes."""
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(interval_ms=0)))
    call = caller(stack, primary.address)
    last = answered(decode_reply(call(encode_poll(PollRequest()))))
    assert (last.end.lsn, last.delta) == (0, None)
    for turn in range(64):
        log.append_many([b"%d" % turn] * 3)
        assert log.parts.driver.delivery.drain()
        request = encode_poll(after(last))
        data = call(request)
        assert call(request) == data
        last = answered(decode_reply(data))
        assert checksum_of(last) == last.crc
        frames = delta_frames(last)
        assert (frames[0][0].first_lsn, last.end.lsn) == (3 * turn + 1, 3 * turn + 3)
    assert primary.delta_statistics().repeated == 64
    (session,) = primary.status().delta_readers
    assert (session.state, session.applied_lsn, session.answered_lsn) == ("syncing", 189, 192)
    assert "delta reader" in primary.status()._repr_html_()


def test_the_id_that_a_status_shows_ends_no_session(stack: ExitStack, log: walkit.WriteAheadLog) -> None:
    """Leave a session by the id in the status: it stays. Leave it by the number that its reader has: it is gone."""
    primary = stack.enter_context(Primary(log))
    poll = poll_of(stack, primary.address)
    last = answered(poll(PollRequest()))
    (session,) = primary.status().delta_readers
    poll(PollRequest(session_id=int(session.id, 16), leave=True))
    assert [s.id for s in primary.status().delta_readers] == [session.id]
    poll(PollRequest(session_id=last.session_id, leave=True))
    assert not primary.status().delta_readers


def test_a_poll_needs_the_token_and_sense(stack: ExitStack, log: walkit.WriteAheadLog) -> None:
    """Poll without a token, with a wrong one, with the right one, and with other bytes: by gRPC's codes."""
    primary = stack.enter_context(Primary(log, token="open"))
    codes = []
    for data, metadata in (
        (encode_poll(PollRequest()), {}),
        (encode_poll(PollRequest()), {"walkit-token": "shut"}),
        (b"no poll", {"walkit-token": "open"}),
        (encode_poll(PollRequest(session_epoch=0)), {"walkit-token": "open"}),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            caller(stack, primary.address, **metadata)(data)
        codes.append(caught.value.code().name)
    assert codes == ["UNAUTHENTICATED", "UNAUTHENTICATED", "INVALID_ARGUMENT", "INVALID_ARGUMENT"]
    right = caller(stack, primary.address, **{"walkit-token": "open"})
    assert answered(decode_reply(right(encode_poll(PollRequest())))).end == DeltaEnd()


def test_repeats_of_one_answer_are_paced(stack: ExitStack, log: walkit.WriteAheadLog) -> None:
    """Ask for one answer again and again from four threads: no more replies than one for each interval."""
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(interval_ms=20)))
    call = caller(stack, primary.address)
    last = answered(decode_reply(call(encode_poll(PollRequest()))))
    request = encode_poll(PollRequest(session_id=last.session_id, session_epoch=last.session_epoch))
    over, counts = threading.Event(), []

    def repeat() -> None:
        count = 0
        while not over.is_set():
            call(request)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    over.wait(0.4)
    over.set()
    for thread in threads:
        thread.join()
    assert 4 <= sum(counts) <= (time.monotonic() - began) / 0.02 + 4


def test_a_caller_that_is_gone_holds_no_thread_and_no_place(
    stack: ExitStack, log: walkit.WriteAheadLog
) -> None:
    """Cancel a long poll: its session no longer waits, and is over without the reader's next poll."""
    options = DeltaOptions(long_poll_ms=60_000, retry_ms=1)
    primary = stack.enter_context(Primary(log, delta=options))
    last = answered(poll_of(stack, primary.address)(PollRequest()))
    channel = stack.enter_context(grpc.insecure_channel(primary.address))
    future = channel.unary_unary(POLL_METHOD).future(encode_poll(after(last)))
    wait_until(lambda: [s.waiting for s in primary.status().delta_readers] == [1])
    future.cancel()
    wait_until(lambda: [s.waiting for s in primary.status().delta_readers] == [0])
    log.append(b"x")  # what looks at the time is the log's own thread
    wait_until(lambda: primary.status().delta_readers == ())
    assert log.parts.driver.delivery.drain()
    assert not is_observed(log)


@pytest.mark.parametrize("what", ["stop", "close"])
def test_polls_that_wait_are_refused_at_the_end(
    stack: ExitStack, log: walkit.WriteAheadLog, what: str
) -> None:
    """Stop the primary, or close the log, while a poll waits for a minute: it is refused at once, with words."""
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(long_poll_ms=60_000)))
    poll = poll_of(stack, primary.address)
    last = answered(poll(PollRequest()))
    replies: list[PollAnswer | PollRefusal] = []
    thread = threading.Thread(target=lambda: replies.append(poll(after(last))))
    thread.start()
    wait_until(lambda: [s.waiting for s in primary.status().delta_readers] == [1])
    (primary.stop if what == "stop" else log.close)()
    thread.join(WAIT_S)
    (reply,) = replies
    assert isinstance(reply, PollRefusal) and reply.reason == "closed"


def test_more_polls_than_may_wait_are_refused_at_once(stack: ExitStack, log: walkit.WriteAheadLog) -> None:
    """Let as many polls wait as there is room for: one more is refused as busy, and costs no session."""
    options = DeltaOptions(long_poll_ms=60_000, sessions_max=1, waiting_max=64)
    primary = stack.enter_context(Primary(log, delta=options))
    poll = poll_of(stack, primary.address)
    last = answered(poll(PollRequest()))
    channel = stack.enter_context(grpc.insecure_channel(primary.address))
    futures = [channel.unary_unary(POLL_METHOD).future(encode_poll(after(last))) for _ in range(33)]
    wait_until(lambda: [s.waiting for s in primary.status().delta_readers] == [33])
    reply = poll(after(last))
    assert isinstance(reply, PollRefusal) and reply.reason == "busy"
    log.append(b"x")
    assert len({future.result(WAIT_S) for future in futures}) == 1
    assert primary.delta_statistics().refused == 1


def test_a_buffer_that_no_reader_takes_is_refused(log: walkit.WriteAheadLog) -> None:
    """Make a primary with a buffer of 64 MiB, and with options of a wrong type: both are OptionsErrors."""
    for wrong in (DeltaOptions(buffer_bytes=64 << 20), {"buffer_bytes": 1}):
        with pytest.raises(OptionsError):
            Primary(log, delta=wrong)  # type: ignore[arg-type]
