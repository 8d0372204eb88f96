"""Exploring crash states: every moment of a scenario, every state that a power cut may leave then, every rule.

The approach is that of ALICE (Pillai et al., OSDI 2014) and CrashMonkey (Mohan et al., OSDI 2018), over the page cache
model instead of a kernel: states are counted, explored whole if the budget allows, and drawn by a seed elsewhere.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from walkit._internal.arguments import check_progress, check_whole
from walkit._internal.progress import progress_bar
from walkit.crashlab.coverage import names_in, seen_in
from walkit.crashlab.crash_rules import BrokenRuleError, Oracle
from walkit.crashlab.crash_states import CrashStates
from walkit.crashlab.exploration import Exploration, PointResult, Violation
from walkit.crashlab.mutant import applied_mutant
from walkit.crashlab.profiles import Profile, profile_of
from walkit.crashlab.recording import CrashPoint, RecordingStorage
from walkit.crashlab.scenarios import Scenario, scenario_of

BUDGET = 2000
"""States that are judged by default: some seconds."""
VIOLATIONS_MAX = 10
"""So many violations are kept, and made small."""
RARE, RARE_STATES = 6, 4
"""One point in so many of the budget is drawn for the changes of names that wait there, and has so many states."""
CANDIDATES, CANDIDATES_MIN = 10, 12
"""For each state of the budget so many are made, and for each point so many at least: the equal ones count once."""
SMALLER_MAX = 300
"""At most so many states are judged to make one violation small."""

Progress = Callable[[int, int], object]


def explore(
    scenario: str | Scenario = "append",
    budget: int = BUDGET,
    seed: int = 0,
    profile: str | Profile = "ext4-ordered",
    *,
    progress: bool | Progress = False,
) -> Exploration:
    """Run a scenario, cut the power at each of its points, and judge the states that this may leave.

    `scenario` is one of `SCENARIOS`, or your own; `profile` defines the possible losses (`PROFILES`). Some `budget`
    distinct states are judged: points with few new states whole, of the others corners and states drawn by `seed`. If
    there are more points than the budget has states, points are drawn: first one for each thing that the scenario
    covers, and for the rarest sets of names that wait for a sync, as a name that arrives before another breaks most.
    `progress` is True for a bar, or called with (states judged, states to judge). Ctrl-C ends it early and returns the
    result so far. Everything is in memory. OptionsError.
    """
    scenario, profile = scenario_of(scenario), profile_of(profile)
    check_whole(budget, "budget")
    if not isinstance(progress, bool):
        check_progress(progress, "(states judged, states to judge)")
    return _Explorer(scenario, profile, seed, budget).run(progress)


def replay(
    scenario: str | Scenario,
    point: int,
    state: int,
    profile: str | Profile = "ext4-ordered",
    seed: int = 0,
) -> Violation | None:
    """Run a scenario and judge one state of one point, as a `Violation` names them; None if no rule is broken.

    OptionsError if there is no such point or state: then the run was another one, as in scenarios with threads.
    """
    scenario, profile = scenario_of(scenario), profile_of(profile)
    played = scenario.play(seed)
    points = played.points
    check_whole(point, "point", 0, len(points) - 1)
    states = CrashStates(points[point].storage, profile)
    check_whole(state, "state", 0, states.count - 1)
    judge = _Judge(scenario, profile, seed)
    if played.failure is not None and point == len(points) - 1:
        return judge.failed(played)
    return judge.violation(points[point], states, state)


class _Judge:
    """Judges states of one run."""

    def __init__(self, scenario: Scenario, profile: Profile, seed: int) -> None:
        self.scenario, self.profile, self.seed = scenario, profile, seed
        self._oracle: Oracle = scenario.oracle()

    def broken(self, point: CrashPoint, states: CrashStates, number: int) -> BrokenRuleError | None:
        """Return the rule that a state breaks; None if it breaks none."""
        try:
            self._oracle.judge(states.image(number), point.promise)
        except BrokenRuleError as error:
            return error
        return None

    def failed(self, played: RecordingStorage) -> Violation:
        """Return the violation of a run that did not come to its end."""
        point, failure = played.points[-1], played.failure
        states = CrashStates(point.storage, self.profile)
        error = BrokenRuleError("runs", f"{type(failure).__name__}: {failure}")
        return self._make(point, states, states.count - 1, error)

    def violation(self, point: CrashPoint, states: CrashStates, number: int) -> Violation | None:
        """Return the violation of a state, as it is."""
        error = self.broken(point, states, number)
        return None if error is None else self._make(point, states, number, error)

    def smallest(
        self, point: CrashPoint, states: CrashStates, number: int, error: BrokenRuleError
    ) -> Violation:
        """Return the violation of a state that breaks the same rule with as little lost as possible."""
        left = SMALLER_MAX
        found = True
        while found:
            found = False
            for gentler in states.gentler(number):
                left -= 1
                if left < 0:
                    break
                other = self.broken(point, states, gentler)
                if other is not None and other.rule == error.rule:
                    number, error, found = gentler, other, True
                    break
        return self._make(point, states, number, error)

    def _make(self, point: CrashPoint, states: CrashStates, number: int, error: BrokenRuleError) -> Violation:
        return Violation(
            rule=error.rule,
            text=error.text,
            scenario=self.scenario.name,
            profile=self.profile.name,
            seed=self.seed,
            mutant=applied_mutant(),
            point=point.number,
            operation=point.operation,
            state=number,
            lost=states.describe(number),
            promise=point.promise,
            image=states.image(number),
        )


class _Look:
    """The states of one point to judge: their numbers, and those that a judge cannot tell apart."""

    def __init__(self, point: CrashPoint, states: CrashStates, candidates: int, seed: int) -> None:
        self.point, self.states = point, states
        self.by_digest: dict[object, list[int]] = {}
        """Numbers of the states with the same bytes; the corners come first."""
        for number in states.chosen(candidates, seed):
            self.by_digest.setdefault(states.image(number).digest(), []).append(number)
        self.explored = self.violations = 0

    def result(self) -> PointResult:
        """Return the result."""
        return PointResult(
            number=self.point.number,
            operation=self.point.operation,
            possible=self.states.count,
            explored=self.explored,
            violations=self.violations,
            during=tuple(sorted(self.point.during | seen_in(self.states.changes))),
        )


class _Explorer:
    """One exploration."""

    def __init__(self, scenario: Scenario, profile: Profile, seed: int, budget: int) -> None:
        self._scenario, self._profile, self._seed, self._budget = scenario, profile, seed, budget
        self._judge = _Judge(scenario, profile, seed)
        self._held: dict[object, str] = {}
        """The broken rule or "", by the bytes of a state and its promises."""
        self._violations: list[Violation] = []
        self._reported: set[tuple[str, int]] = set()

    def run(self, progress: bool | Progress) -> Exploration:
        """Explore, and return the findings."""
        began = time.perf_counter()
        looks: list[_Look] = []
        interrupted = False
        try:
            played = self._scenario.play(self._seed)
            points = played.points
            if played.failure is not None:
                self._violations.append(self._judge.failed(played))
            candidates = max(CANDIDATES * self._budget // max(len(points), 1), CANDIDATES_MIN)
            found = [(point, CrashStates(point.storage, self._profile)) for point in points]
            first, drawn = self._drawn(found)
            for point, states in found:
                seed = self._seed * 1_000_003 + point.number
                looks.append(_Look(point, states, candidates if point.number in drawn else 0, seed))
            self._judge_all(looks, first, progress)
        except KeyboardInterrupt:
            interrupted = True
        return Exploration(
            scenario=self._scenario.name,
            about=self._scenario.text,
            profile=self._profile.name,
            seed=self._seed,
            budget=self._budget,
            durability=self._scenario.options.durability,
            covers=self._scenario.covers,
            mutant=applied_mutant(),
            points=tuple(look.result() for look in looks),
            distinct=len(self._held),
            broken=sum(map(bool, self._held.values())),
            rules=Counter(sorted(filter(None, self._held.values()))),
            violations=tuple(self._violations),
            duration_s=time.perf_counter() - began,
            interrupted=interrupted,
        )

    def _drawn(self, found: list[tuple[CrashPoint, CrashStates]]) -> tuple[set[int], set[int]]:
        """Return the numbers of the points that are looked at, and before them of those that have more than one state.

        All of them, if the budget has a state for each.
        """
        if len(found) <= self._budget:
            return set(), {point.number for point, _ in found}
        chance = random.Random(self._seed)
        during = {point.number: point.during | seen_in(states.changes) for point, states in found}
        waiting: dict[frozenset[tuple[str, ...]], list[int]] = {}
        for point, states in found:
            waiting.setdefault(names_in(states.changes), []).append(point.number)
        rare = sorted(waiting.values(), key=lambda numbers: (len(numbers), chance.random()))
        first = {chance.choice(numbers) for numbers in rare[: self._budget // RARE]}
        drawn = first.copy()
        for name in self._scenario.covers:
            if having := [number for number, names in during.items() if name in names]:
                drawn.add(chance.choice(having))
        others = sorted(during.keys() - drawn)
        left = self._budget - len(drawn) - (RARE_STATES - 1) * len(first)
        return first, drawn | set(chance.sample(others, max(left, 0)))

    def _judge_all(self, looks: list[_Look], first: set[int], progress: bool | Progress) -> None:
        shares = _shares(_new(looks), self._budget, first)
        total, done = sum(shares), 0
        with progress_bar("crash states", total, unit="states", show=progress is True) as bar:
            for look, share in zip(looks, shares, strict=True):
                left = share
                for digest, numbers in look.by_digest.items():
                    key = (digest, look.point.promise.key)
                    if key not in self._held:
                        if not left:
                            continue
                        left -= 1
                        self._held[key] = self._broken_rule(look, numbers[0])
                        done += 1
                        bar.update(1)
                        if callable(progress):
                            progress(done, total)
                    look.violations += bool(self._held[key])
                    look.explored += len(numbers)

    def _broken_rule(self, look: _Look, number: int) -> str:
        """Judge one state, and note the first of its kind as a violation; "" if it breaks no rule."""
        error = self._judge.broken(look.point, look.states, number)
        if error is not None and (error.rule, look.point.number) not in self._reported:
            self._reported.add((error.rule, look.point.number))
            if len(self._violations) < VIOLATIONS_MAX:
                self._violations.append(self._judge.smallest(look.point, look.states, number, error))
        return "" if error is None else error.rule


def _new(looks: list[_Look]) -> list[int]:
    """Return how many states of each point are not those of a point before it, with the same promise."""
    seen: set[object] = set()
    counts = []
    for look in looks:
        keys = {(digest, look.point.promise.key) for digest in look.by_digest} - seen
        seen |= keys
        counts.append(len(keys))
    return counts


def _shares(counts: list[int], budget: int, first: set[int]) -> list[int]:
    """Return how many states of each point are judged: small points whole, the rest shared evenly; one at least.

    Those that come first have `RARE_STATES` before that. Points without a state of their own have none.
    """
    shares = [min(count, RARE_STATES) if n in first else 0 for n, count in enumerate(counts)]
    left = budget - sum(shares)
    others = sorted((n for n in range(len(counts)) if n not in first), key=lambda n: counts[n])
    for done, index in enumerate(others):
        shares[index] = max(min(counts[index], left // (len(others) - done)), min(counts[index], 1))
        left = max(left - shares[index], 0)
    return shares
