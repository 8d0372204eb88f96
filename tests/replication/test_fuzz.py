"""Mutated messages of clients against a real primary over gRPC: bounded memory, and a log that is as if none came."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings

import walkit
from tests.replication.blocking_callers import UNLIMITED, WAIT_S, Caller, until
from tests.replication.forged_messages import TEXTS, Mutator, pb
from tests.replication.test_authentication import frames_of_log, held, manifest_bytes
from tests.replication.test_grpc import equal_frames
from tests.support.crashes import SMALL, Script
from walkit.format.manifest import LogEnd, Manifest
from walkit.replication import Primary, Replica
from walkit.replication.core.publisher import Publisher
from walkit.replication.protocol.identity import mint
from walkit.replication.protocol.messages import (
    Ack,
    Batch,
    FromSubscriber,
    Hello,
    Nack,
    Welcome,
    is_name,
)
from walkit.replication.protocol.wire import encode_from_subscriber
from walkit.replication.transport.grpc_common import grpc

SESSIONS = 3 * settings().max_examples
"""75; 300 for a release, 6,000 with HYPOTHESIS_PROFILE=thorough."""
MESSAGES_MAX = 6
GROWTH_MAX = 48 << 20
KNOWN = mint()
NAMES = ("a", "b", "c", "d", "x" * 128)


class Stranger:
    """Says what a replica of the log would say, with something changed."""

    def __init__(self, seed: int, manifest: Manifest, ends: list[LogEnd]) -> None:
        self.mutated, self.manifest, self.ends = Mutator(seed), manifest, ends
        self.random = self.mutated.random
        self.sent: list[LogEnd] = []
        """Ends of the frames that came in this session, as far as they are known."""

    def hello(self) -> Hello:
        """A hello that is welcome: of a replica without a log, or with all of it."""
        whole = self.random.randrange(2)
        self.sent = [self.ends[-1]] if whole else []
        return Hello(
            name=self.random.choice(NAMES),
            log_id=self.manifest.log_id if whole else 0,
            lineage=self.manifest.lineage if whole else (),
            end=self.ends[-1] if whole else LogEnd(),
        )

    def message(self, first: bool) -> bytes:
        """A message with something changed: a hello mostly where one is wanted, answers then."""
        chance = self.random
        end = chance.choice((*self.ends, LogEnd(), *self.sent[-1:] * chance.choice((0, 200))))
        ids = (b"", b"", b"", KNOWN.id, chance.randbytes(16))
        hello = replace(self.hello(), id=chance.choice(ids), end=end)
        answers: tuple[FromSubscriber, ...] = (
            Ack(end=end),
            Ack(end=end),
            Nack(end=end),
        )
        said = chance.choice((*answers, *[hello] * (8 if first else 1)))
        return self.mutated(pb.SubscriberMessage, encode_from_subscriber(said))


def resident_bytes() -> int:
    """The bytes of this process that are in memory now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def meddle(stranger: Stranger, address: str, channel: Any) -> None:
    """One session of a stranger, which answers what it gets in its own way, and may leave at any moment."""
    known = {end.position: end for end in stranger.ends}
    with Caller(address, channel=channel) as caller:
        if stranger.random.randrange(3):
            caller.say(stranger.hello())
        else:
            for index in range(stranger.random.randrange(1, MESSAGES_MAX)):
                caller.say(stranger.message(index == 0))
        heard = caller.next()
        while heard is not None and stranger.random.randrange(5):
            if isinstance(heard, Batch) and heard.end_position in known:
                stranger.sent.append(known[heard.end_position])
            if stranger.sent and stranger.random.randrange(2):
                caller.say(Ack(end=stranger.sent[-1]))
            elif not isinstance(heard, Welcome):
                caller.say(stranger.message(first=False))
            heard = caller.next()


def test_strangers_leave_memory_and_log_as_they_were(tmp_path: Path) -> None:
    """Let strangers say mutated messages beside a replica: bounded memory, a small manifest, equal frames after it."""
    with walkit.open(tmp_path / "p", options=SMALL) as log:
        Script().run(log, lambda: None, 60)
        log.wait_idle()
        ends, manifest = frames_of_log(log), log.parts.manifest_store.current
        before_bytes = manifest_bytes(log)
        with (
            Primary(
                log,
                publisher=lambda: Publisher(heartbeat_ms=20, hello_ms=100, silence_ms=300, batch_bytes=2048),
            ) as primary,
            Replica(tmp_path / "r", primary.address, name="honest") as replica,
            grpc.insecure_channel(primary.address, options=UNLIMITED) as channel,
        ):
            replica.wait_for(log.acked_lsn, WAIT_S)
            for seed in range(SESSIONS // 3):
                meddle(Stranger(seed, manifest, ends), primary.address, channel)
            before = resident_bytes()
            for seed in range(SESSIONS // 3, SESSIONS):
                meddle(Stranger(seed, manifest, ends), primary.address, channel)
                log.append(b"beside them")
            until(lambda: len(primary._sessions) == 1, "the strangers to be gone")
            assert resident_bytes() - before < GROWTH_MAX
            replica.wait_for(log.acked_lsn, WAIT_S)
            assert replica.status().error is None
            assert primary.status().trouble
            holds = held(log)
            assert all(is_name(name) and 1 <= lsn <= log.acked_lsn + 1 for name, lsn in holds.items())
            assert set(holds) <= {*NAMES, *TEXTS, "honest"}
            assert manifest_bytes(log) < before_bytes + 20_000
        log.append(b"the last")
        with Primary(log) as primary, Replica(tmp_path / "r", primary.address) as replica:
            replica.wait_for(log.acked_lsn, WAIT_S)
    with Primary(tmp_path / "p") as primary, Replica(tmp_path / "r", primary.address) as replica:
        until(lambda: replica.status().lag_bytes == 0 and replica.status().state == "streaming", "the end")
    assert walkit.verify(tmp_path / "p").ok
    assert equal_frames(tmp_path / "p", tmp_path / "r")
