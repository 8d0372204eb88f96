"""A replica's end in a source that trims and compacts: a divergence is reported only if frames show it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import walkit
from tests.compaction.histories import full_of_changes
from tests.replication.blocking_callers import WAIT_S, quick, until
from tests.support.imports import frames_of
from tests.support.logs import tiny
from tests.support.stores import memory_store
from walkit.errors import CorruptionError
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import LogEnd, Manifest
from walkit.models import CrashingStorage
from walkit.models.wrapper import PassingStorage
from walkit.read.view import LogView
from walkit.replication import Primary, Replica
from walkit.replication.logs.source import OpenSource, StoredSource, end_at, primary_state_of, source_of
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.protocol.lineage import why_refused
from walkit.replication.protocol.messages import Hello, Refusal
from walkit.replication.replica.rewind import rewind
from walkit.segments.manifest_store import load_manifest


@pytest.fixture(scope="module")
def primary() -> CrashingStorage:
    """A closed store of two epochs and many segments."""
    storage = CrashingStorage()
    full_of_changes(storage)
    return storage


def hellos(primary: CrashingStorage) -> list[Hello]:
    """A replica's hellos, for every frame that may be its last one."""
    manifest = load_manifest(primary)
    return [
        Hello(
            name="replica",
            log_id=manifest.log_id,
            lineage=tuple(e for e in manifest.lineage if e.number <= header.epoch),
            end=LogEnd(last_lsn=header.last_lsn, position=header.end_position, chain=header.header_crc),
        )
        for _, header, _ in frames_of(primary)
    ]


def near_the_ends(primary: CrashingStorage) -> list[Hello]:
    """Those of the last frame of each segment, of the frames beside it, and of each seventh frame of all."""
    sent = hellos(primary)
    ends = {s.end_position for s in load_manifest(primary).sealed}
    last = [i for i, hello in enumerate(sent) if hello.end.position in ends]
    chosen = {max(i + by, 0) for i in last for by in (-1, 0, 1)} | {*range(0, len(sent), 7)}
    return [sent[i] for i in sorted(chosen) if i < len(sent)]


def answers(source: StoredSource, sent: list[Hello]) -> list[Refusal | None]:
    """How the source answers each."""
    return [why_refused(hello, primary_state_of(source, hello)) for hello in sent]


def compact(storage: CrashingStorage) -> None:
    """Compact the log."""
    with memory_store(storage) as store:
        assert store.compact().segments_rewritten > 0


def checkpoint(storage: CrashingStorage) -> None:
    """Trim what a snapshot covers: all of it."""
    with memory_store(storage) as store:
        store.checkpoint()


def trim(storage: CrashingStorage) -> None:
    """Trim the first half and three records more: what is left of a segment is copied."""
    with walkit.open(storage=storage) as log:
        assert log.trim(log.acked_lsn // 2 + 3, waste_ratio=0).rewritten.bytes_written > 0


def test_ends_within_a_compacted_segment_are_gaps(primary: CrashingStorage) -> None:
    """Ask for frames' ends after a compaction, or a trim: what can be sent on from is welcome, the rest a gap."""
    sent = near_the_ends(primary)
    assert set(answers(StoredSource(primary.process_kill()), sent)) == {None}
    for change in (compact, trim, checkpoint):
        image = primary.process_kill()
        change(image)
        manifest = load_manifest(image)
        begins = sendable_from(manifest)
        found = answers(StoredSource(image), sent)
        gaps = [answer is not None for answer in found]
        assert gaps == [hello.end.position < begins for hello in sent]
        assert {answer.reason for answer in found if answer is not None} == {"gap"}


def sendable_from(manifest: Manifest) -> int:
    """The position from which on frames are as they were written."""
    compacted = [s.end_position for s in manifest.sealed if s.flags & SegmentFlag.COMPACTED]
    starts = [s.start_position for s in manifest.sealed] or [manifest.end.position]
    return max([starts[0], *compacted])


def test_frames_go_on_over_a_segment_that_a_trim_rewrites() -> None:
    """Send one frame after the other, trimming what was sent: each comes, to an old reader and to one that begins."""
    with walkit.open(storage=CrashingStorage(), options=tiny()) as log:
        for n in range(40):
            log.append(b"%07d" % n * 1000)
        log.wait_idle()
        source = OpenSource(log)
        old, end, rewritten = FrameReader(source), LogEnd(), 0
        while end.last_lsn < 40:
            new = FrameReader(source)
            runs = [reader.read(end, 1) for reader in (old, new)]
            new.close()
            assert runs[0] is not None and runs[1] is not None and runs[0].data == runs[1].data
            end = runs[0].end
            rewritten += log.trim(end.last_lsn, waste_ratio=0).rewritten.bytes_written > 0
            assert end_at(source.view(), end) == end
        old.close()
        assert rewritten > 20


class Disturbed(StoredSource):
    """A source whose log changes between the looks at it that one answer takes."""

    def __init__(self, before: CrashingStorage, after: CrashingStorage, after_looks: int) -> None:
        self.place, self.after, self.looks = PassingStorage(before), after, after_looks
        super().__init__(self.place)

    def _looked(self) -> None:
        self.looks -= 1
        if not self.looks:
            self.place.inner = self.after

    def view(self) -> LogView:
        """See Source."""
        view = super().view()
        self._looked()
        return view

    def widest_view(self) -> tuple[LogView, int]:
        """See Source."""
        view = super().widest_view()
        self._looked()
        return view

    def manifest(self) -> Manifest:
        """See Source."""
        manifest = super().manifest()
        self._looked()
        return manifest


@pytest.mark.parametrize("change", [compact, trim, checkpoint])
@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_change_between_two_looks_is_not_a_divergence(
    primary: CrashingStorage, looks: int, change: Callable[[CrashingStorage], None]
) -> None:
    """Compact or trim between any two looks of an answer: welcome or a gap, for ends in every segment."""
    after = primary.process_kill()
    change(after)
    reasons = set()
    for hello in near_the_ends(primary):
        answer = why_refused(hello, primary_state_of(Disturbed(primary, after, looks), hello))
        reasons.add(answer and answer.reason)
    assert reasons <= {None, "gap"}


def test_another_frame_in_the_place_is_still_divergence(primary: CrashingStorage) -> None:
    """Change the chain, the LSN or the position of an end that can be held against frames: divergence, as before."""
    image = primary.process_kill()
    compact(image)
    begins = sendable_from(load_manifest(image))
    within = [h for h in hellos(primary) if h.end.position > begins]
    assert len(within) > 2
    for hello in within[:2]:
        end = hello.end
        others = (
            LogEnd(last_lsn=end.last_lsn, position=end.position, chain=end.chain ^ 1),
            LogEnd(last_lsn=end.last_lsn + 1, position=end.position, chain=end.chain),
            LogEnd(last_lsn=end.last_lsn, position=end.position - 64, chain=end.chain),
        )
        for other in others:
            sent = Hello(name="replica", log_id=hello.log_id, lineage=hello.lineage, end=other)
            (answer,) = answers(StoredSource(image), [sent])
            assert answer is not None and answer.reason == "divergence"


def test_damage_of_the_source_is_not_a_divergence_of_the_replica(primary: CrashingStorage) -> None:
    """Flip a byte of a frame before the replica's end: the source is named as corrupt, the replica is not accused."""
    image = primary.process_kill()
    record = load_manifest(image).sealed[1]
    file = image.open(record.name, "write")
    file.write(4096 + 20, [bytes([file.read(4096 + 20, 1)[0] ^ 1])])
    hello = next(h for h in hellos(primary) if record.start_position < h.end.position < record.end_position)
    with pytest.raises(CorruptionError, match="of the source is damaged"):
        primary_state_of(StoredSource(image), hello)
    assert not walkit.verify(image).ok


def test_a_primary_over_a_dead_writer_sends_only_durable_frames() -> None:
    """Kill a log below level sync: source and reader agree how far it is durable, and no frame beyond it is sent."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(durability="interval", interval_ms=60_000))
    log.append_many([b"%d" % n for n in range(20)])
    log.sync()
    log.append(b"not synced")
    image = storage.process_kill()
    log.close()
    with walkit.open(storage=image, mode="r") as reader:
        source = source_of(reader)
        assert (len(list(reader.read())), reader.durable_lsn, source.durable()[0]) == (21, 20, 20)
        run = FrameReader(source).read(LogEnd(), 1 << 20)
        assert run is not None and run.headers[-1].last_lsn == 20
        cursor = reader.cursor("replica")
        assert [record.lsn for record in cursor.read()] == list(range(1, 21))
        cursor.advance(20)


def test_another_log_in_the_place_is_served_as_far_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace a log that is served by its path by a shorter one: the source's end is that of the new one."""
    monkeypatch.setattr("walkit.replication.logs.source.MANIFEST_S", 0)
    with walkit.open(tmp_path / "p") as log:
        log.append_many([b"x"] * 50)
    source = source_of(tmp_path / "p")
    assert source.durable()[0] == 50
    shutil.rmtree(tmp_path / "p")
    with walkit.open(tmp_path / "p") as other:
        other.append(b"y")
        assert source.durable() == source_of(tmp_path / "p").durable()
        assert source.durable()[0] == 1


@pytest.mark.parametrize("how", ["rewind", "backup"])
def test_a_replica_of_a_served_log_that_was_cut_diverges_by_name(tmp_path: Path, how: str) -> None:
    """Cut a served log, or put it back from a copy, and append less than it had: the replica ends, a new one joins."""
    place, backup = tmp_path / "log", tmp_path / "backup"
    with walkit.open(place) as log:
        log.append_many([b"common"] * 80)
    shutil.copytree(place, backup)
    with walkit.open(place) as log:
        log.append_many([b"old"] * 20)
    with Primary(place) as primary, Replica(tmp_path / "r", primary.address, backoff=quick()) as replica:
        replica.wait_for(100, WAIT_S)
        if how == "rewind":
            rewind(place, 81, force=True)
        else:
            place.rename(tmp_path / "spoiled")  # its server still writes its claims there
            shutil.copytree(backup, place)
        with walkit.open(place) as log:
            log.append_many([b"new"] * 10)
            until(lambda: replica.error is not None, "the end of the replica")
            assert isinstance(replica.error, walkit.DivergenceError) and replica.error.first_lsn == 81
            assert primary.status().durable_lsn == log.durable_lsn == 90
            with Replica(tmp_path / "new", primary.address, backoff=quick()) as joined:
                joined.wait_for(90, WAIT_S)
                assert [r.value for r in joined.log.read(81)] == [b"new"] * 10
