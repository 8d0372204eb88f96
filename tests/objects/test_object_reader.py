"""Reading a log on object storage: its end, views of it, and missing, foreign, stale or damaged bulks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import walkit
from tests.objects.made_log import MadeLog
from tests.objects.races import OPTIONS
from tests.support.makers import flipped
from tests.support.threads import Task
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    GapError,
    LogClosedError,
    LogNotFoundError,
    OptionsError,
    SegmentMissingError,
    SnapshotError,
    WalkitError,
)
from walkit.format.frame import FrameHeader
from walkit.objects.layout import (
    BULK_HEADER_BYTES,
    CLAIMS_KEY,
    MANIFEST_KEY,
    START,
    BulkHeader,
    number_of_key,
    object_key,
)
from walkit.objects.view import LOOK_EVERY, ObjectEnd
from walkit.read.reader import LogReader
from walkit.state import Counter, KeyedTable
from walkit.state.state_at import exact_state, state_at
from walkit.storage.object_memory import MemoryObjectStore, ObjectRequest
from walkit.storage.object_store import ObjectBytes


def values(first: int, last: int) -> list[bytes]:
    return [b"%d" % lsn for lsn in range(first, last + 1)]


@contextmanager
def reader(made: MadeLog) -> Iterator[LogReader]:
    """A reader of a made log, as another process has it."""
    with LogReader(ObjectEnd(made.store.client())) as log:
        yield log


def polled(look: Callable[[], object]) -> None:
    """Look twenty-one times: the vouched end and the floor are read meanwhile."""
    for _ in range(2 * LOOK_EVERY + 1):
        look()


@pytest.mark.parametrize(
    "look",
    [
        lambda end: end.now().last_lsn,
        lambda end: end.poll().last_lsn,
        lambda end: end.folder().last_lsn(),  # before each writing of a claim
        lambda end: walkit.verify(end.reads.store).last_lsn,
    ],
    ids=["now", "poll", "claim", "verify"],
)
def test_a_faster_writer_does_not_hold_a_look(
    look: Callable[[ObjectEnd], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put three bulks at each request of a look: it ends, and has found all that was there when it began."""
    monkeypatch.setattr("walkit.objects.bulks.LOOK_BULKS", 4)
    made, lock = MadeLog(), threading.Lock()
    client = made.store.client()
    source = ObjectEnd(client)

    def put(request: ObjectRequest) -> None:
        with lock:
            assert request.number < 1000, "the look has no end"
            for _ in range(3):
                made.append([b"more"])

    there = [made.append([b"there"]) for _ in range(20)][-1]
    client.plan = put
    assert there.lsn <= look(source) < made.place.lsn


def test_a_trim_during_a_look_is_a_gap() -> None:
    """Trim below a bulk that a look is about to take: reading from before raises, and the end is the log's end."""
    made = MadeLog()
    places = [made.append([b"v"]) for _ in range(5)]
    client = made.store.client()
    with LogReader(ObjectEnd(client)) as log:
        assert log.last_lsn == 5
        places += [made.append([b"v"]) for _ in range(40)]

        def trim(request: ObjectRequest) -> None:
            if request.key == object_key(20) and made.claims.floor == START:
                made.trim(places[29])
                for place in places[:30]:
                    made.store.delete(object_key(place.number))

        client.plan = trim
        with pytest.raises(GapError) as caught:
            list(log.read(6))
        assert caught.value.oldest == 31 and log.last_lsn == 45
        assert [record.lsn for record in log.read(31)] == [*range(31, 46)]


def test_a_verification_is_done_again_after_a_trim_of_all_that_it_has_not_read() -> None:
    """Trim the whole log during a verification: its report ends where the log does, and not before what was dropped."""
    made = MadeLog()
    places = [made.append([b"v"]) for _ in range(45)]

    def trim(request: ObjectRequest) -> None:
        if request.key == object_key(20) and made.claims.floor == START:
            made.trim(places[-1])
            for place in places:
                made.store.delete(object_key(place.number))

    report = walkit.verify(made.store.client(trim))
    assert made.claims.floor.lsn == report.last_lsn == 45 and report.ok


def test_trims_that_stay_faster_than_a_look_are_an_error() -> None:
    """Move the floor past each bulk that a look asks for: it ends with a GapError, and later ones have the end."""
    made = MadeLog()
    client = made.store.client()
    with LogReader(ObjectEnd(client)) as log:
        assert log.last_lsn == 0
        places = {place.number: place for place in (made.append([b"v"]) for _ in range(500))}

        def trim(request: ObjectRequest) -> None:
            number = number_of_key(request.key)
            if number in places:
                made.trim(places[number])
                made.store.delete(request.key)

        client.plan = trim
        with pytest.raises(GapError):
            _ = log.last_lsn
        assert len(client.requests) < 100
        client.plan = None
        assert log.last_lsn == 500


def test_checkpoints_that_stay_faster_than_a_look_end_it() -> None:
    """Put and checkpoint before each look at the claims: the look ends, with all that was there when it began."""
    base, looking = MemoryObjectStore(), [False]

    def checkpoint() -> None:
        store.put(b"k", b"v")
        store.checkpoint(trim=False)

    def plan(request: ObjectRequest) -> None:
        if looking[0] and request.key == CLAIMS_KEY:
            Task(checkpoint).result()

    with walkit.Store.open(base.client()) as store, walkit.open(base.client(plan), "r") as log:
        checkpoint()
        assert log.last_lsn == 1
        looking[0] = True
        for _ in range(20):
            known = store.log.acked_lsn
            assert known <= log.last_lsn < store.log.acked_lsn + 1 and store.log.acked_lsn > known


def test_a_trim_of_the_bulk_that_a_look_asks_for_is_not_the_end() -> None:
    """Trim the bulk that a look asks for after a claim that it has reached: the look goes on to the log's end."""
    base, armed = MemoryObjectStore(), [False]

    def trim() -> None:
        hold.advance(31)
        store.checkpoint()

    def plan(request: ObjectRequest) -> None:
        if armed[0] and request.key == object_key(27):
            armed[0] = False
            Task(trim).result()

    with walkit.Store.open(base.client(), OPTIONS) as store:
        hold = store.log.hold("hold", 1)
        store.put(b"k", b"")
        with walkit.open(base.client(plan), "r") as log:
            for number in range(2, 21):
                store.put(b"k", b"%d" % number)
            hold.advance(11)
            store.checkpoint()
            for number in range(21, 41):
                store.put(b"k", b"%d" % number)
            armed[0] = True
            assert log.last_lsn == store.log.acked_lsn == 40 and not armed[0]
            assert [record.lsn for record in log.read(35)] == [*range(35, 41)]


def test_an_acknowledged_record_is_seen_however_quiet_the_log_was() -> None:
    """Ask a quiet log so many times, then append: the next call has the record, also the one that reads the floor."""
    made = MadeLog()
    with reader(made) as log:
        for quiet in range(LOOK_EVERY + 2):
            for _ in range(quiet):
                assert log.last_lsn == made.place.lsn
            lsn = made.append([b"new"]).lsn
            assert [record.lsn for record in log.follow(lsn, timeout=0)] == [lsn] == [log.last_lsn]


def test_damage_far_beyond_the_end_breaks_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rubbish where a long look asks for a number beyond: no look is told, since the log ends before it."""
    monkeypatch.setattr("walkit.objects.bulks.LOOK_BULKS", 4)
    made = MadeLog()
    source = ObjectEnd(made.store.client())
    for _ in range(9):
        made.append([b"v"])
    for number in range(made.place.number + 2, made.place.number + 9):
        made.put(object_key(number), b"rubbish")
    assert source.now().last_lsn == made.place.lsn


@pytest.mark.parametrize("per_bulk", [1, 3])
def test_a_look_begins_after_the_frames_that_came_another_way(per_bulk: int) -> None:
    """Expect the last of 200 frames: its bulk is found by headers. One of another chain, or after a fence, is not."""
    made = MadeLog()
    made.append(values(1, per_bulk))

    def add(bulks: int) -> FrameHeader:
        for _ in range(bulks):
            made.append([b"v"] * per_bulk)
        with reader(made) as log:
            *_, (last, _, _) = log.source.now().view.frames(made.place.lsn)
        return last

    client = made.store.client()
    end = ObjectEnd(client)
    assert end.now().last_lsn == per_bulk
    for bulks in (200, 1):
        end.expect(add(bulks))
        before = len(client.requests)
        assert end.now().last_lsn == made.place.lsn and end.now().end_position == made.place.position
        methods = [made.method for made in client.requests[before:]]
        assert len(methods) <= 16 and methods.count("get") <= 5
    end.expect(add(20)._replace(header_crc=1))
    assert end.now().view.manifest.end == made.place.end
    made.fence()
    end.expect(add(20))
    assert end.now().view.manifest.end == made.place.end and len(end.now().view.manifest.lineage) == 2
    with reader(made) as log:
        assert log.source.now().view.manifest.end == made.place.end


def three_epochs(per_bulk: int = 3, bulks: int = 40) -> MadeLog:
    """A log of three openings, each with so many bulks; LSN n has the value n."""
    made = MadeLog()
    for epoch in range(3):
        if epoch:
            made.fence()
        for _ in range(bulks):
            made.append(values(made.place.lsn + 1, made.place.lsn + per_bulk))
    return made


def test_a_reader_sees_every_record() -> None:
    """Read a log of three epochs whole and between pairs of LSNs: the records that were put."""
    made = three_epochs()
    with reader(made) as log:
        assert (log.first_lsn, log.last_lsn, log.durable_lsn) == (1, 360, 360)
        assert [(r.lsn, r.value) for r in log] == list(enumerate(values(1, 360), 1))
        for first in range(1, 361, 40):
            for last in range(first, 361, 40):
                assert [r.lsn for r in log.read(first, last)] == list(range(first, last + 1))
        assert log.to_arrow().column("lsn").to_pylist() == list(range(1, 361))
        assert list(log.read(400)) == [] and "LSN" in log._repr_html_() and made.store.location in repr(log)


def test_a_view_knows_lsns_by_position() -> None:
    """At each frame's end the last LSN below it is that frame's; between two frames it is the one before."""
    made = three_epochs(bulks=9)
    with reader(made) as log:
        view = log.source.now().view
        for header, _, key in view.frames(1):
            assert view.lsn_at(header.end_position) == header.last_lsn == view.lsn_at(header.end_position + 1)
            assert view.lsn_at(header.end_position - 1) == header.last_lsn - 1 and key.startswith("log/")


def test_a_place_is_found_with_few_requests() -> None:
    """One record of 3,000 bulks costs headers by bisection and one bulk, and again less; all of them one GET each."""
    made = MadeLog()
    for _ in range(3000):
        made.append(values(made.place.lsn + 1, made.place.lsn + 1))
    made.save()
    store = made.store.client()
    with LogReader(ObjectEnd(store)) as log:
        view = log.source.now().view
        for lsn, most in ((700, 14), (705, 12), (2999, 14)):
            store.requests.clear()
            assert [r.value for r in view.records(lsn, lsn)] == [b"%d" % lsn]
            counts = store.counts()
            assert counts["get"] == 1 and 1 < counts["get_range"] + counts["get"] <= most
        store.requests.clear()
        assert sum(1 for _ in view.records(1)) == 3000
        counts = store.counts()
        assert counts["get"] <= 3001 and counts["get_range"] <= 14


def test_a_quiet_reader_makes_one_request_a_poll() -> None:
    """Sixty polls of a quiet log: the next bulk each time, and each twentieth time manifest and claims, too."""
    made = three_epochs(bulks=4)
    store = made.store.client()
    end = ObjectEnd(store)
    end.now()
    end.now()
    store.requests.clear()
    looked = []
    for _ in range(3 * LOOK_EVERY):
        end.poll()
        looked.append([request.key for request in store.requests])
        store.requests.clear()
    assert all(keys[0] == made.place.key for keys in looked)
    assert sorted(map(len, looked)) == [1] * 57 + [3] * 3
    keys = [key for keys in looked for key in keys]
    assert keys.count(MANIFEST_KEY) == keys.count(CLAIMS_KEY) == 3
    made.append([b"new"])
    seen = end.poll()
    assert seen.last_lsn == made.place.lsn
    store.requests.clear()
    assert [r.value for r in seen.view.records(seen.last_lsn)] == [b"new"] and store.requests == []


def test_following_continues_over_a_new_epoch() -> None:
    """Follow while bulks, an opening and more bulks come: each record once, in order, of the right epoch."""
    made = three_epochs(bulks=2)
    last = made.place.lsn
    with reader(made) as log:
        found = log.follow(1)
        assert [next(found).lsn for _ in range(last)] == list(range(1, last + 1))
        made.append([b"a"])
        assert next(found).value == b"a"
        made.fence()
        made.append([b"b", b"c"])
        assert [next(found).value, next(found).value] == [b"b", b"c"]
        assert log.source.now().view.manifest.lineage == made.manifest.lineage
        assert list(log.follow(made.place.lsn + 1, timeout=0)) == []


def test_a_stale_bulk_is_the_end_until_it_is_replaced() -> None:
    """A bulk of an older epoch after a fence was never acknowledged: the log ends before it, and then goes on."""
    made = three_epochs(bulks=2)
    before = made.place
    late = made.bulk([b"late"], before._replace(number=before.number + 1))
    with reader(made) as log:
        made.fence()
        made.put(object_key(before.number + 2), late)
        for _ in range(3):
            assert log.last_lsn == before.lsn
        made.append([b"right"])
        assert [r.value for r in log.read(before.lsn + 1)] == [b"right"]


def test_a_trim_moves_the_beginning() -> None:
    """Nothing can be read below the floor; a view from before the trim gets a GapError."""
    made = three_epochs()
    made.save()
    places = [made.place]
    with reader(made) as log:
        old = log.source.now().view
        floor = BulkHeader.decode(made.store.get(object_key(50)).data).end
        made.trim(floor)
        for number in range(1, floor.number + 1):
            made.store.delete(object_key(number))
        with pytest.raises(GapError) as caught:
            list(old.records(1))
        assert caught.value.oldest == floor.lsn + 1 > 1
        polled(log.source.now)
        assert log.first_lsn == log.complete_from_lsn == log.exact_from_lsn == floor.lsn + 1
        assert [r.lsn for r in log] == list(range(floor.lsn + 1, places[0].lsn + 1))
        for wanted in (log.read, log.follow):
            with pytest.raises(GapError):
                next(iter(wanted(1)))
    with reader(made) as log:
        assert (log.first_lsn, log.last_lsn) == (floor.lsn + 1, places[0].lsn)


def test_a_follower_that_a_trim_passes_gets_a_gap() -> None:
    """Trim past the place where a follower waits: a GapError, and never a skip."""
    made = three_epochs(bulks=2)
    with reader(made) as log:
        found = log.follow(made.place.lsn + 1)
        behind = made.place.lsn + 1
        assert list(log.follow(behind, timeout=0)) == []
        for _ in range(5):
            made.append([b"gone"])
        for number in range(1, made.place.number + 1):
            made.store.delete(object_key(number))
        made.trim(made.place)
        with pytest.raises(GapError) as caught:
            next(found)
        assert (caught.value.wanted, caught.value.oldest) == (behind, made.place.lsn + 1)


Harm = Callable[[MadeLog], object]


def missing_below_vouched(made: MadeLog) -> None:
    made.save()
    made.store.delete(object_key(3))


def flipped_bit(made: MadeLog) -> None:
    data = made.store.get(object_key(3)).data
    made.put(object_key(3), flipped(data, (BULK_HEADER_BYTES + 70) * 8))


def another_log(made: MadeLog) -> None:
    other = MadeLog(log_id=0x99)
    other.place = made.place
    made.put(made.place.key, other.bulk([b"foreign"], made.place))


def another_manifest(made: MadeLog) -> None:
    made.put(MANIFEST_KEY, MadeLog(log_id=0x99).store.get(MANIFEST_KEY).data)


def wrong_chain(made: MadeLog) -> None:
    made.put(made.place.key, made.bulk([b"x"], made.place._replace(chain=1)))


def no_manifest(made: MadeLog) -> None:
    made.store.delete(MANIFEST_KEY)


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (missing_below_vouched, SegmentMissingError),
        (flipped_bit, CorruptionError),
        (another_log, DivergenceError),
        (another_manifest, DivergenceError),
        (wrong_chain, CorruptionError),
        (no_manifest, CorruptionError),
    ],
)
def test_each_damage_has_its_error(harm: Harm, error: type[WalkitError]) -> None:
    """Do harm to a log beside a reader: the typed error within twenty looks."""
    made = three_epochs(bulks=2)
    with reader(made) as log:
        log.source.now()
        harm(made)
        with pytest.raises(error):
            polled(lambda: list(log.read(1)))


def test_a_lost_bulk_below_the_vouched_end_is_an_error() -> None:
    """A bulk after the reader's place is missing and a later vouched end is saved: SegmentMissingError at the look."""
    made = three_epochs(bulks=2)
    with reader(made) as log:
        assert log.last_lsn == made.place.lsn
        lost = made.place.key
        made.append([b"lost"])
        made.append([b"there"])
        made.store.delete(lost)
        made.save()
        with pytest.raises(SegmentMissingError, match=lost):
            polled(log.source.now)


class CutAnswers(MemoryObjectStore):
    """A store whose answers are cut short, each key's first one."""

    cut: set[str]

    def get(self, key: str) -> ObjectBytes:
        """Return a part of the bytes the first time."""
        data, tag = super().get(key)
        if key.startswith("log/") and key not in self.cut:
            self.cut.add(key)
            return ObjectBytes(data[: len(data) // 2], tag)
        return ObjectBytes(data, tag)


def test_a_cut_answer_is_requested_again() -> None:
    """Cut the first answer of each bulk: it is read again whole before any verdict, and every record is read."""
    store = CutAnswers()
    store.cut = set()
    made = MadeLog(store)
    for _ in range(5):
        made.append([b"x"])
    with LogReader(ObjectEnd(store)) as log:
        assert len(list(log)) == 5 and len(store.cut) == 6  # the fence, too


def test_states_come_from_a_log_of_objects() -> None:
    """Replay, recovery of a machine, exact states and a diff of two LSNs: the same as of the records themselves."""
    made = MadeLog()
    for at in range(30):
        made.append([b"%d" % at, b"-1"], [b"k%d" % (at % 7), b"x%d" % at])
    with reader(made) as log:
        table, counter = KeyedTable(), Counter()
        report = walkit.replay(log, table)
        assert (report.records, report.applied_lsn) == (60, 60) and table[b"k1"] == b"29"
        assert walkit.replay(log, counter).records == 60
        recovered = KeyedTable()
        assert walkit.recover(log, recovered).snapshot is None and recovered.checksum() == table.checksum()
        state = exact_state(log, 20)
        assert state.base_lsn == 0
        past = state_at(log, log.source.now().view.storage, 20, 60)
        assert past[b"k1"] == b"8" and b"x10" not in past
        assert len(walkit.diff((log, 20), (log, 60))) > 0


@pytest.mark.parametrize("harm", [None, b"", b"rubbish" * 40])
def test_a_snapshot_that_cannot_be_read_is_a_problem(harm: bytes | None) -> None:
    """Delete the object of a snapshot on which the state rests, or replace it: both reports tell, no opening."""
    base = MemoryObjectStore()
    with walkit.Store.open(base.client()) as store:
        store.put(b"k", b"v")
        store.checkpoint()
    assert walkit.verify(base).ok and walkit.scan(base).ok
    (key,) = (entry.key for entry in base.list_after("files"))
    base.delete(key)
    if harm is not None:
        base.put_if_absent(key, harm)
    for report in (walkit.verify(base), walkit.scan(base)):
        assert report.ok is False and len(report.problems) == 1
    with pytest.raises(SnapshotError):
        walkit.Store.open(base.client())


def test_what_needs_a_folder_is_refused() -> None:
    """Read damaged records: OptionsError with the reason."""
    made = three_epochs(bulks=1)
    with reader(made) as log, pytest.raises(OptionsError, match="folder"):
        log.read(damaged="unverified")
    with pytest.raises(LogNotFoundError):
        ObjectEnd(MemoryObjectStore())


def test_a_reader_beside_the_making_of_a_log_finds_it_or_nothing() -> None:
    """Make the log between a reader's look at the manifest and that at the claims: the reader opens."""
    store = MemoryObjectStore()

    def plan(request: ObjectRequest) -> None:
        if request.number == 1:
            walkit.open(store.client()).close()

    with walkit.open(store.client(plan), mode="r") as log:
        assert log.last_lsn == 0


def test_a_forked_copy_of_a_reader_is_refused() -> None:
    """Fork while another thread is in a poll of the reader: the child gets LogClosedError, and waits for no lock."""
    made, polls, asked, answers = MadeLog(), *(threading.Event() for _ in range(3))

    def plan(request: ObjectRequest) -> None:
        if polls.is_set():
            asked.set()
            assert answers.wait(20)

    with LogReader(ObjectEnd(made.store.client(plan))) as log:
        polls.set()
        poll = threading.Thread(target=lambda: log.last_lsn)
        poll.start()
        assert asked.wait(10)
        child = os.fork()
        if not child:
            signal.alarm(5)  # a child that waits for the lock is ended
            with suppress(LogClosedError):
                os._exit(log.last_lsn + 1)
            os._exit(0)
        code = os.waitpid(child, 0)[1]
        answers.set()
        poll.join()
        assert code == 0
