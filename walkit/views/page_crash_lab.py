"""The Crash lab page: the states that a power cut may leave of a scenario, and walkit's recovery of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from walkit._internal.html import Markup, join, red_lines, table, tag
from walkit._internal.text import counted
from walkit.crashlab.coverage import COVERAGE
from walkit.crashlab.exploration import Exploration, large
from walkit.crashlab.explore_process import Explored, ExploreWish, FoundViolation, explored_of
from walkit.crashlab.museum import MUTANTS
from walkit.crashlab.profiles import PROFILES
from walkit.crashlab.scenarios import SCENARIOS
from walkit.plots import crash_states
from walkit.views.background_jobs import Job, Jobs
from walkit.views.base import (
    RED,
    Button,
    Form,
    IntInput,
    JobBar,
    ReportView,
    Select,
    column,
    example_html,
    numbers_html,
    pn,
    scrolled,
    sentence_html,
)
from walkit.views.workspace import Workspace
from walkit.workload.process import TalkingChild

LOOK_S = 0.1
"""Time between two looks at a child that says nothing, and so the time until a cancelled one is killed."""


class CrashLab:
    """The explorations of a session. Any thread requests and reads."""

    def __init__(self) -> None:
        self.jobs = Jobs("walkit-crash-lab")
        self.explored: Explored | None = None
        """The newest result."""

    def explore(self, wish: ExploreWish) -> None:
        """Explore in a child, since a mutant is in all logs of its process; returns at once."""
        self.jobs.start(f"exploring {wish.scenario}", lambda job: self._explore(wish, job))

    def _explore(self, wish: ExploreWish, job: Job) -> None:
        found: list[Explored] = []
        progress: tuple[int, int | None] = (0, None)

        def on_line(said: dict[str, Any]) -> None:
            nonlocal progress
            if "found" in said:
                found.append(explored_of(said["found"]))
            else:
                progress = (said["done"], said["total"])

        with TalkingChild(EXPLORING, asdict(wish), on_line) as child:
            while child.talking and not child.wait_until(lambda: bool(found), LOOK_S):
                job.step(*progress, "" if progress[1] else "running the scenario")
            child.wait()
        (self.explored,) = found


EXPLORING = "walkit.crashlab.explore_process:explore_alone"
BUDGET_MAX, SEED_MAX = 5_000, 1_000_000
ABOUT = (
    "A scenario runs on a disk in memory. The power is cut before each operation that changes the disk, and within "
    "each synced write; the states that this may leave are recovered, and judged by rules. A bug that is put back is "
    "in a process of its own, and in no log of this dashboard."
)
NOTHING_YET = example_html(
    "the states of each point of a scenario, kept to the rules or not.",
    {"append": (6, 1, 3), "sync": (8, 2), "rotate": (4, -6)},
)
AS_IT_IS = "none: walkit as it is"


class CrashLabPage(Form):
    """Pick a scenario, a profile and a bug, explore, and see the results."""

    def __init__(self, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]) -> None:
        super().__init__()
        self.lab = CrashLab()
        workspace.on_close(self.lab.jobs.close)
        wish = ExploreWish()
        self.scenario = Select(label="scenario", options=list(SCENARIOS), value=wish.scenario, width=180)
        self.profile = Select(label="profile", options=list(PROFILES), value=wish.profile, width=150)
        self.mutant = Select(
            label="bug put back", options={AS_IT_IS: "", **{m: m for m in MUTANTS}}, value="", width=220
        )
        self.budget = IntInput(label="states to judge", value=wish.budget, start=1, end=BUDGET_MAX, width=120)
        self.seed = IntInput(label="seed", value=wish.seed, start=0, end=SEED_MAX, width=90)
        # A bug has a scenario of its own: it is set first.
        self.named = {
            "mutant": self.mutant,
            "scenario": self.scenario,
            "profile": self.profile,
            "budget": self.budget,
            "seed": self.seed,
        }
        self.explore = Button(label="Explore", color="primary", width=100)
        self.about = pn.pane.HTML("", sizing_mode="stretch_width")
        self.bar = JobBar(self.lab.jobs.cancel)
        self.problem = pn.pane.HTML("", sizing_mode="stretch_width")
        self.found = CrashView()
        self._layout = column(
            pn.pane.HTML(tag("p", ABOUT), sizing_mode="stretch_width"),
            pn.FlexBox(
                self.scenario,
                self.profile,
                self.mutant,
                self.budget,
                self.seed,
                self.explore,
                align_items="end",
            ),
            self.about,
            self.bar,
            self.problem,
            self.found,
        )
        self.mutant.param.watch(lambda _: self._to_the_scenario_of_the_mutant(), "value")
        for widget in (self.scenario, self.profile, self.mutant):
            widget.param.watch(lambda _: self._describe(), "value")
        self.explore.on_click(lambda _: self.request(lambda: self.lab.explore(self.wish())))
        self._describe()

    def _to_the_scenario_of_the_mutant(self) -> None:
        if self.mutant.value:
            self.scenario.value = MUTANTS[self.mutant.value].scenario

    def _describe(self) -> None:
        rows = [
            ("Scenario", SCENARIOS[self.scenario.value].text),
            ("Profile", PROFILES[self.profile.value].text),
        ]
        if self.mutant.value:
            mutant = MUTANTS[self.mutant.value]
            rows.append(("Bug", f"{mutant.text} (seen in {mutant.seen_in})"))
        self.about.object = join(tag("p", tag("b", f"{name}: "), f"{text}.") for name, text in rows)

    def wish(self) -> ExploreWish:
        """Return the controls' values; an emptied field means its default."""
        usual = ExploreWish()
        return ExploreWish(
            scenario=self.scenario.value,
            profile=self.profile.value,
            budget=self.budget.value or usual.budget,
            seed=self.seed.value or usual.seed,
            mutant=self.mutant.value,
        )

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        if not shown:
            return
        job, problem = self.lab.jobs.current, self.lab.jobs.problem
        self.bar.update(job)
        self.problem.object = sentence_html("", problem=problem) if problem else ""
        self.explore.disabled = job is not None
        self.found.update(self.lab.explored)

    def code(self) -> str:
        """Return Python for the chosen exploration."""
        wish = self.wish()
        said = f"crashlab.explore({wish.scenario!r}, {wish.budget}, {wish.seed}, {wish.profile!r})"
        bug = f"with crashlab.museum.MUTANTS[{wish.mutant!r}].applied():\n    " if wish.mutant else ""
        return f"from walkit import crashlab, plots\n\n{bug}found = {said}\nplots.crash_states(found)"


class CrashView(ReportView):
    """Shows the last exploration. Used by one thread."""

    def __init__(self) -> None:
        self.violations = pn.pane.HTML("", sizing_mode="stretch_width")
        super().__init__(NOTHING_YET, self.violations)

    def update(self, explored: Explored | None) -> None:
        """Show the results, unless they are shown already."""
        if explored is None or not self._is_new(explored):
            return
        self.text.object = verdict_html(explored)
        self.violations.object = violations_html(explored.violations)
        if explored.exploration.points:
            self._draw(crash_states(explored.exploration))


def verdict_html(explored: Explored) -> str:
    """Return the result in a sentence, and its numbers."""
    found = explored.exploration
    judged = counted(found.distinct, "distinct state")
    broken = f"{found.broken:,} of {judged} {'breaks' if found.broken == 1 else 'break'} a rule"
    if explored.violations and not found.broken:
        broken = "the scenario does not come to its end"
    if found.mutant and explored.violations:
        said = tag("p", tag("b", f"The bug {found.mutant} is found: {broken}."))
    elif found.mutant:
        words = (
            f"The bug {found.mutant} is not found: none of {judged} breaks a rule. More states may show it."
        )
        said = tag("p", tag("b", words))
    elif explored.violations:
        said = tag("p", tag("b", f"{broken}: this is a bug in walkit.", role="alert", style=f"color:{RED}"))
    else:
        said = tag("p", tag("b", f"None of {judged} breaks a rule."))
    numbers = [
        ("crash points", f"{len(found.points):,}", "moments at which the power was cut"),
        ("explored whole", f"{found.whole_points:,}", "points of which every state was judged"),
        ("possible states", large(found.possible), "states that a power cut may leave, over all points"),
        ("judged", f"{found.states:,}", "with those that have the same bytes and promises as a judged one"),
        ("distinct", f"{found.distinct:,}", "that differ in a byte or in a promise"),
        (
            "coverage",
            f"{found.coverage:.0%}",
            "part of a point's states that was judged, mean over the points",
        ),
        ("time", f"{found.duration_s:.1f} s", "on this machine"),
    ]
    return join([said, Markup(numbers_html(numbers)), _covered_html(found)])


def _covered_html(found: Exploration) -> Markup:
    """Return how many states were cut during each thing; a red line names those of `covers` with no state."""
    rows = [(name, COVERAGE.get(name, ""), f"{count:,}") for name, count in found.covered.items()]
    missed = [f"No state was cut during: {', '.join(found.missed)}."] if found.missed and found.points else []
    return join(
        [
            red_lines(missed),
            tag(
                "details",
                tag("summary", f"States that were cut during {counted(len(rows), 'thing')}"),
                table(rows, ("during", "which means", "states"), right=range(2, 3)),
            ),
        ]
    )


def violations_html(violations: tuple[FoundViolation, ...]) -> str:
    """Return each violation that was kept: the rule, the losses, and the code that makes it again."""
    if not violations:
        return ""
    first, *others = violations
    more = f"The first {len(violations)}, a rule and a point each, with as little lost as was found."
    return tag(
        "section",
        tag("h2", "States that break a rule"),
        tag("p", more) if others else Markup(),
        _violation_html(first, is_open=True),
        *(_violation_html(each, is_open=False) for each in others),
    )


def _violation_html(violation: FoundViolation, *, is_open: bool) -> Markup:
    lost = [tag("li", line) for line in violation.lost] or [
        tag("li", "nothing: all that was written arrived")
    ]
    return tag(
        "details",
        tag("summary", tag("b", violation.rule), f" at point {violation.point}: {violation.text}"),
        tag("p", f"The power was cut at point {violation.point}: {violation.operation}. Lost writes:"),
        tag("ul", *lost),
        scrolled("pre", f"code that makes the state of point {violation.point} again", violation.reproducer),
        class_="violation",
        style="margin-block:0.5em",
        open="" if is_open else None,
    )
