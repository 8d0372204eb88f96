"""Recovery: the decision table, every kind of damage, and the report of each."""

from __future__ import annotations

import pickle
from contextlib import suppress
from itertools import product

import pytest

import walkit
from tests.support.crashes import SMALL, Script, dirty_image, log_of, recovered_rows, rows_of
from tests.support.damaged_logs import contents
from tests.support.in_flight_logs import Flight
from walkit.errors import (
    CorruptionError,
    FormatVersionError,
    LogNotFoundError,
    LogPoisonedError,
    StorageError,
)
from walkit.format.checksum import crc32c
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, read_manifest
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage
from walkit.models.faults import FaultyStorage
from walkit.recovery.decision import (
    DECISION_TABLE,
    MEANINGS,
    Decision,
    Facts,
    decide,
    recovery_table,
)
from walkit.segments.manifest_store import DURABLE_NAME

ALL_FACTS = [Facts(*f) for f in product((False, True), repeat=len(Facts._fields))]


def test_exactly_one_row_matches_every_combination_of_facts() -> None:
    """Enumerate all 2^9 facts: one row each; and every row is needed by some facts."""
    used = set()
    for facts in ALL_FACTS:
        rows = [row for row in DECISION_TABLE if row.matches(facts)]
        assert len(rows) == 1, facts
        used.add(rows[0].label)
        assert decide(facts) is rows[0]
    assert used == {row.label for row in DECISION_TABLE}


def test_a_promise_always_refuses_and_absolute_never_cuts() -> None:
    """Enumerate the facts: promised frames are never cut or dropped, absolute cuts and keeps nothing damaged."""
    for facts in ALL_FACTS:
        decision = decide(facts).decision
        assert (decision is Decision.VOUCHED) == facts.not_read
        if facts.not_read:
            continue
        if facts.salvage:
            assert decision not in (Decision.REFUSE, Decision.REFUSE_TAIL, Decision.REFUSE_SHORT)
            assert decision not in (Decision.CUT, Decision.CUT_WHOLE)
            missing = facts.promised_beyond or facts.cut_short
            assert decision is not Decision.DROP or not (missing or facts.bytes_after)
            assert decision is not Decision.SEAL or not missing
            continue
        if facts.promised_beyond:
            assert decision is Decision.REFUSE
        elif facts.cut_short:
            assert decision is Decision.REFUSE_SHORT
        if facts.absolute:
            assert decision not in (Decision.CUT, Decision.CUT_WHOLE, Decision.KEEP)
        if decision is Decision.KEEP:
            assert facts.header_right and facts.keeps_frames


def test_the_table_as_a_frame_answers_as_the_table_does() -> None:
    """Look each combination of facts up in `walkit.recovery_table()` by its words: the same row and decision."""
    table = walkit.recovery_table()
    assert recovery_table is walkit.recovery_table and set(MEANINGS) == set(Facts._fields)
    assert list(table.columns) == [*Facts._fields, "decision", "meaning"]
    rows = list(table.itertuples(name=None))
    for facts in ALL_FACTS:
        words = ["yes" if have else "no" for have in facts]
        fits = [r for r in rows if all(cell in (w, "any") for cell, w in zip(r[1:], words, strict=False))]
        assert [(r[0], r[-2]) for r in fits] == [(decide(facts).label, decide(facts).decision.name)]


class Live:
    """A log in use on memory storage, with frames of one record each, and means to damage a copy of its files."""

    def __init__(
        self, records: int = 10, *, lose_cell: bool = True, options: walkit.LogOptions = SMALL
    ) -> None:
        self.storage = CrashingStorage()
        self.log = log_of(self.storage, options)
        self.results = [self.log.append(b"value %d" % i * 20, b"k") for i in range(records)]
        self.image = self.storage.crash(keep="all") if lose_cell else self.storage.process_kill()
        if lose_cell:
            self.image.remove(DURABLE_NAME) if DURABLE_NAME in self.image.names() else None
        self.log.close()

    def segment(self) -> str:
        """Name of the only segment that holds frames."""
        return next(n for n in self.image.names() if n.endswith(".segment"))

    def offset(self, index: int) -> int:
        """File offset of a frame."""
        return SEGMENT_HEADER_BYTES + self.results[index].position

    def patch(self, name: str, offset: int, data: bytes) -> None:
        """Write bytes over a file, durably."""
        file = self.image.open(name, "write")
        file.write(offset, [data], sync=True)
        file.close()

    def flip(self, name: str, offset: int) -> None:
        """Flip one bit of a file."""
        file = self.image.open(name, "read")
        byte = file.read(offset, 1)[0]
        file.close()
        self.patch(name, offset, bytes([byte ^ 0x10]))


@pytest.mark.parametrize("where", [0, 20, 40, 95, 100, 130])
def test_a_flip_below_a_promise_is_corruption_of_acknowledged_data(where: int) -> None:
    """Flip a bit in a middle frame: the later frames promised it, so opening refuses and says where."""
    live = Live()
    live.flip(live.segment(), live.offset(4) + where)
    before = {n: live.image.open(n, "read").read(0, 1 << 20) for n in live.image.names()}
    with pytest.raises(CorruptionError) as caught:
        log_of(live.image)
    error = caught.value
    assert error.segment == live.segment()
    assert error.position == live.results[4].position
    assert error.first_lost_lsn == 5
    assert error.expected is not None and error.found is not None
    assert pickle.loads(pickle.dumps(error)).position == error.position
    after = {n: live.image.open(n, "read").read(0, 1 << 20) for n in before}
    assert after == before, "a refused opening changes nothing"


@pytest.mark.parametrize("alignment", [64, 4096])
@pytest.mark.parametrize("header", [b"!", bytes(SEGMENT_HEADER_BYTES)])
def test_a_damaged_segment_header_does_not_hide_what_its_frames_promise(
    header: bytes, alignment: int
) -> None:
    """Damage or zero the header of the only segment after a power cut took the cell: refused, and verify reports it."""
    image = Flight(base=5, flying=1, alignment=alignment).landed((5,))
    file = image.open(segment_name(1), "write")
    file.write(50 if len(header) == 1 else 0, [header], sync=True)
    file.close()
    with pytest.raises(CorruptionError) as caught:
        log_of(image)
    assert (caught.value.segment, caught.value.first_lost_lsn) == (segment_name(1), 1)
    assert not walkit.verify(image).ok


def test_a_flip_in_the_last_frame_is_a_torn_tail_only_while_nothing_promises_it() -> None:
    """Damage the last frame with and without the durable slot: cut without the promise, refused with it."""
    live = Live()
    live.flip(live.segment(), live.offset(9) + 100)
    with log_of(live.image) as log:
        assert log.acked_lsn == 9
        (cut,) = log.recovery.cuts
        assert cut.position == live.results[9].position and cut.first_lsn == 10 and cut.kept_as is not None
        kept = live.image.open(cut.kept_as, "read")
        assert kept.size() == cut.bytes > 0
        assert log.append(b"new").first_lsn == 10
    live = Live(lose_cell=False)
    live.flip(live.segment(), live.offset(9) + 100)
    with pytest.raises(CorruptionError) as caught:
        log_of(live.image)
    assert caught.value.first_lost_lsn == 10


def test_a_mark_promises_the_tail() -> None:
    """Let the log fall idle so that a mark is written: damage of the last record is corruption then."""
    import threading

    storage = CrashingStorage()
    faulty = FaultyStorage(storage)
    written = threading.Event()
    options = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=1)
    log = walkit.open(storage=faulty, options=options)
    result = log.append(b"the last record" * 10)
    while log.statistics().marker_frames == 0:
        written.wait(0.005)
    live = Live(records=1)
    live.image = storage.crash(keep="none")
    live.flip(live.segment(), SEGMENT_HEADER_BYTES + result.position + 100)
    log.close()
    with pytest.raises(CorruptionError):
        log_of(live.image)


class Sealed(Live):
    """A log of several sealed segments, closed."""

    def __init__(self) -> None:
        super().__init__(records=0)
        self.storage = CrashingStorage()
        with log_of(self.storage) as log:
            self.results = [log.append(b"%05d" % i * 600, b"k%d" % (i % 3)) for i in range(80)]
        self.image = self.storage

    def segments(self) -> list[str]:
        """Names of the segments, in order."""
        return [n for n in self.image.names() if n.endswith(".segment")]


def test_what_a_seal_vouches_for_is_not_read_at_opening_but_is_at_reading() -> None:
    """Damage a sealed body: policy prefix opens in order (it reads no frame), and reading it raises with the LSN."""
    sealed = Sealed()
    sealed.flip(sealed.segments()[1], 9000)
    with log_of(sealed.image) as log:
        assert log.recovery.verdict == "clean" and log.recovery.bytes_scanned == 0
        with pytest.raises(CorruptionError) as caught:
            list(log.read())
        assert caught.value.first_lost_lsn is not None and caught.value.first_lost_lsn > 1
        intact = caught.value.first_lost_lsn - 1
        assert [r.lsn for r in log.read(last_lsn=intact)] == list(range(1, intact + 1))


def test_an_unreadable_segment_is_named() -> None:
    """Let reads of one segment fail with EIO: a StorageError that names the file, not an end of the log."""
    sealed = Sealed()
    name = sealed.segments()[1]
    faulty = FaultyStorage(sealed.image)
    with log_of(faulty) as log:
        faulty.fail("read", name, times=None)
        with pytest.raises(StorageError) as caught:
            list(log.read())
        assert caught.value.errno == 5 and caught.value.name == name
        faulty.clear()


def test_a_damaged_or_missing_manifest_refuses() -> None:
    """Flip bytes of base and edits in turn: never opened, never a foreign error; without it the segments are named."""
    sealed = Sealed()
    file = sealed.image.open(MANIFEST_NAME, "write")
    data = file.read(0, 1 << 20)
    end = read_manifest(data, "log").offset
    assert end - data.index(b"\n") > 300, "edits are missing"
    for at in range(0, end, 7):
        file.write(at, [bytes([data[at] ^ 1])], sync=True)
        with pytest.raises((CorruptionError, FormatVersionError)):
            log_of(sealed.image)
        file.write(at, [data[at : at + 1]], sync=True)
    file.close()
    assert len(recovered_rows(sealed.image)) == 80
    sealed.image.remove(MANIFEST_NAME)
    with pytest.raises(CorruptionError):
        log_of(sealed.image)
    with pytest.raises(LogNotFoundError):
        walkit.open(storage=CrashingStorage(), mode="r")


def _contents(storage: CrashingStorage, name: str) -> bytes:
    file = storage.open(name, "read")
    try:
        return file.read(0, 1 << 24)
    finally:
        file.close()


@pytest.mark.parametrize("cell_lost", [False, True])
def test_an_older_manifest_put_back_is_refused(cell_lost: bool) -> None:
    """Put an earlier manifest back under a log that went on: the newer segment or the cell refuses it."""
    storage = CrashingStorage()
    with log_of(storage) as log:
        log.append(b"first epoch")
    older = _contents(storage, MANIFEST_NAME)
    with log_of(storage) as log:
        log.append(b"second epoch")
    file = storage.open(MANIFEST_NAME, "write")
    file.write(0, [older], sync=True)
    file.shorten(len(older))
    file.close()
    if cell_lost:
        storage.remove(DURABLE_NAME)
    names = storage.names()
    with pytest.raises(CorruptionError, match="older than"):
        log_of(storage)
    assert storage.names() == names


def test_a_new_log_forgets_the_cell_of_one_that_was_removed_by_hand() -> None:
    """Remove manifest and segments but not the durable slot: a new log starts, and is believed only for itself."""
    storage = CrashingStorage()
    with log_of(storage) as log:
        log.append(b"gone")
    for name in storage.names():
        if name != DURABLE_NAME:
            storage.remove(name)
    with log_of(storage) as log:
        assert log.append(b"new").first_lsn == 1
    assert recovered_rows(storage) == [(1, None, b"new")]


def test_a_torn_value_that_holds_a_frame_of_a_newer_format_is_cut() -> None:
    """Tear a tail whose value holds, at a boundary, a right frame header of version 9: a cut, not a version error."""
    live = Live(records=3)
    end = SEGMENT_HEADER_BYTES + live.results[2].next_position
    newer = bytearray(_contents(live.image, live.segment())[live.offset(1) : live.offset(1) + 96])
    newer[4] = 9
    newer[92:96] = crc32c(bytes(newer[:92])).to_bytes(4, "little")
    live.patch(live.segment(), end, b"torn".ljust(128, b"!") + bytes(newer))
    with log_of(live.image) as log:
        assert log.acked_lsn == 3 and len(log.recovery.cuts) == 1


def test_absolute_refuses_a_torn_tail_that_prefix_cuts() -> None:
    """Open the same torn log under both policies; absolute leaves it as it is, so that prefix can still cut it."""
    image, appended = dirty_image()
    with pytest.raises(CorruptionError):
        log_of(image, walkit.LogOptions(recovery="absolute"))
    with log_of(image) as log:
        assert (
            rows_of(log) == appended and log.recovery.verdict == "recovered" and len(log.recovery.cuts) == 1
        )
    with log_of(image, walkit.LogOptions(recovery="absolute")) as log:
        assert rows_of(log) == appended and log.recovery.bytes_scanned > 0


def test_a_clean_opening_reads_no_frame_and_the_report_shows_its_phases() -> None:
    """Reopen a closed log: verdict clean, nothing scanned, phases timed in order, and HTML that names them."""
    sealed = Sealed()
    with log_of(sealed.image) as log:
        report = log.recovery
        assert (report.verdict, report.frames_scanned, report.cuts, report.next_lsn) == ("clean", 0, (), 81)
        assert [p.name for p in report.phases] == ["open", "scan", "verify", "apply", "ready"]
        ends = [p.started_s for p in report.phases]
        assert ends == sorted(ends) and all(p.duration_s >= 0 for p in report.phases)
        html = report._repr_html_()
        assert "scan" in html and "clean" in html and "#000" not in html


def test_progress_reaches_the_end_of_verification() -> None:
    """Open under policy absolute with a progress callback: it ends at all the bytes of frames there are."""
    sealed = Sealed()
    seen: list[tuple[int, int]] = []
    with walkit.open(
        storage=sealed.image,
        options=walkit.LogOptions(recovery="absolute"),
        progress=lambda done, total: seen.append((done, total)),
    ) as log:
        assert seen[-1][0] == seen[-1][1] == log.statistics().log_bytes
        assert [d for d, _ in seen] == sorted(d for d, _ in seen)


@pytest.mark.parametrize("operation", ["write", "create", "sync"])
def test_an_opening_syncs_its_folder_first(operation: str) -> None:
    """Fail the sync after a manifest, and the next opening's first change: a power cut leaves the new manifest."""
    storage = CrashingStorage()
    faulty = FaultyStorage(storage)
    with suppress(StorageError, LogPoisonedError), log_of(faulty) as log:
        Script().run(log, lambda: None, 40)
        faulty.fail("synced_write", MANIFEST_NAME)  # after an edit that fails comes a new base
        faulty.fail("sync_directory", times=None)
        with suppress(StorageError):
            log.trim(log.durable_lsn)
        log.trim(log.durable_lsn)
    newest = contents(storage)[MANIFEST_NAME]
    assert contents(storage.crash(keep="none"))[MANIFEST_NAME] != newest
    opening = FaultyStorage(storage.process_kill())
    opening.fail(operation)  # type: ignore[arg-type]
    with suppress(StorageError):
        log_of(opening).close()
    assert isinstance(opening.inner, CrashingStorage)
    assert contents(opening.inner.crash(keep="none"))[MANIFEST_NAME].startswith(newest.rstrip(b"\0"))
