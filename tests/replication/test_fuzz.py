"""Mutated messages of clients against a real primary over gRPC: bounded memory, and a log that is as if none came."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from hypothesis import settings

import walkit
from tests.replication.blocking_callers import UNLIMITED, WAIT_S, Caller, flipped, sealed, until
from tests.replication.test_authentication import frames_of_log, held, manifest_bytes
from tests.replication.test_grpc import equal_frames
from tests.support.crashes import SMALL, Script
from walkit.format.manifest import LogEnd, Manifest
from walkit.replication import Primary, Replica
from walkit.replication.core.publisher import Publisher
from walkit.replication.protocol import walkit_pb2
from walkit.replication.protocol.identity import mint
from walkit.replication.protocol.messages import Ack, Batch, Hello, Welcome, is_name
from walkit.replication.protocol.wire import (
    encode_from_subscriber,
)
from walkit.replication.transport.grpc_common import grpc

SESSIONS = 3 * settings().max_examples
"""75; 300 for a release, 6,000 with HYPOTHESIS_PROFILE=thorough."""
MESSAGES_MAX = 6
GROWTH_MAX = 48 << 20
KNOWN = mint()
pb: Any = walkit_pb2
NAMES = ("a", "b", "c", "d", "", "x" * 128, "x" * 129, "a\n", "\x00", "é" * 128, "y" * 100_000)
NUMBERS = (0, 1, 63, 64, 65, 1 << 20, (1 << 31) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


class Stranger:
    """Makes messages: some that a replica of the log would send, most of them with something changed."""

    def __init__(self, seed: int, manifest: Manifest, ends: list[LogEnd], *, longest: int = 5_000) -> None:
        self.longest = longest
        """So many times as long as it should be is the longest lineage that it says."""
        self.random, self.manifest, self.ends = random.Random(seed), manifest, ends
        self.sent: list[LogEnd] = []
        """Ends of the frames that came in this session, as far as they are known."""

    def number(self, honest: int, bits: int = 64) -> int:
        """A number as it should be, near it, or anything."""
        chosen: int = self.random.choice((honest, honest, honest, honest ^ 1, honest + 64, *NUMBERS[:6]))
        if not self.random.randrange(6):
            chosen = self.random.choice(NUMBERS)
        return chosen % (1 << bits)

    def end(self) -> Any:
        """Where a log ends: mostly where the last that was sent does."""
        last = self.sent[-1:] * self.random.choice((0, 200))
        end = self.random.choice((*self.ends, LogEnd(), *last))
        if self.random.randrange(4):
            return pb.LogEnd(last_lsn=end.last_lsn, position=end.position, chain=end.chain)
        return pb.LogEnd(
            last_lsn=self.number(end.last_lsn), position=self.number(end.position), chain=self.number(end.chain, 32)
        )  # fmt: skip

    def honest_hello(self) -> bytes:
        """A hello that is welcome: of a replica without a log, or with all of it."""
        whole = self.random.randrange(2)
        self.sent = [self.ends[-1]] if whole else []
        return encode_from_subscriber(
            Hello(
                name=self.random.choice(NAMES[:4]),
                log_id=self.manifest.log_id if whole else 0,
                lineage=self.manifest.lineage if whole else (),
                end=self.ends[-1] if whole else LogEnd(),
            )
        )

    def hello(self) -> Any:
        """A hello, mostly of a replica that could be served."""
        lineage = self.manifest.lineage * self.random.choice((1, 1, 1, 0, 2, self.longest))
        honest = bool(self.random.randrange(2))
        new = bool(self.random.randrange(2))
        hello = pb.Hello(
            name=self.random.choice(NAMES[:4] if honest else NAMES),
            version_min=2 if honest else self.number(2, 32),
            version_max=2 if honest else self.number(2, 32),
            log_id=0 if new else self.manifest.log_id if honest else self.number(self.manifest.log_id),
            end=None if new and honest else self.end(),
            codecs=[self.random.choice(("zstd", "snappy", "lzma"))] * self.random.choice((0, 1, 1, 40)),
            id=self.random.choice((b"", b"", b"", KNOWN.id, self.random.randbytes(16), b"short", bytes(500))),
            frame_bytes_max=1 << 30 if honest else self.number(1 << 30),
        )
        if not new or not honest:
            hello.lineage.number.extend(e.number for e in lineage)
            hello.lineage.id.extend(e.id for e in lineage)
            hello.lineage.first_lsn.extend(e.first_lsn for e in lineage)
            hello.lineage.position.extend(e.position for e in lineage)
            hello.lineage.chain.extend(e.chain for e in lineage[self.random.randrange(2) - 1 :])
        return hello

    def message(self, first: bool) -> bytes:
        """One message as bytes: a hello mostly where one is wanted, answers then; spoiled before or after sealing."""
        kind = self.random.choice(
            ("hello",) * 6 + ("ack", "nack", "proof") if first else ("ack", "ack", "nack", "hello", "proof")
        )
        if kind == "hello":
            outer = pb.SubscriberMessage(hello=self.hello())
        elif kind == "proof":
            size = self.random.choice((32, 32, 32, 0, 31, 5_000))
            outer = pb.SubscriberMessage(proof=pb.Proof(mac=self.random.randbytes(size)))
        else:
            make = {"ack": pb.Ack, "nack": pb.Nack}[kind]
            outer = pb.SubscriberMessage(**{kind: make(end=self.end())})
        content = outer.SerializeToString()
        fate = self.random.randrange(24)
        if fate == 0 and content:
            content = flipped(content, self.random.randrange(len(content) * 8))
        elif fate == 1:
            content = content[: self.random.randrange(len(content) + 1)]
        elif fate == 2:
            content += self.random.randbytes(self.random.choice((1, 30, 3_000_000)))
        elif fate == 3:
            return self.random.randbytes(self.random.randrange(200))
        data = sealed(Encoded(content))
        return flipped(data, self.random.randrange(len(data) * 8)) if fate == 4 else data


class Encoded:
    """Bytes in place of a protobuf message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self._data


def resident_bytes() -> int:
    """What of this process is in memory now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def meddle(stranger: Stranger, address: str, channel: Any) -> None:
    """One session of a stranger, which answers what it gets in its own way, and may leave at any moment."""
    known = {end.position: end for end in stranger.ends}
    with Caller(address, channel=channel) as caller:
        if stranger.random.randrange(3):
            caller.say(stranger.honest_hello())
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
            assert set(holds) <= {*NAMES, "honest"}
            assert manifest_bytes(log) < before_bytes + 20_000
        log.append(b"the last")
        with Primary(log) as primary, Replica(tmp_path / "r", primary.address) as replica:
            replica.wait_for(log.acked_lsn, WAIT_S)
    with Primary(tmp_path / "p") as primary, Replica(tmp_path / "r", primary.address) as replica:
        until(lambda: replica.status().lag_bytes == 0 and replica.status().state == "streaming", "the end")
    assert walkit.verify(tmp_path / "p").ok
    assert equal_frames(tmp_path / "p", tmp_path / "r")
