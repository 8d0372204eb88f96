"""`walkit inspect` and `walkit verify`: exit codes and output for every kind of damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
from tests.support.damaged import DAMAGES, RECORDS, Copy, Damage, contents, end_writer, start_writer
from tests.support.mixed_folders import two_epochs_branch

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.mark.parametrize("damage", DAMAGES, ids=[d.name for d in DAMAGES])
def test_exit_codes_and_output_for_every_damage(
    damage: Damage, originals: Path, tmp_path: Path, run: Run
) -> None:
    """Damage a copy in each way: both commands exit as in the table, print JSON with the reason, and change nothing."""
    shutil.copytree(originals / damage.base, tmp_path / "log")
    copy = Copy(tmp_path / "log")
    damage.do(copy)
    before = contents(copy.path)
    verify = run("verify", copy.path)
    as_json = run("verify", copy.path, "--json")
    inspect = run("inspect", copy.path)
    frames = run("inspect", copy.path, "--frames", "--json")
    assert contents(copy.path) == before
    assert verify.code == as_json.code == int(not damage.ok)
    assert inspect.code == int(not (damage.ok or damage.only_bodies or damage.only_verify))
    assert {verify.err, as_json.err, inspect.err, frames.err} == {""}
    report = json.loads(as_json.out)
    assert tuple(dict.fromkeys(p["code"] for p in report["problems"])) == damage.codes
    found = {row["verdict"] for row in report["verdict"]} - {"intact", "unused"}
    assert found == {verdict.value for verdict in damage.verdicts}
    for problem in report["problems"]:
        assert f"problem: {problem['message']}" in verify.out
    assert ("NOT OK" in verify.out) is (not damage.ok)
    assert damage.note in verify.out
    shown = json.loads(frames.out)
    assert len(shown["frames"]) >= shown["frames_checked"] > 0


def test_inspect_shows_marks_segments_and_frames(originals: Path, run: Run) -> None:
    """Inspect a closed log: its facts with thousands separators, a line a segment and, where asked, a line a frame."""
    plain = run("inspect", originals / "closed")
    listed = run("inspect", originals / "closed", "--frames")
    assert (plain.code, listed.code) == (0, 0)
    report = json.loads(run("inspect", originals / "closed", "--json").out)
    assert f"1 to {RECORDS}" in plain.out and f"{report['end_position']:,}" in plain.out
    segments = [s for s in report["segments"] if s["frames"]]
    for segment in segments:
        assert f"{segment['file_bytes']:,}" in plain.out
    extra = len(listed.out.splitlines()) - len(plain.out.splitlines())
    assert extra == RECORDS + len(["", "heading"])
    assert report["ok"] is None and "not read" in plain.out and "walkit verify" in plain.out.splitlines()[-1]
    assert all(line == line.rstrip() for line in plain.out.splitlines())


def test_a_live_log_can_be_looked_at(tmp_path: Path, run: Run) -> None:
    """Look at a log that another process has open for writing: exit 0, live, and the writer closes in order later."""
    writer = start_writer(tmp_path / "log", 20)
    try:
        verify = json.loads(run("verify", tmp_path / "log", "--json").out)
        inspect = run("inspect", tmp_path / "log")
    finally:
        end_writer(writer, kill=False)
    assert verify["ok"] and verify["state"] == "live" and verify["last_lsn"] == 20
    assert inspect.code == 0 and "live" in inspect.out
    assert run("verify", tmp_path / "log").code == 0


def test_a_long_report_is_shortened_for_people_only(tmp_path: Path, run: Run) -> None:
    """Inspect a log of a hundred segments: text stays short and counts its omissions, JSON has all."""
    options = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=56 * 1024)
    with walkit.open(tmp_path / "log", options=options) as log:
        for _ in range(100):
            log.append(bytes(50_000))
    ran = run("inspect", tmp_path / "log")
    assert "more (--json lists all)" in ran.out and len(ran.out.splitlines()) < 90
    assert len(json.loads(run("inspect", tmp_path / "log", "--json").out)["segments"]) == 100


def test_repair_from_the_command_line(originals: Path, tmp_path: Path, run: Run) -> None:
    """Repair a damaged copy, dry, refused, by salvage and again: exit codes 1, 1, 1, 0; JSON has the losses."""
    shutil.copytree(originals / "closed", tmp_path / "log")
    copy = Copy(tmp_path / "log")
    copy.flip_in_frame(1, 4, "body")
    copy.remove("manifest")
    before = contents(copy.path)
    dry = run("repair", copy.path, "--policy", "salvage", "--dry-run", "--json")
    told = json.loads(dry.out)
    assert (dry.code, told["lsns_lost"], told["dry_run"], told["manifest_rebuilt"]) == (1, 1, True, True)
    refused = run("repair", copy.path)
    assert refused.code == 1 and copy.used(1) in refused.err
    assert "--from HOST:PORT" in refused.err and "--policy salvage" in refused.err
    after = {n: data for n, (data, _) in contents(copy.path).items() if n != "lock"}
    assert after == {n: data for n, (data, _) in before.items() if n != "lock"}
    done = run("repair", copy.path, "--policy", "salvage")
    lsn = told["lost"][0]["first_lsn"]
    assert done.code == 1 and f"lost: LSN {lsn:,}" in done.out and "manifest rebuilt" in done.out
    again = run("repair", copy.path, "--policy", "salvage")
    assert again.code == 0 and "needs no repair" in again.out
    verify = run("verify", copy.path)
    assert verify.code == 0 and "lost" in verify.out
    assert run("repair", tmp_path).code == 3
    mixed = two_epochs_branch(tmp_path / "two")
    told = run("repair", mixed.folder, "--policy", "salvage")
    assert told.code == 0 and f"{mixed.folder}.branch-2: LSN 1 to 100, epoch 2" in told.out
    assert run("repair", copy.path, "--policy", "hope").code == 2
