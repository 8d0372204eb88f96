"""Exploring: every scenario keeps every rule, runs alike each time, ends on request, and reports its findings."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from pathlib import Path

import pytest

import walkit
from walkit.crashlab import (
    PROFILES,
    RULES,
    SCENARIOS,
    Exploration,
    Profile,
    Scenario,
    Script,
    explore,
    museum,
    replay,
)
from walkit.errors import OptionsError

BUDGET = 8
CURSORS_BUDGET = 16
"""Fewer states miss a cursor that is moved for the first time and is absent after the crash."""

VARIANTS = frozenset(
    (
        "rotation-zstd",
        "rotation-direct",
        "checkpoint-every",
        "cursors-unsynced",
        "retention-records",
        "retention-age",
        "preview",
        "faults-unsynced",
        "faults-interval",
        "faults-parallel",
        "faults-completion",
        "faults-store-by-itself",
        "faults-ways",
        "faults-repair",
        "faults-salvage",
        "faults-retention",
        "faults-import",
        "promotion",
    )
)
"""Histories that another scenario has with other options."""


@pytest.mark.parametrize(
    "name",
    # Slow: what another scenario does too, by other options. Two thousand states of each are below.
    [pytest.param(name, marks=[pytest.mark.slow] if name in VARIANTS else []) for name in SCENARIOS],
)
def test_no_state_breaks_a_rule(name: str) -> None:
    """Explore a scenario with a small budget under the hardest profile: every state keeps every rule."""
    budget = CURSORS_BUDGET if name == "cursors" else BUDGET
    found = explore(name, budget=budget, profile="contract")
    assert found.ok, "\n".join(map(str, found.violations))
    assert found.distinct >= budget and found.states >= found.distinct
    assert len(found.points) > 20 and found.durability == SCENARIOS[name].options.durability
    assert all(1 <= point.explored <= point.possible for point in found.points if point.explored)


FAULTS = [name for name in SCENARIOS if name.startswith("faults")]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # Of the variants, which the exploration above leaves out; it plays seed 0 of all others.
        *((name, 0) for name in FAULTS if name in VARIANTS),
        # Slow: two seconds for each seed of all histories.
        *(pytest.param(name, range(1, 200), marks=pytest.mark.slow) for name in FAULTS),
    ],
    ids=str,
)
def test_no_failure_loses_what_was_promised(name: str, seed: int | range) -> None:
    """Fail operations that seeds draw, at the speed of the log: errors are typed, nothing is lost or left open."""
    for each in (seed,) if isinstance(seed, int) else seed:
        failure = SCENARIOS[name].play(each, record=False).failure
        assert failure is None, f"seed {each}: {failure!r}"


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_state_breaks_a_rule_at_length(name: str, profile: str) -> None:
    """Explore a scenario under each profile, two thousand distinct states of it."""
    found = explore(name, budget=2000, profile=profile, seed=1)
    assert found.ok, "\n".join(map(str, found.violations))


def test_a_run_is_the_same_each_time() -> None:
    """Explore thrice with one seed: two have the same operations, states at each point, and judged ones."""

    def shape(found: Exploration) -> tuple[object, ...]:
        # Without the sizes: a log's random identity takes a byte more or less in the manifest.
        points = [(re.sub(r"\[.*\)", "", p.operation), p.possible, p.explored) for p in found.points]
        return (found.distinct, *points)

    # A thread that the kernel wakes late may miss its turn, so that not every run on a busy machine is the same.
    shapes = Counter(shape(explore("append", budget=10, seed=3)) for _ in range(3))
    assert shapes.most_common(1)[0][1] >= 2


def test_a_seed_is_a_race() -> None:
    """Run a scenario with maintenance beside the writer four times under each of two seeds: most runs repeat."""

    def order(seed: int) -> tuple[str, ...]:
        points = SCENARIOS["rotation"].play(seed).points
        return tuple(re.sub(r"\[.*\)", "", p.operation) for p in points)

    # A thread that the kernel wakes late may miss its turn, so that not every run on a busy machine is the same.
    commonest = [Counter(order(seed) for _ in range(4)).most_common(1)[0] for seed in range(2)]
    assert all(count >= 2 for _, count in commonest)
    assert len({found for found, _ in commonest}) == 2


def test_a_small_scenario_is_explored_whole() -> None:
    """Explore with a budget above the number of states: every point is whole, and the coverage is all."""

    def one_record(script: Script) -> None:
        with script.open() as log:
            script.append(log, 10)

    found = explore(
        Scenario("one record", "one record is appended", one_record), budget=5000, profile="pages"
    )
    assert found.ok and found.coverage == 1.0 and found.whole_points == len(found.points)
    assert found.states == found.possible > found.distinct


def test_a_scenario_that_misses_what_it_covers_fails() -> None:
    """Explore a scenario that never trims, but declares a limited trim: not ok, and it names the missed coverage."""

    def one_record(script: Script) -> None:
        with script.open() as log:
            script.append(log, 10)

    scenario = Scenario("one record", "one record is appended", one_record, covers=("append", "claim limits"))
    found = explore(scenario, budget=8)
    assert not found.ok and not found.violations and found.missed == ("claim limits",)
    assert found.covered["append"] > 0 and found.covered["claim limits"] == 0
    assert "no state was cut during: claim limits" in found.verdict


def test_a_seal_fails_and_hangs() -> None:
    """Run the scenario of unsynced segments under a seed that draws another race: a sync fails, and one hangs."""
    seen = {name for point in SCENARIOS["faults-unsynced"].play(7).points for name in point.during}
    assert {"seal fails", "sync hangs"} <= seen


def test_a_violation_is_small_and_is_made_again(tmp_path: Path) -> None:
    """Find one in a mutant: it lists exactly the losses, replays alone, and its files verify as reported."""
    mutant = museum.MUTANTS["promise-first"]
    with mutant.applied():
        found = explore(mutant.scenario, budget=24, seed=2)
        violation = found.violations[0]
        again = replay(mutant.scenario, violation.point, violation.state, seed=2)
        assert again is not None and (again.rule, again.text[:40]) == (violation.rule, violation.text[:40])
    copied = pickle.loads(pickle.dumps(found)).violations[0]
    assert copied.image.names() == violation.image.names()
    assert not found.ok and found.broken > 0 and found.mutant == mutant.name
    assert violation.rule in RULES and len(violation.lost) <= 2
    assert "museum.MUTANTS" in found.reproducer and str(violation.point) in found.reproducer
    namespace: dict[str, object] = {}
    exec(found.reproducer, namespace)  # noqa: S102 - the very text that a reader pastes
    folder = violation.save(tmp_path / "cut")
    assert not walkit.verify(folder).ok
    with pytest.raises(FileExistsError):
        violation.save(folder)


def test_a_report_is_text_html_and_json() -> None:
    """Look at the report of a good and a bad exploration in each form: verdict, counts and reproducer are there."""
    good = explore("append", budget=6)
    with museum.MUTANTS["acknowledged-unsynced"].applied():
        bad = explore("append", budget=6)
    assert f"ok: none of {good.distinct} distinct states" in good.text() and "ok: none" in good._repr_html_()
    assert "break a rule" in bad.text() and "walkit.crashlab.replay(" in bad._repr_html_()
    plain = json.loads(json.dumps(bad.to_dict()))
    assert plain["ok"] is False and plain["violations"][0]["rule"] in RULES
    assert json.loads(json.dumps(good.to_dict()))["violations"] == [] and good.reproducer == ""


def test_progress_and_an_interrupt() -> None:
    """Watch the progress, and interrupt it: the findings until then come back, marked as ended early."""
    seen: list[tuple[int, int]] = []
    whole = explore("append", budget=15, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n + 1, whole.distinct) for n in range(whole.distinct)] and not whole.interrupted

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    part = explore("append", budget=15, progress=stop)
    assert part.interrupted and part.distinct == 5 and "Interrupted" in part.text()
    assert part.verdict.startswith("so far none of 5 distinct states")


def test_a_scenario_that_fails_is_a_violation() -> None:
    """Raise an unexpected error in a scenario: rule "runs" is broken, and the states before are judged as well."""

    def closes_too_soon(script: Script) -> None:
        with script.open() as log:
            script.append(log, 10)
            log.close()
            script.append(log, 10)

    scenario = Scenario("closed", "an append after the log was closed", closes_too_soon)
    found = explore(scenario, budget=10)
    assert not found.ok and found.failed and not found.broken and found.distinct >= 10
    assert "did not come to its end; none of" in found.verdict and found.violations[0].rule == "runs"
    again = replay(scenario, found.violations[0].point, found.violations[0].state)
    assert again is not None and again.rule == "runs" and "LogClosedError" in again.text


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"scenario": "nothing"}, "scenario"),
        ({"profile": "fat32"}, "profile"),
        ({"budget": 0}, "budget"),
        ({"budget": 2.5}, "budget"),
        ({"progress": 3}, "progress"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, object], option: str) -> None:
    """Pass unknown names: OptionsError, which names the argument."""
    with pytest.raises(OptionsError) as refused:
        explore(**wrong)  # type: ignore[arg-type]
    assert refused.value.option == option


def test_replaying_what_is_not_there_is_refused() -> None:
    """Ask for a point and a state beyond the run's: OptionsError; one that is there and good gives None."""
    with pytest.raises(OptionsError, match="point="):
        replay("append", point=10_000, state=0)
    with pytest.raises(OptionsError, match="state="):
        replay("append", point=3, state=1 << 90)
    assert replay("append", point=3, state=0) is None


def test_a_profile_of_ones_own() -> None:
    """Explore under a profile that is made here, in which nothing tears: it has fewer states than with tears."""
    calm = Profile(name="calm", text="nothing tears", tears="no", names="issued", size_first=False)
    found = explore("append", budget=5, profile=calm)
    assert isinstance(found, Exploration) and found.ok and found.profile == "calm"
    assert found.possible < explore("append", budget=5, profile="contract").possible
