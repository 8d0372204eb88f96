"""The seeded world: it holds its rules, it repeats, it finds mutants of the cores, and it shrinks what it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.simulate.world_mutants import MUTANTS, Mutant
from tests.support.examples import examples
from walkit.cli import main
from walkit.errors import OptionsError
from walkit.simulate import world_counts
from walkit.simulate.world import Outcome, run_schedule
from walkit.simulate.world_counts import COVERAGE, RARE
from walkit.simulate.world_faults import CHAOS_MS, KINDS, LINK_KINDS, NODES, Schedule, draw_faults
from walkit.simulate.world_report import WorldReport, explore
from walkit.simulate.world_rules import RULES

SCHEDULES = examples(12)
"""3; 12 for a release, beside the 10,000 of the slow test."""
SHORT_MS = 3_000.0
"""So long there are faults in the schedules that need not be whole."""
EARLY = MUTANTS["acknowledged before it is on the disk"]
SKIPPING = MUTANTS["an error counted as progress"]
CHEAP = (
    "a session that never keeps frames",
    "a claim that is one record ahead",
    "acknowledged in the order of completion",
    "the rest of a full load skipped",
    "a stale session believed by the reader",
    "loads applied in the order in which they come",
    "a trim that overlooks claims",
    "no second look after a swap that others have won",
    "a renewal that takes a conflict for success",
    "files deleted before the swap that stops naming them",
    "a fenced writer that replaces the bulk of the newer one",
    "bulks deleted as far as the log is acknowledged",
)
"""These are found soonest: mutants of both protocols, of the log and of a log on object storage."""


def first_failure(mutant: Mutant, schedules: int = 1, chaos_ms: float = SHORT_MS) -> Outcome | None:
    """Return the first schedule that breaks a rule with this mutant installed."""
    with mutant.installed():
        seeds = range(mutant.seed, mutant.seed + schedules)
        outcomes = (run_schedule(Schedule(seed=seed, chaos_ms=chaos_ms)) for seed in seeds)
        return next((outcome for outcome in outcomes if outcome.failed), None)


@pytest.fixture(scope="module")
def report() -> WorldReport:
    """The schedules of this test run, each run once."""
    return explore(0, SCHEDULES)


def test_every_rule_holds_in_each_schedule(report: WorldReport) -> None:
    """Run schedules of faults: no rule is broken at any step, and everything becomes equal after them."""
    assert not report.failed, report.text()
    assert report.schedules == SCHEDULES


def test_the_schedules_reach_what_they_are_there_for(report: WorldReport) -> None:
    """Count the events: deltas, loads, trims and recoveries, and each kind of fault at each target."""
    assert set(report.counts) >= set(COVERAGE) and set(RARE) < set(COVERAGE)
    assert min(report.counts["delta"], report.counts["load"], report.records) > 5 * SCHEDULES
    assert report.counts["walkit.segment.trim"] > SCHEDULES and report.counts["walkit.recovery.finish"] > 0
    faults = [fault for seed in range(100) for fault in draw_faults(seed)]
    assert {fault.kind for fault in faults} == set(KINDS)
    links = {fault.target for fault in faults if fault.kind in LINK_KINDS}
    assert len(links) == 2 * (len(NODES) - 2)  # no link between the two writers of a log on object storage
    assert {fault.target for fault in faults if fault.kind == "crash"} == set(NODES)


def test_a_run_that_never_shows_something_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one schedule be enough to have to show all: what it never did is named in each form, and it fails."""
    monkeypatch.setattr(world_counts, "SCHEDULES_DEFAULT", 1)
    report = explore(2)
    assert report.failed and not report.failures
    assert report.missed == tuple(n for n in COVERAGE if not report.counts[n] and n not in RARE)
    for shown in (report.text(), report._repr_html_()):
        assert f"never happened: {'; '.join(report.missed)}" in shown
    facts = report.to_dict()
    assert facts["missed"] == list(report.missed) and facts["counts"]["delta"] > 0
    assert not explore(2, keep=(), chaos_ms=SHORT_MS / 6).failed


def test_one_seed_gives_the_same_run_in_another_process() -> None:
    """Run a seed here and in a process with another hash seed: equal reports; another seed has another digest."""
    code = (
        "from walkit.simulate.world_report import explore; import json; "
        f"r = explore(8, chaos_ms={SHORT_MS / 3}).to_dict(); r.pop('real_s'); print(json.dumps(r))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment
    )
    here = explore(8, chaos_ms=SHORT_MS / 3).to_dict()
    here.pop("real_s")
    assert json.loads(there.stdout) == here
    assert run_schedule(Schedule(seed=9, chaos_ms=SHORT_MS / 3)).digest != here["digest"]


@pytest.mark.parametrize("name", CHEAP)
def test_the_world_finds_each_mutant(name: str) -> None:
    """Change one line of a core, a shell or an object log: a rule is broken in the first schedule."""
    found = first_failure(MUTANTS[name])
    assert found is not None, f"{name} was not found"
    assert found.rule in RULES


# slow: each takes up to two hundred schedules; the tests of the cores find most of these mutants, too
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - {*CHEAP, EARLY.name, SKIPPING.name}))
def test_the_world_finds_each_rare_mutant(name: str) -> None:
    """Change one line of a core or a shell: a rule is broken within 200 schedules."""
    assert first_failure(MUTANTS[name], 200, CHAOS_MS) is not None, f"{name} was not found"


def test_a_failing_schedule_is_shrunk_to_what_it_needs() -> None:
    """Let a range be skipped in loads that fail: the few faults that are left break the same rule again."""
    with SKIPPING.installed():
        (failure,) = explore(SKIPPING.seed, chaos_ms=SHORT_MS).failures
        again = run_schedule(failure.shortest.schedule)
    found, shortest = failure.found, failure.shortest
    assert shortest.rule == found.rule == again.rule
    assert (again.text, again.digest) == (shortest.text, shortest.digest)
    assert len(shortest.schedule.faults()) < len(found.schedule.faults())
    assert any(fault.kind == "storage" for fault in shortest.schedule.faults())


def test_the_printed_command_breaks_the_same_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """Acknowledge too early: the report's command exits with 1 and says the same, and with 0 without the mutant."""
    with EARLY.installed():
        whole = explore(EARLY.seed, chaos_ms=SHORT_MS)
        shortest = whole.failures[0].shortest
        command = shortest.schedule.command.split()[1:]
        assert main(command) == 1
    printed = capsys.readouterr().out
    assert "breaks 'acknowledged'" in printed and f"  {shortest.text}" in printed.splitlines()
    assert main(command) == 0
    assert whole.failed
    assert shortest.schedule.command in whole.text()
    assert shortest.schedule.command in whole._repr_html_()


def test_the_command_names_exactly_the_schedule() -> None:
    """Write schedules as commands: the seed alone, with what is kept, without any fault, and with a shorter time."""
    assert Schedule(seed=4).command == "walkit simulate world --seed 4"
    assert Schedule(seed=4, keep=(1, 3)).command.endswith("--seed 4 --keep 1,3")
    assert Schedule(seed=4, keep=(), chaos_ms=750).command.endswith("--keep none --chaos-ms 750")
    kept = Schedule(seed=4, keep=(1, 3)).faults()
    assert [fault.number for fault in kept] == [1, 3]
    assert all(fault in draw_faults(4) for fault in kept)


def test_a_world_without_faults_keeps_its_connections() -> None:
    """Keep no fault of a seed: everyone has one connection's worth of messages, and everything is equal at the end."""
    outcome = run_schedule(Schedule(seed=9, keep=(), chaos_ms=SHORT_MS), sample_ms=50)
    assert not outcome.failed
    assert not {"replica: streaming to detached", "walkit.replica.replace", "load again"} & set(
        outcome.counts
    )
    begun = (outcome.counts.get(f"session: waiting to {state}", 0) for state in ("streaming", "catching up"))
    assert sum(begun) == 2
    last = outcome.samples[-1]
    assert not last.down
    assert outcome.records > 20
    assert min(last.lsns.values()) > 0


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"schedules": 0}, {"chaos_ms": 0.0}, {"chaos_ms": CHAOS_MS + 1}]
)
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """Ask for schedules with a number out of its bounds: an OptionsError names it before anything runs."""
    with pytest.raises(OptionsError) as caught:
        explore(**wrong)
    assert caught.value.option == next(iter(wrong))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_rule_holds_in_10_000_schedules() -> None:
    """Run 10,000 schedules of other seeds: no rule is broken; 1,000 virtual seconds take 60 of a processor at most."""
    began_s = time.process_time()
    report = explore(1_000, 10_000)
    took_s = time.process_time() - began_s
    assert not report.failed, report.text()
    assert took_s <= report.virtual_s * 60 / 1000
