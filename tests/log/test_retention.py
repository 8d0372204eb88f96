"""Retention: limits that are enough to drop a segment, holds that are enough to keep it, and the hard cap over both."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

import walkit
from tests.support.logs import faulty_log, lsns, memory_log, segment_set, tiny
from tests.support.stores import SMALL
from tests.support.threads import wait_until
from walkit.config import Retention
from walkit.errors import GapError, LogClosedError, OptionsError, StorageError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import SegmentRecord, SegmentState
from walkit.log.retention import RetentionFacts, period_s, plan_retention
from walkit.models import CrashingStorage
from walkit.record import wall_us
from walkit.segments.consumer_files import ClaimFact
from walkit.segments.segment_set import PassedTime

FRAMES = 1000 - SEGMENT_HEADER_BYTES % 1000
SIZE = SEGMENT_HEADER_BYTES + FRAMES
SECOND = 1_000_000


def facts(
    count: int = 6, *, claims: dict[str, int] | None = None, open_segment: bool = True, **given: Any
) -> RetentionFacts:
    """Facts of a log: segments of ten records, started ten seconds after each other; the clock shows second 100."""
    sealed = tuple(
        SegmentRecord(
            number=n + 1,
            state=SegmentState.SEALED,
            start_position=n * FRAMES,
            end_position=(n + 1) * FRAMES,
            first_lsn=n * 10 + 1,
            last_lsn=n * 10 + 10,
            records=10,
            created_us=n * 10 * SECOND,
        )
        for n in range(count)
    )
    usual: dict[str, Any] = {
        "sealed": sealed,
        "begun_us": count * 10 * SECOND if open_segment else None,
        "open_bytes": SIZE if open_segment else 0,
        "open_records": 10 if open_segment else 0,
        "claims": tuple(
            ClaimFact(name=n, state="live", first_lsn=f, owner=None, lease_until_us=0)
            for n, f in (claims or {}).items()
        ),
        "bound_lsn": 1000,
        "now_us": 100 * SECOND,
    }
    return RetentionFacts(**{**usual, **given})


@pytest.mark.parametrize(
    ("limits", "dropped", "reasons"),
    [
        (Retention(), 0, ()),
        (Retention(age_s=100), 0, ()),
        (Retention(age_s=75), 2, ("age",)),
        (Retention(age_s=1), 6, ("age",)),
        (Retention(bytes_max=7 * SIZE), 0, ()),
        (Retention(bytes_max=7 * SIZE - 1), 1, ("bytes",)),
        (Retention(bytes_max=1), 6, ("bytes",)),
        (Retention(records_max=70), 0, ()),
        (Retention(records_max=69), 1, ("records",)),
        (Retention(records_max=1), 6, ("records",)),
        (Retention(hard_bytes_max=3 * SIZE), 4, ("hard cap",)),
        (Retention(age_s=75, records_max=35), 4, ("age", "records")),
        (Retention(age_s=75, records_max=65), 2, ("age", "records")),
        (Retention(below_claims=True), 0, ()),
    ],
    ids=str,
)
def test_every_limit_alone_and_together(limits: Retention, dropped: int, reasons: tuple[str, ...]) -> None:
    """Plan each limit at its edge, and two together: any one is enough, whole segments go, and why is said."""
    plan = plan_retention(limits, facts())
    assert (len(plan.segments), plan.up_to_lsn, plan.reasons) == (dropped, dropped * 10, reasons)
    assert plan.dropped_claims == plan.kept_by == ()


def test_the_newest_segment_with_a_record_stays() -> None:
    """Plan with limits that ask for everything: the newest segment stays, sealed or not."""
    everything = Retention(age_s=0.1, bytes_max=1, records_max=1, hard_bytes_max=1)
    assert len(plan_retention(everything, facts()).segments) == 6
    assert len(plan_retention(everything, facts(open_segment=False)).segments) == 5
    assert plan_retention(everything, facts(1, open_segment=False)).segments == ()
    assert plan_retention(everything, facts(0, open_segment=False)).segments == ()


@pytest.mark.parametrize(
    ("claims", "hard", "dropped", "lost", "kept_by"),
    [
        ({"slow": 25}, None, 2, (), ("claim slow",)),
        ({"slow": 25}, 6 * SIZE, 2, (), ("claim slow",)),
        ({"slow": 25}, 4 * SIZE, 3, ("slow",), ()),
        ({"slow": 25, "fast": 61}, 3 * SIZE, 4, ("slow",), ()),
        ({"slow": 25, "slower": 1}, None, 0, (), ("claim slower",)),
        ({"slow": 25, "slower": 1}, 6 * SIZE, 2, ("slower",), ("claim slow",)),
        ({"slow": 25, "slower": 1}, 4 * SIZE, 3, ("slower", "slow"), ()),
        ({"fast": 61}, None, 6, (), ()),
    ],
    ids=str,
)
def test_claims_and_the_hard_cap(
    claims: dict[str, int], hard: int | None, dropped: int, lost: tuple[str, ...], kept_by: tuple[str, ...]
) -> None:
    """Plan with claims: one is enough to keep a segment under the hard cap; over it just those in the way go."""
    limits = Retention(records_max=10 if hard is None or kept_by else None, hard_bytes_max=hard)
    plan = plan_retention(limits, facts(claims=claims))
    assert (len(plan.segments), plan.dropped_claims, plan.kept_by) == (dropped, lost, kept_by)


def test_plan_below_the_slowest_claim() -> None:
    """Plan below_claims: records that all claims have passed go, none without a claim, and no claim is lost."""
    for slow, fast in itertools.product((1, 10, 11, 25, 61), (11, 61)):
        plan = plan_retention(Retention(below_claims=True), facts(claims={"slow": slow, "fast": fast}))
        assert plan.up_to_lsn == (min(slow, fast) - 1) // 10 * 10
        assert plan.dropped_claims == plan.kept_by == () and plan.reasons == (
            ("claims",) if plan.segments else ()
        )


def test_records_of_a_state_stay_over_the_cap() -> None:
    """Plan over the hard cap with a snapshot, or a durable LSN, in the middle: nothing above it goes, as reported."""
    plan = plan_retention(Retention(hard_bytes_max=1), facts(bound_lsn=39))
    assert (plan.up_to_lsn, plan.kept_by) == (30, ("state",))


@pytest.mark.parametrize(
    ("begun_s", "age_s", "dropped"),
    [
        ((0, 10, 0), 85, 2),  # set back: the later time of a segment and those before it counts
        ((0, 10, 0), 95, 0),
        ((50, 0, 1), 45, 2),
        ((50, 0, 1), 55, 0),
        ((1e6, 1e6, 1e6), 15, 3),  # the clock was ahead: they began when the log was opened, at second 80
        ((1e6, 1e6, 1e6), 25, 0),
        ((0, 1e6, 81), 15, 3),
    ],
)
def test_ages_of_segments_that_a_wrong_clock_stamped(
    begun_s: tuple[float, ...], age_s: float, dropped: int
) -> None:
    """Plan age with segments started by a clock ahead or behind: no time counts that has not passed."""
    made = facts(3, opened_us=80 * SECOND, new_from=4)
    sealed = tuple(
        segment._replace(created_us=int(at * SECOND))
        for segment, at in zip(made.sealed, begun_s, strict=True)
    )
    given = facts(3, sealed=sealed, opened_us=80 * SECOND, new_from=4, begun_us=80 * SECOND)
    plan = plan_retention(Retention(age_s=age_s), given)
    assert len(plan.segments) == dropped


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_step_of_the_clock_changes_no_age(step_s: int) -> None:
    """Set the clock an hour on or back, then right: an event each time, ages grow by the time that has passed alone."""
    began_us, passed_s, set_s = wall_us(), [0], [0]
    seen: list[float] = []
    with memory_log() as log:
        log.events.add_listener(
            lambda name, about: seen.append(about["ahead_s"]) if name == "walkit.retention.clock" else None
        )
        segment_set(log).time = PassedTime(
            lambda: began_us + (passed_s[0] + set_s[0]) * SECOND, lambda: passed_s[0] * SECOND
        )
        for passed, is_set, old in (
            (0, 0, 0),
            (50, step_s, 0),
            (99, step_s, 0),
            (101, step_s, 40),
            (149, 0, 40),
            (151, 0, 80),
        ):
            passed_s[0], set_s[0] = passed, is_set
            if passed in (0, 50):
                log.append_many([bytes(7000)] * 40)
            log.wait_idle()
            log.enforce_retention(Retention(age_s=100))
            assert old - 16 < log.first_lsn <= old + 1, passed
    assert seen == [step_s, 0.0]


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_segments_of_a_wrong_clock_are_one_event(step_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write by a right clock, by one ahead or behind, and open by a right one; enforce ages twice: one event."""
    storage, real_ns, seen = CrashingStorage(), time.time_ns, list[float]()
    for set_s in (0, step_s):
        monkeypatch.setattr(time, "time_ns", lambda set_s=set_s: real_ns() + set_s * 10**9)
        with walkit.open(storage=storage, options=tiny()) as log:
            log.append_many([bytes(7000)] * 40)
    monkeypatch.setattr(time, "time_ns", real_ns)
    with walkit.open(storage=storage, options=tiny()) as log:
        log.events.add_listener(
            lambda name, about: seen.append(about["ahead_s"]) if "clock" in name else None
        )
        for _ in range(2):
            assert log.enforce_retention(Retention(age_s=1800)).segments == 0
    assert seen == [pytest.approx(step_s, abs=60)]


@pytest.mark.parametrize(
    "given",
    [
        {"age_s": 0}, {"age_s": "1"}, {"age_s": True}, {"age_s": float("nan")}, {"bytes_max": 0}, {"bytes_max": 1.5},
        {"records_max": -1}, {"hard_bytes_max": True}, {"below_claims": 1}, {"bytes_max": 10, "hard_bytes_max": 9},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_limits(given: dict[str, Any]) -> None:
    """Make a Retention with a wrong limit: an OptionsError that names it."""
    with pytest.raises(OptionsError) as refused:
        Retention(**given)
    assert refused.value.option in given


def test_a_log_keeps_itself_small() -> None:
    """Append to a log with a limit of records: after each seal the oldest segments go, on the maintenance thread."""
    seen: list[tuple[str, dict[str, Any]]] = []
    options = tiny(retention=Retention(records_max=20))
    with walkit.open(
        storage=CrashingStorage(), options=options, events=lambda n, a: seen.append((n, a))
    ) as log:
        for _ in range(10):
            log.append_many([bytes(7000)] * 10)
            log.wait_idle()
        assert log.acked_lsn == 100 and 80 < log.first_lsn <= 100 - 8
        assert lsns(log.read()) == list(range(log.first_lsn, 101))
        assert len(log.parts.manifest_store.current.sealed) <= 2

    def drops() -> list[dict[str, Any]]:
        return [a for n, a in seen if n == "walkit.retention.drop"]

    wait_until(lambda: sum(a["segments"] for a in drops()) == (log.first_lsn - 1) // 8, "the events")
    assert all(a["reasons"] == ("records",) for a in drops())


def test_by_call_with_progress_and_report() -> None:
    """Enforce limits by hand: the report, the progress and the log agree; again changes nothing."""
    with memory_log() as log:
        log.append_many([bytes(7000)] * 80)
        assert log.enforce_retention().segments == 0
        steps: list[tuple[int, int]] = []
        report = log.enforce_retention(Retention(records_max=30), progress=lambda *step: steps.append(step))
        assert (report.low_watermark, report.records, report.reasons) == (56, 56, ("records",))
        assert report.segments == 7 and steps == [(n, 7) for n in range(1, 8)]
        assert report.size_bytes > 56 * 7000 and log.first_lsn == 57
        assert "records in them" in report._repr_html_()
        again = log.enforce_retention(Retention(records_max=30))
        assert (again.segments, again.low_watermark, again.reasons) == (0, 56, ())
    with pytest.raises(LogClosedError):
        log.enforce_retention()


def test_age_is_checked_periodically() -> None:
    """Ask how often age is looked at; enforce with a clock that has moved on: old segments go, except the newest."""
    assert period_s(Retention(bytes_max=1)) is None
    assert [period_s(Retention(age_s=s)) for s in (0.5, 100, 1e6)] == [1.0, 10.0, 60.0]
    with memory_log() as log:
        log.append_many([bytes(7000)] * 80)
        log.wait_idle()  # full segments are sealed beside the path of a record
        now_us = log.parts.manifest_store.current.sealed[-1].created_us + 3600 * SECOND
        assert log.parts.retention.enforce(Retention(age_s=7200), now_us=now_us).segments == 0
        report = log.parts.retention.enforce(Retention(age_s=1800), now_us=now_us)
        assert report.reasons == ("age",) and log.first_lsn > 60
        assert log.read() is not None and log.append(b"goes on").first_lsn == 81


def test_the_upkeep_thread_looks_at_age_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the period and age: without a further append the maintenance thread drops old segments."""
    monkeypatch.setattr("walkit.log.retention.period_s", lambda _: 0.01)
    with memory_log(tiny(retention=Retention(age_s=0.02))) as log:
        log.append_many([bytes(7000)] * 40)
        wait_until(lambda: log.first_lsn > 30, "all but the newest segment is dropped")
        assert not log.parts.manifest_store.current.sealed and log.acked_lsn == 40


def test_a_slow_consumer_is_dropped_with_an_event_and_gets_a_gap() -> None:
    """Outrun a claim past the hard cap: its event, a GapError from it and its reader; another one is kept."""
    seen: list[tuple[str, dict[str, Any]]] = []
    storage = CrashingStorage()
    limits = Retention(records_max=20, hard_bytes_max=8 * 64 * 1024)
    with walkit.open(
        storage=storage, options=tiny(retention=limits), events=lambda n, a: seen.append((n, a))
    ) as log:
        slow, fast = log.hold("slow", 1), log.hold("fast", 1)
        followed = log.follow(1, timeout=0)
        assert next(followed, None) is None
        for n in range(4):
            log.append_many([bytes(7000)] * 10)
            log.wait_idle()
            assert log.first_lsn == 1, "a claim is enough under the hard cap"
            fast.advance(n * 10 + 1)
        for n in range(4, 12):
            log.append_many([bytes(7000)] * 10)
            log.wait_idle()
            fast.advance(n * 10 + 1)
        wait_until(lambda: "walkit.claim.drop" in [n for n, _ in seen], "the event")
        assert [a["name"] for n, a in seen if n == "walkit.claim.drop"] == ["slow"]
        assert log.first_lsn > 60
        with pytest.raises(GapError) as gap:
            slow.advance(50)
        assert (gap.value.wanted, gap.value.oldest) == (1, log.first_lsn)
        assert (slow.state, fast.state) == ("lost", "held")
        with pytest.raises(GapError):
            log.read(1)
        slow.release()
        assert [c.name for c in log.claims()] == ["fast"]
        again = log.hold("slow", log.first_lsn)
        again.advance(log.first_lsn + 1)
    with walkit.open(storage=storage, options=tiny()) as log:
        assert [(c.name, c.state) for c in log.claims()] == [("fast", "live"), ("slow", "live")]


def test_a_store_loses_nothing_to_any_limit() -> None:
    """Give a Store the smallest limits: nothing that its newest snapshot does not hold goes; reopened, all is there."""
    storage = CrashingStorage()
    options = walkit.LogOptions(**{**_of(SMALL), "retention": Retention(records_max=1, hard_bytes_max=1)})
    with walkit.Store.open(storage=storage, options=options) as store:
        for i in range(40):
            store.put(b"%d" % i, bytes(7000))
        report = store.log.enforce_retention()
        assert (report.segments, report.kept_by, store.log.first_lsn) == (0, ("state",), 1)
        store.snapshot()
        for i in range(40, 60):
            store.put(b"%d" % i, bytes(7000))
        store.log.wait_idle()
        assert 1 < store.log.first_lsn <= 41
    with walkit.Store.open(storage=storage, options=options) as store:
        assert set(store) == {b"%d" % i for i in range(60)}


def _of(options: walkit.LogOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("segment_bytes", "frame_bytes_max", "idle_marker_ms")}


@pytest.mark.parametrize("operation", ["create", "write", "sync", "replace", "remove", "sync_directory"])
def test_a_failure_at_every_step_of_retention(operation: Any) -> None:
    """Fail each operation of a drop past a claim: an error, the log goes on; done again, it ends as it would have."""
    for nth in (1, 2):
        seen: list[str] = []
        storage, log = faulty_log()
        log.events.add_listener(lambda name, _, seen=seen: seen.append(name))  # type: ignore[misc]
        with log:
            log.append_many([bytes(7000)] * 40)
            log.wait_idle()
            hold = log.hold("slow", 9)
            fault = storage.fail(operation, "*", nth=nth)
            limits = Retention(hard_bytes_max=3 * 64 * 1024)
            try:
                log.enforce_retention(limits)
            except StorageError:
                if log.first_lsn == 1:
                    hold.advance(10)
            fault.cancel()
            log.append(b"goes on")
            log.enforce_retention(limits)
            assert log.first_lsn == 18 and not [c for c in log.claims() if c.counts]
            assert seen.count("walkit.claim.drop") == 1, "it is told once, whatever fails"
            with pytest.raises(GapError):
                hold.advance(11)
            named = {s.name for s in log.parts.manifest_store.current.segments}
            assert {n for n in storage.names() if n.endswith(".segment")} == named


def test_the_background_survives_a_failure() -> None:
    """Fail the removal of files on the maintenance thread: an event, and the next seal makes up for it."""
    seen: list[str] = []
    storage, first = faulty_log()
    first.close()
    options = tiny(retention=Retention(records_max=10))
    with walkit.open(storage=storage, options=options, events=lambda n, _: seen.append(n)) as log:
        storage.fail("remove", "*.segment")
        for _ in range(4):
            log.append_many([bytes(7000)] * 10)
            log.wait_idle()
        wait_until(lambda: "walkit.maintenance.fail" in seen, "the event")
        assert seen.count("walkit.maintenance.fail") == 1
        named = {s.name for s in log.parts.manifest_store.current.segments}
        assert {n for n in storage.names() if n.endswith(".segment")} == named and len(named) <= 4


def test_a_callback_of_an_event_may_trim() -> None:
    """Trim in the callback of a seal, whose event a thread of its own sends: neither waits for the other."""
    logs: list[walkit.WriteAheadLog] = []

    def on_event(name: str, attributes: dict[str, Any]) -> None:
        if name == "walkit.segment.seal" and logs:
            logs[0].trim(8)

    with walkit.open(storage=CrashingStorage(), options=tiny(), events=on_event) as log:
        logs.append(log)
        log.append_many([bytes(7000)] * 40)
        log.wait_idle()
        wait_until(lambda: log.first_lsn == 9, "the trim of the callback")
        logs.clear()
