"""The Crash lab page without a browser: explorations in real child processes, and their texts on the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from tests.support.threads import wait_until
from walkit.crashlab.exploration import Exploration
from walkit.crashlab.explore_process import Explored, ExploreWish, FoundViolation
from walkit.crashlab.mutant import applied_mutant
from walkit.errors import OptionsError
from walkit.views.page_crash_lab import (
    BUDGET_MAX,
    EXPLORING,
    CrashLabPage,
    verdict_html,
    violations_html,
)
from walkit.views.workspace import DataRoot, Workspace


@pytest.fixture
def page() -> Iterator[CrashLabPage]:
    """A page with a session of its own; no child of it is left."""
    workspace = Workspace(DataRoot("."))
    yield CrashLabPage(workspace, lambda slug, state: None)
    workspace.close()
    assert children() == []


def children() -> list[int]:
    """Return the processes in which something is explored for this one."""
    found = []
    for child in psutil.Process().children():
        try:
            if EXPLORING in child.cmdline():
                found.append(child.pid)
        except psutil.Error:
            continue  # it has just ended
    return found


def test_a_bug_is_found_in_a_process_of_its_own(page: CrashLabPage) -> None:
    """Put a bug back by the page: its scenario is chosen, it is found, drawn and told with its code; not here."""
    page.mutant.value = "page-cache-believed"
    assert page.scenario.value == "failed-sync" and "Bug:" in page.about.object
    page.budget.value = 20
    page.explore.clicks += 1
    assert page.explore.disabled and page.bar._layout.visible
    wait_until(lambda: page.lab.jobs.current is None, "the exploration ends")
    page.refresh()
    assert (page.lab.jobs.problem, page.problem.object, page.explore.disabled) == (None, "", False)
    assert applied_mutant() == ""
    explored = page.lab.explored
    assert explored is not None and explored.exploration.mutant == "page-cache-believed"
    assert (
        explored.exploration.covered["recovery"] > 0 and "a recovery is under way" in page.found.text.object
    )
    assert "is found" in page.found.text.object and "a bug in walkit" not in page.found.text.object
    assert page.found.figure.visible and "failed-sync" in page.found.figure.object.layout.title.text
    first = explored.violations[0]
    assert (
        f"point={first.point}," in page.found.violations.object and first.rule in page.found.violations.object
    )


def test_an_exploration_that_is_cancelled_ends_at_once(page: CrashLabPage) -> None:
    """Begin one of thousands of states and cancel it while its child is at work: no child is left, and a sentence."""
    page.scenario.value, page.budget.value = "compaction", BUDGET_MAX
    page.explore.clicks += 1
    wait_until(lambda: bool(children()), "a child is at work")
    page.refresh()
    page.bar.cancel.clicks += 1
    wait_until(lambda: page.lab.jobs.current is None, "it is given up")
    page.refresh()
    assert "was cancelled" in page.problem.object and not page.bar._layout.visible
    assert page.lab.explored is None and children() == []


def test_the_url_chooses_and_nonsense_is_ignored(page: CrashLabPage) -> None:
    """Restore the state of a URL: known values are chosen, a scenario beside a bug too; the rest changes nothing."""
    chosen = {
        "mutant": "promise-first",
        "scenario": "trim",
        "profile": "contract",
        "budget": "33",
        "seed": "7",
    }
    page.restore(chosen)
    assert page.state() == chosen
    page.restore({"mutant": "x", "scenario": "", "profile": "<b>", "budget": "1e9", "seed": "-1"})
    page.restore({"budget": str(BUDGET_MAX + 1), "seed": "9" * 5000})
    assert page.state() == chosen
    page.budget.value = None
    assert page.wish().budget == ExploreWish().budget
    with pytest.raises(OptionsError, match="earthquake"):
        ExploreWish(scenario="earthquake")
    with pytest.raises(OptionsError, match="no-such-bug"):
        ExploreWish(mutant="no-such-bug")


def test_the_verdict_says_whose_fault_it_is() -> None:
    """Say what was found of walkit and of a mutant, broken and not: only walkit's own violation is an alert."""
    clean = Exploration(
        scenario="append",
        about="one record",
        profile="contract",
        seed=0,
        budget=10,
        durability="sync",
        mutant="",
        points=(),
        distinct=9,
        violations=(),
        broken=0,
        duration_s=0.5,
    )
    one = FoundViolation(rule="kept", text="t", point=3, operation="o", lost=(), reproducer="r")
    said = {
        (mutant, broken): verdict_html(
            Explored(replace(clean, mutant=mutant, broken=broken), (one,) * broken)
        )
        for mutant in ("", "promise-first")
        for broken in (0, 1)
    }
    assert "None of 9 distinct states breaks a rule." in said["", 0]
    assert "1 of 9 distinct states breaks a rule: this is a bug in walkit" in said["", 1]
    assert "The bug promise-first is not found" in said["promise-first", 0]
    assert "The bug promise-first is found" in said["promise-first", 1]
    failed = verdict_html(Explored(replace(clean, mutant="promise-first"), (replace(one, rule="runs"),)))
    assert "The bug promise-first is found: the scenario does not come to its end" in failed
    assert [key for key, html in said.items() if 'role="alert"' in html] == [("", 1)]


def test_the_text_of_a_violation_is_escaped() -> None:
    """Show a violation with markup in its words: it is escaped, and each lost write has a line."""
    violation = FoundViolation(
        rule="kept",
        text="<script>",
        point=3,
        operation="write of <b>",
        lost=("lost: <i>", "torn: x"),
        reproducer="replay('<u>')",
    )
    shown = violations_html((violation, replace(violation, lost=())))
    assert not any(markup in shown for markup in ("<script>", "<i>", "<u>")) and "write of &lt;b&gt;" in shown
    assert shown.count("<li>") == 3 and "nothing: all that was written arrived" in shown
    assert violations_html(()) == ""
