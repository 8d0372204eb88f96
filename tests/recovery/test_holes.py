"""Holes: several frames in flight on the disk, both orders of acknowledgement, one segment and two."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from itertools import combinations, cycle

import pytest

import walkit
from tests.support.damaged_logs import rows_by_ranges, rows_of
from tests.support.in_flight_logs import Flight, headless, torn
from tests.support.makers import forged
from walkit.errors import CorruptionError, GapError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd
from walkit.format.segment import segment_name
from walkit.replication.logs.source import source_of
from walkit.replication.primary.frame_reader import FrameReader
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage

SMALL = {"segment_bytes": 64 * 1024, "frame_bytes_max": 16 * 1024, "idle_marker_ms": 0}


def opened(storage: Storage, policy: str = "prefix") -> walkit.WriteAheadLog:
    """Open a log for writing with a recovery policy."""
    return walkit.open(storage=storage, options=walkit.LogOptions(**SMALL, recovery=policy))  # type: ignore[arg-type]


def subsets(numbers: range) -> Iterator[frozenset[int]]:
    """Yield every subset."""
    for size in range(len(numbers) + 1):
        yield from map(frozenset, combinations(numbers, size))


def prefix_of(flight: Flight, landed: Collection[int]) -> range:
    """Return the numbers of the frames before the first that did not land."""
    return range(next(n for n in range(flight.base, 99) if n not in landed))


def flights(order: str, flying: int) -> Iterator[Flight]:
    """Yield a log of one segment, and of two with the border at every place, also before and after all in flight.

    With more than three frames in flight at one place: each more doubles the states.
    """
    for base in (0, 2) if flying < 4 else (2,):
        borders = range(max(base, 1), base + flying + 1) if flying < 4 else (base + 2,)
        for second in (None, *borders):
            yield Flight(order=order, base=base, flying=flying, second=second)


@pytest.mark.parametrize(
    ("order", "policy"), [("append", "prefix"), ("append", "holes"), ("completion", "prefix")]
)
@pytest.mark.parametrize(
    "flying",
    [
        pytest.param(1, marks=pytest.mark.slow),  # two in flight, one of them lost, are much the same
        2,
        pytest.param(3, marks=pytest.mark.slow),  # twenty borders, two seconds
        4,  # two holes
        pytest.param(5, marks=pytest.mark.slow),  # each more in flight doubles the states
    ],
)
def test_every_subset_of_frames_that_landed(flying: int, order: str, policy: str) -> None:
    """Land each subset, the others lost, torn or headless, and open: all that was acknowledged, and no LSN twice."""
    damages = cycle((None, torn, headless))
    for flight in flights(order, flying):
        for landed in subsets(range(flight.base, flight.base + flying)):
            image = flight.landed(landed, next(damages))
            prefix = prefix_of(flight, landed)
            every = {*range(flight.base), *landed}
            wanted = flight.rows(prefix if (order, policy) == ("append", "prefix") else every)
            seen = flight.rows(prefix if order == "append" else every)
            with walkit.open(storage=image, mode="r") as reader:
                assert rows_of(reader) == seen
            with opened(image, policy) as log:
                assert rows_of(log) == wanted, (flight, landed)
                assert log.recovery.policy == (
                    "prefix" if (order, policy) == ("append", "prefix") else "holes"
                )
                lsn = log.append(b"new").first_lsn
                assert lsn == max((r[0] for r in wanted), default=0) + 1
            with opened(image) as log:
                assert rows_of(log) == [*wanted, (lsn, b"new")]
                assert log.recovery.verdict == "clean"


@pytest.mark.parametrize("order", ["append", "completion"])
def test_readers_and_tools_know_holes_from_loss(order: str) -> None:
    """Keep the frames of every subset: follow, ranges, verify and a second recovery pass over the holes alike."""
    for flight in (Flight(order=order), Flight(order=order, second=4, marks=(2,))):
        for landed in subsets(range(2, 5)):
            image = flight.landed(landed, torn)
            wanted = flight.rows({0, 1, *landed})
            if order == "completion":
                assert rows_by_ranges(image) == wanted
                before = walkit.verify(image)
                assert (
                    before.ok and before.last_lsn == wanted[-1][0] and before.records_checked == len(wanted)
                )
            with opened(image, "holes") as log:
                assert log.complete_from_lsn == 1
                assert [(r.lsn, r.value) for r in log.follow(1, timeout=0)] == wanted
                for first in range(1, wanted[-1][0] + 1):
                    assert [(r.lsn, r.value) for r in log.read(first)] == [w for w in wanted if w[0] >= first]
                holes = log.recovery.holes
            assert rows_by_ranges(image) == wanted
            with walkit.open(storage=image, mode="r") as reader:
                assert [(r.lsn, r.value) for r in reader.follow(1, timeout=0)] == wanted
            for report in (walkit.scan(image), walkit.verify(image)):
                assert report.ok, report.problems
                told = [r for r in report.verdict if r.verdict.value == "hole"]
                assert [(r.start_position, r.end_position) for r in told] == [
                    (h.start_position, h.end_position) for h in holes
                ]
                assert {row.position for row in report.frame_rows()} == {
                    h.position for n, (h, _) in enumerate(flight.frames) if n in (0, 1, *landed)
                }
            with opened(image, "absolute") as log:
                assert rows_of(log) == wanted


@pytest.mark.parametrize("policy", ["prefix", "holes", "absolute"])
@pytest.mark.parametrize("order", ["append", "completion"])
@pytest.mark.parametrize("second", [None, 3, 4])
def test_a_promise_after_a_hole_makes_it_corruption(second: int | None, order: str, policy: str) -> None:
    """Let a later frame, or the durable slot, say that a frame is durable, and lose it: every policy refuses."""
    for lost, promising in combinations(range(2, 5), 2):
        flight = Flight(order=order, second=second, promises={promising: lost + 1})
        rest = frozenset(range(2, 5)) - {lost}
        for damage in (None, torn):
            image = flight.landed(rest, damage)
            with pytest.raises(CorruptionError) as caught:
                opened(image, policy)
            assert caught.value.first_lost_lsn == flight.frames[lost][0].first_lsn
            assert caught.value.position == flight.frames[lost][0].position
            with opened(flight.landed(range(2, 5)), policy) as log:
                assert rows_of(log) == flight.rows(range(5)) and not log.recovery.cuts
    flight = Flight(order=order, second=second)
    with pytest.raises(CorruptionError):
        opened(flight.landed((3, 4), torn, marked=3), policy)


def test_absolute_refuses_every_hole() -> None:
    """Open each subset with a hole in it under the policy absolute: refused; without a hole it opens."""
    for order in ("append", "completion"):
        for second in (None, 2, 3):
            flight = Flight(order=order, second=second)
            for landed in subsets(range(2, 5)):
                image = flight.landed(landed)
                if len(prefix_of(flight, landed)) == len(landed) + 2 and (
                    second is None or landed or second == 2
                ):
                    with opened(image, "absolute") as log:
                        assert rows_of(log) == flight.rows({0, 1, *landed})
                elif landed:
                    with pytest.raises(CorruptionError, match="absolute"):
                        opened(image, "absolute")


def test_the_window_bounds_the_kept_frames() -> None:
    """End the window after the second frame, or inside one: later frames are cut, and kept aside."""
    plain = Flight(flying=4).frames
    ends = [h.end_position - plain[2][0].position for h, _ in plain]
    for window, kept in (
        (ends[5], (3, 4, 5)),
        (ends[4], (3, 4)),
        (ends[4] - 1, (3,)),
        (ends[2], ()),
        (0, ()),
    ):
        flight = Flight(flying=4, window=window)
        image = flight.landed((3, 4, 5), torn)
        with opened(image, "holes") as log:
            assert rows_of(log) == flight.rows({0, 1, *kept})
            lost = [c for c in log.recovery.cuts if c.kept_as is not None]
            assert bool(lost) == (kept != (3, 4, 5))
            for cut in lost:
                file = image.open(str(cut.kept_as), "read")
                assert file.size() == cut.bytes
                file.close()
            assert [h.first_lsn for h in log.recovery.holes] == ([5] if kept else [])


@pytest.mark.parametrize("order", ["append", "completion"])
def test_a_frame_that_does_not_fit_refuses(order: str) -> None:
    """Give an intact frame after the hole an LSN that is taken, or one too high for the next: holes refuses it."""
    flight = Flight(order=order)
    for first_lsn in (3, 4, 11):
        image = flight.landed((3, 4), torn)
        header, data = flight.frames[3]
        file = image.open(segment_name(1), "write")
        file.write(SEGMENT_HEADER_BYTES + header.position, [forged(data, first_lsn=first_lsn)], sync=True)
        file.close()
        with pytest.raises(CorruptionError, match="does not follow"):
            opened(image, "holes")
    image = flight.landed((3, 4), torn)
    file = image.open(segment_name(1), "write")
    file.write(SEGMENT_HEADER_BYTES + header.position, [forged(data, chain=1)], sync=True)
    file.close()
    with pytest.raises(CorruptionError, match="does not follow"):
        opened(image, "holes")


def test_a_damaged_header_before_frames_that_would_be_kept_refuses() -> None:
    """Damage the first segment's header while the second holds frames: in completion order nothing is guessed."""
    for order, policy in (("completion", "prefix"), ("append", "holes")):
        image = Flight(order=order, base=0, second=2).landed(range(3))
        file = image.open(segment_name(1), "write")
        file.write(100, [b"!"], sync=True)
        file.close()
        with pytest.raises(CorruptionError) as caught:
            opened(image, policy)
        assert caught.value.segment == segment_name(1)
        if policy == "prefix":
            told = walkit.verify(image)
            assert [p.segment for p in told.problems] == [segment_name(1)], "verify and the opening agree"


@pytest.mark.parametrize("second", [None, 3, 4])
def test_replication_refuses_to_send_over_a_hole(second: int | None) -> None:
    """Read frames for a replica up to the hole, and ask after it: a GapError that names the LSNs, and no frame."""
    flight = Flight(second=second)
    image = flight.landed((4,), torn)
    with opened(image, "holes") as log:
        reader = FrameReader(source_of(log))
        end = LogEnd()
        for _ in range(9):
            with contextlib.suppress(GapError):
                run = reader.read(end, 1 << 20)
                assert run is not None
                end = run.end
                continue
            break
        assert end.last_lsn == flight.frames[1][0].last_lsn
        with pytest.raises(GapError) as caught:
            reader.read(end, 1 << 20)
        reader.close()
        missing = [h.first_lsn for h, _ in flight.frames]
        assert missing[2] == caught.value.wanted < caught.value.oldest <= missing[4]


@pytest.mark.parametrize("second", [None, 3, 4])
def test_trim_and_compaction_take_holes_with_them(second: int | None) -> None:
    """Trim past a hole, and compact over one: its record goes, the log reads on, and verify finds nothing wrong."""
    flight = Flight(second=second)
    image = flight.landed((4,), torn)
    with opened(image, "holes") as log:
        first_lsn = flight.frames[4][0].first_lsn
        log.trim(first_lsn - 1)
        assert bool(load_manifest(image).holes) == (second != 4), (
            "a hole before the oldest segment does not belong to it"
        )
        assert rows_of(log) == flight.rows((4,)) and log.first_lsn == first_lsn
    assert walkit.verify(image).ok
    for way in ("trim", "compact"):
        image = flight.landed((4,), torn)
        options = walkit.LogOptions(**SMALL, recovery="holes")  # type: ignore[arg-type]
        with walkit.Store.open(storage=image, options=options) as store:
            assert dict(store.items()) == {b"key %d" % n: flight.rows((n,))[1][1] for n in (0, 1, 4)}
            assert load_manifest(image).holes
            for n in (0, 1, 4) * 20:
                store[b"key %d" % n] = b"newer" * 600
        with walkit.Store.open(storage=image, options=options) as store:
            store.put(b"last", b"")
            store.compact() if way == "compact" else store.checkpoint()
            state = dict(store.items())
            assert not load_manifest(image).holes
        assert walkit.verify(image).ok
        with walkit.Store.open(storage=image, options=options) as store:
            assert dict(store.items()) == state
