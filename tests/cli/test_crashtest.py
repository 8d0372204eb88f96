"""`walkit crashtest`: its output if every rule holds, and with a bug put back, and its files."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import walkit
from walkit.cli import main
from walkit.crashlab import PROFILES, RULES, SCENARIOS, Scenario
from walkit.crashlab.museum import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from tests.cli.conftest import Run
    from walkit.crashlab import Script

BUG = ("--mutant", "acknowledged-unsynced", "--budget", "40", "--profile", "ext4-ordered", "--jobs", "1")


def test_a_scenario_that_keeps_every_rule_exits_with_0(run: Run) -> None:
    """Explore a scenario as text and as JSON: 0 both times, the same counts, and the profile that was asked for."""
    asked = ("crashtest", "--scenario", "append", "--profile", "issued", "--budget", "10", "--seed", "3")
    text, plain = run(*asked), run(*asked, "--json")
    assert (text.code, plain.code) == (0, 0)
    report = json.loads(plain.out)
    (found,) = report["explorations"]
    assert report["ok"] and (found["profile"], found["seed"], found["budget"]) == ("issued", 3, 10)
    assert f"{found['states']:,} ({found['distinct']:,} distinct)" in text.out
    assert "ok: none of" in text.out and text.err == ""


def test_several_scenarios_are_a_row_each(run: Run) -> None:
    """Name two scenarios, one of them twice: a row for each and profile, one verdict, and the coverage."""
    names = ("failed-sync", "append", "failed-sync")
    asked = ("crashtest", "--budget", "5", "--coverage", "--jobs", "1")
    ran = run(*asked, *(part for name in names for part in ("--scenario", name)))
    assert ran.code == 0
    words = [line.split() for line in ran.out.splitlines()]
    rows = [tuple(line[:2]) for line in words[1:7]]
    pairs = [(name, profile) for name in names[:2] for profile in ("contract", "ext4-ordered")]
    assert rows == [("scenario", "profile"), *pairs, ("ok:", "none")]
    assert {line[0] for line in words[9:]} >= {"append", "manifest", "recovery"}


def test_a_bug_that_is_put_back_exits_with_1_and_leaves_its_files(run: Run, tmp_path: Path) -> None:
    """Judge walkit with a bug: 1, code that finds the state again, its files in a new folder, and no bug afterwards."""
    folder = tmp_path / "cut"
    ran = run("crashtest", *BUG, "--json", "--save-violation", folder)
    assert ran.code == 1 and str(folder) in ran.err
    first = json.loads(ran.out)["explorations"][0]["violations"][0]
    assert first["rule"] in RULES and f"point={first['point']}, state={first['state']}" in first["reproducer"]
    with walkit.open(folder) as log:
        log.append(b"what was left is a log's folder")
    assert run("crashtest", "--scenario", "append", "--budget", "5", "--jobs", "1").code == 0
    again = run("crashtest", *BUG, "--save-violation", folder)
    assert (again.code, again.out) == (2, "") and "is there already" in again.err


def test_without_a_violation_nothing_is_saved(run: Run, tmp_path: Path) -> None:
    """Ask for a violation's files without one: 0, a sentence, and no folder."""
    ran = run(
        "crashtest",
        "--scenario",
        "append",
        "--budget",
        "1",
        "--jobs",
        "1",
        "--save-violation",
        tmp_path / "cut",
    )
    assert ran.code == 0 and "no violation" in ran.err
    assert not (tmp_path / "cut").exists()


def test_the_list_has_every_name(run: Run) -> None:
    """List what there is as text and as JSON: each scenario, profile, rule and mutant."""
    text, plain = run("crashtest", "--list"), run("crashtest", "--list", "--json")
    assert (text.code, plain.code) == (0, 0)
    tables: dict[str, Mapping[str, object]] = {
        "scenarios": SCENARIOS,
        "profiles": PROFILES,
        "rules": RULES,
        "mutants": MUTANTS,
    }
    listed = json.loads(plain.out)
    assert listed.pop("schema") == "walkit.crashtest.list/1"
    assert {name: list(table) for name, table in listed.items()} == {
        name: list(table) for name, table in tables.items()
    }
    begun = {line.split(" ")[0] for line in text.out.splitlines()}
    assert begun >= {name for table in tables.values() for name in table}


def test_ctrl_c_prints_what_was_found_until_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the second of three scenarios as Ctrl-C does: the first one's row, what is missing, and 130."""

    def interrupted(script: Script) -> None:
        with script.open() as log:
            script.append(log, 10)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setitem(SCENARIOS, "interrupted", Scenario("interrupted", "is interrupted", interrupted))
    names = ("append", "interrupted", "reopen")
    asked = ["crashtest", "--budget", "1", "--jobs", "1", "--profile", "issued"]
    code = main([*asked, *(part for name in names for part in ("--scenario", name))])
    assert code == 130
    lines = capsys.readouterr().out.splitlines()
    assert "reopen (issued)" in lines[1] and lines[-1].startswith("so far none of")
    assert [line.split()[0] for line in lines[3:-1]] == ["append", "interrupted"]
