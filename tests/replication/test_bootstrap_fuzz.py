"""Mutated messages of a bootstrap: bounded memory, typed errors, and a replica whose own log stays as it was."""

from __future__ import annotations

import os
import shutil
import tempfile
import tracemalloc
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

from tests.replication.blocking_callers import WAIT_S
from tests.replication.forged_messages import Mutator, pb, welcome
from tests.replication.sim_network import history_of
from tests.replication.test_bootstrap import drop_claims, follower, gathered
from tests.replication.test_replica_checkpoint import put
from tests.support.stores import SMALL
from walkit.copier.gathering import Gathering, part_name, snapshot_part_name
from walkit.errors import CorruptionError, DivergenceError, FormatVersionError, StorageError
from walkit.events import EventSink
from walkit.format.file_names import BOOTSTRAP_PREFIX, BOOTSTRAP_READY_NAME
from walkit.format.manifest import Manifest, decode_manifest
from walkit.replication import Primary
from walkit.replication.core.actions import (
    Prepare,
    Publish,
    SendToPublisher,
    StorePart,
    SubscriberStep,
)
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.logs.plan_check import FREE_LEFT_BYTES, gather_plan
from walkit.replication.logs.source import StoredSource
from walkit.replication.primary.bootstrap_plan import BootstrapFiles, SnapshotChecks
from walkit.replication.protocol.identity import mint
from walkit.replication.protocol.messages import (
    Chunk,
    Fetch,
    FromPublisher,
)
from walkit.replication.protocol.wire import (
    WireError,
    decode_from_publisher,
    encode_from_publisher,
)
from walkit.segments.manifest_store import load_manifest
from walkit.storage.file import FileStorage
from walkit.store import Store

GATHERED = 10 * settings().max_examples
"""250; 1,000 for a release, 20,000 with HYPOTHESIS_PROFILE=thorough: each of up to 1 MiB, written and checked."""
BYTES_MAX = 24 << 20


class Bootstrapping:
    """A replica's core and folder that take in a publisher's messages, as the replica's loop has them do."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.asked: deque[Fetch] = deque()
        self.finished = False
        self.folder = Gathering(FileStorage(str(folder)))
        self.core = Subscriber(
            "r",
            log_id=manifest.log_id,
            lineage=manifest.lineage,
            end=manifest.end,
            identity=mint(),
            bootstraps=True,
        )
        self.core.start(0)
        self.core.connected(0)
        history = history_of(9)
        self.take(welcome(history, log_id=manifest.log_id))

    @property
    def is_over(self) -> bool:
        """Whether messages of this connection are no longer taken."""
        return self.finished or self.core.state not in ("streaming", "bootstrapping")

    def take(self, message: FromPublisher) -> None:
        """Take in one message and do the steps that follow. Raises what ends a bootstrap."""
        steps: list[SubscriberStep] = self.core.receive(message, 0)
        for step in steps:
            if isinstance(step, Prepare):
                wants = gather_plan(self.folder, step.plan, self.core.log_id, self.core.lineage)
                steps += self.core.prepared(wants, 0)
            elif isinstance(step, StorePart):
                self.folder.store(step.chunk.file, step.chunk.offset, step.chunk.data)
            elif isinstance(step, SendToPublisher) and isinstance(step.message, Fetch):
                self.asked.append(step.message)
            elif isinstance(step, Publish):
                self.folder.finish()
                self.finished = True

    def answer(self, planned: BootstrapFiles) -> None:
        """Take in the true answer to the oldest question."""
        fetch = self.asked.popleft()
        data = planned.read(fetch.file, fetch.offset, fetch.size)
        self.take(Chunk(file=fetch.file, offset=fetch.offset, data=data))


class Liar:
    """Makes a publisher's messages of a bootstrap, some of them with something changed."""

    def __init__(self, seed: int, planned: BootstrapFiles) -> None:
        self.mutated, self.planned = Mutator(seed), planned

    def message(self, asked: deque[Fetch]) -> bytes:
        """The answer to the oldest question, or the plan; one of four has something changed."""
        data = encode_from_publisher(self.chunk(asked.popleft()) if asked else self.planned.plan)
        return data if self.mutated.random.randrange(4) else self.mutated(pb.PublisherMessage, data)

    def chunk(self, fetch: Fetch) -> Chunk:
        """The answer to a fetch, which may lie beyond the files."""
        sizes = self.planned.sizes
        there = sizes[fetch.file] if fetch.file < len(sizes) else 0
        size = max(0, min(fetch.size, there - fetch.offset))
        data = self.planned.read(fetch.file, fetch.offset, size) if size else b""
        return Chunk(file=fetch.file, offset=fetch.offset, data=data.ljust(fetch.size, b"\0"))


def own_files(folder: Path) -> dict[str, bytes]:
    """The files of a replica's folder, except those that a bootstrap gathers there."""
    files = (path for path in folder.iterdir() if path.is_file())
    return {path.name: path.read_bytes() for path in files if not path.name.startswith(BOOTSTRAP_PREFIX)}


def require_honest(folder: Path, planned: BootstrapFiles) -> None:
    """Assert that each ready part equals the primary's."""
    manifest = decode_manifest(planned.plan.manifest, "the plan")
    names = [part_name(record.number) for record in manifest.sealed]
    names.append(snapshot_part_name(planned.plan.snapshot_lsn))
    for index, (name, size) in enumerate(zip(names, planned.plan.sizes, strict=True)):
        if name in gathered(folder):
            wanted = planned.read(index, 0, size)
            with (folder / name).open("rb") as part:  # of a plan with another size it may have more
                assert part.read(size) == wanted


def bootstrap_honestly(folder: Path, own: Manifest, planned: BootstrapFiles) -> None:
    """Gather the whole plan as it is, and remove that again."""
    session = Bootstrapping(folder, own)
    session.take(planned.plan)
    while session.asked:
        session.answer(planned)
    assert session.finished
    require_honest(folder, planned)
    session.folder.clear()


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory if the system has one: thousands of syncs are not under test."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK) or shutil.disk_usage(shm).free < 4 * FREE_LEFT_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="walkit-test-", dir=shm) as folder:
        yield Path(folder)


def test_thousands_of_bootstrap_messages_leave_the_replica_as_it_was(in_memory: Path) -> None:
    """Give a replica that is too far behind many messages, some spoiled: its files stay; then it is bootstrapped."""
    folder = in_memory / "r"
    with Store.open(in_memory / "p", options=SMALL) as store, Primary(store) as primary:
        with follower(folder, primary) as replica:
            replica.wait_for(put(store, 30), WAIT_S)
        drop_claims(store.log)
        put(store, 60)
        store.checkpoint()
        last = put(store, 20)
        before, own = own_files(folder), load_manifest(FileStorage(str(folder)))
        finished = refused = broken = 0
        stored = FileStorage(str(in_memory / "p"))
        with closing(BootstrapFiles(StoredSource(stored), SnapshotChecks(stored, EventSink()))) as planned:
            bootstrap_honestly(folder, own, planned)  # what is imported on first use does not count
            liar, session = Liar(4, planned), Bootstrapping(folder, own)
            tracemalloc.start()
            try:
                for _ in range(GATHERED):
                    try:
                        session.take(decode_from_publisher(liar.message(session.asked)))
                        over = session.is_over
                    except WireError:
                        broken, over = broken + 1, True
                    except (CorruptionError, DivergenceError, FormatVersionError, StorageError):
                        refused, over = refused + 1, True
                    if session.finished:
                        finished += 1
                        assert BOOTSTRAP_READY_NAME in gathered(folder)
                        require_honest(folder, planned)
                        session.folder.clear()
                    if over:
                        session.folder.close()
                        session = Bootstrapping(folder, own)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
                session.folder.close()
        assert min(finished, refused, broken) > GATHERED / 200
        assert peak < BYTES_MAX
        assert own_files(folder) == before
        with follower(folder, primary) as replica:
            replica.wait_for(last, WAIT_S)
            assert replica.store.items() == store.items()
