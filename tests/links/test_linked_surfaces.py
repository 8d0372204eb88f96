"""Verify, the commands, the Inspector and the journal over a log with a payload log, whole and with lost values."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import walkit
from tests.links.made import Watched, is_fetch, linked, value_of
from walkit.cli import main
from walkit.errors import OptionsError, PayloadGoneError, PayloadUnreachableError
from walkit.models.faults import Operation
from walkit.objects import payload_check
from walkit.record import Link
from walkit.storage import FileStorage
from walkit.store import Store
from walkit.views.background_jobs import Job
from walkit.views.frame_pages import find_key, find_lsn, frame_around
from walkit.views.inspector_parts import hit_rows, records_html
from walkit.views.log_outline import outline_of

N = 40
MIB = 1 << 20


@pytest.fixture(params=["", "objects:"], ids=["folder", "objects"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Make a log of N puts over 10 keys with a link in each second, some in a snapshot alone, and its payload log."""
    log, payloads = f"{request.param}{tmp_path / 'log'}", tmp_path / "payloads"
    with Store.open(log, options=linked(payloads)) as store:
        for n in range(N):
            store.put(b"%d" % (n % 10), value_of(n) if n % 2 else b"small %d" % n)
            if n == N // 2:
                store.checkpoint()
    return log, payloads


def flip(payloads: Path, *numbers: int) -> None:
    """Change a byte of each of these values, or of the last."""
    for path in sorted(payloads.glob("*.segment")):
        data = bytearray(path.read_bytes())
        for number in numbers or (N - 1,):
            at = data.find(value_of(number))
            if at >= 0:
                data[at + 9] ^= 1
        path.write_bytes(data)


def replace(payloads: Path) -> None:
    """Put another log at the place of the payload log."""
    payloads.rename(payloads.with_name("away"))
    with walkit.open(payloads) as log:
        log.append(b"other")


DAMAGES: dict[str, tuple[Callable[[Path], object], type[Exception] | None, int]] = {
    "whole": (lambda payloads: None, None, 0),
    "flipped": (flip, PayloadGoneError, 1),
    "away": (lambda payloads: payloads.rename(payloads.with_name("away")), PayloadUnreachableError, 3),
    "another": (replace, PayloadUnreachableError, 3),
}


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    capfd.readouterr()
    return main([str(argument) for argument in arguments]), capfd.readouterr().out


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_checks_each_live_payload(
    damage: str, places: tuple[str, Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: verify names log, LSN and reference of a lost value. Method: each damage, 1 and 3 links at a time."""
    path, payloads = places
    do, error, code = DAMAGES[damage]
    with walkit.open(path, mode="r") as log:
        links = {record.lsn: record.link for record in log.read(resolve="link") if record.link}
        log_id = next(iter(links.values())).log_id
    do(payloads)
    assert walkit.verify(path).ok and walkit.verify(path).payloads_checked is None
    for most in (1, 3, 4096):
        monkeypatch.setattr(payload_check, "LINKS_MAX", most)
        passed: list[tuple[int, int]] = []

        def note(done: int, total: int, to: list[tuple[int, int]] = passed) -> None:
            to.append((done, total))

        report = walkit.verify(path, payloads=True, progress=note)
        assert report.ok is (error is None) and passed[-1][0] == passed[-1][1]
        assert report.payloads_checked is not None and report.payloads_checked >= (
            len(links) if not error else 0
        )
        found = [problem.error for problem in report.problems]
        assert [type(each) for each in found] == ([] if error is None else [error])
        for each in found:
            assert isinstance(each, PayloadGoneError | PayloadUnreachableError) and each.link is not None
            assert (
                each.link[0] == log_id
                and each.lsn
                and f"{log_id:016x}" in str(each)
                and path[-3:] in str(each)
            )
            assert damage != "flipped" or (each.lsn == N and links[N] == each.link)
    notes = [note for note in report.notes if "could not be checked" in note]
    assert len(notes) == (code == 3) and all(f"{log_id:016x}" in note for note in notes)
    assert run(capfd, "verify", path)[0] == 0
    found_code, out = run(capfd, "verify", path, "--payloads", "--json")
    assert found_code == code and json.loads(out)["payloads_checked"] == report.payloads_checked
    if damage == "away":
        there = payloads.with_name("away")
        assert walkit.verify(path, payloads=True, payload_log=there).ok
        assert run(capfd, "verify", path, "--payloads", "--payload-log", there)[0] == 0
        with pytest.raises(OptionsError):
            walkit.verify(path, payload_log=there)
        assert run(capfd, "verify", path, "--payload-log", there)[0] == 2


def test_verify_counts_values_that_only_a_snapshot_has(tmp_path: Path) -> None:
    """Goal: links of a snapshot are checked once, and fetched in bounded parts. Method: count fetched links."""
    with Store.open(tmp_path / "log", options=linked(tmp_path / "payloads")) as store:
        for n in range(N):
            store.put(b"%d" % n, value_of(n))
        store.checkpoint()
        first = store.log.first_lsn
        assert first > 1
        report = walkit.verify(tmp_path / "log", payloads=True)
    assert report.ok and report.payloads_checked == N and report.payload_bytes_checked == N * 300
    assert f"{N} values of 12,000 bytes in payload logs" in report.summary()


def test_verify_lists_a_bounded_number_of_lost_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the memory of a report is bounded. Method: no value is right, and the bound is 3."""
    with walkit.open(tmp_path / "log", options=linked(tmp_path / "payloads")) as log:
        for n in range(8):
            log.append(value_of(n))
    monkeypatch.setattr(payload_check, "LISTED_MAX", 3)
    flip(tmp_path / "payloads", *range(8))
    report = walkit.verify(tmp_path / "log", payloads=True)
    assert len(report.problems) == 3 and "5 more values cannot be had from payload logs" in report.notes


def test_a_value_dropped_meanwhile_is_passed_over(tmp_path: Path) -> None:
    """Goal: verify beside a trimming writer finds nothing. Method: trim between the link and its value."""
    payloads = FileStorage(tmp_path / "payloads")
    with walkit.open(tmp_path / "log", options=linked(payloads)) as log:
        for n in range(N):
            log.append(value_of(n))
        watched, left = Watched(payloads), [N // 2]

        def late(operation: Operation) -> None:
            if is_fetch(operation) and left:
                log.trim(left.pop())
                assert log.wait_idle(30)

        watched.seen = late
        report = walkit.verify(tmp_path / "log", payloads=True, payload_log=watched)
        usage = log.payload_usage()
    assert usage is not None and usage.floor_lsn > 0
    assert report.ok and N - usage.floor_lsn <= (report.payloads_checked or 0) <= N, report


def test_a_lost_value_takes_none_before_it(tmp_path: Path) -> None:
    """Goal: values before a lost one are read in order. Method: read ahead over a value that was changed."""
    with walkit.open(tmp_path / "log", options=linked(tmp_path / "payloads")) as log:
        for n in range(N):
            log.append(value_of(n))
    flip(tmp_path / "payloads")
    got: list[bytes | None] = []
    with walkit.open(tmp_path / "log", mode="r") as reader, pytest.raises(PayloadGoneError) as caught:
        got.extend(record.value for record in reader)
    assert got == [value_of(n) for n in range(N - 1)] and caught.value.lsn == N


def test_commands_show_values_and_links(places: tuple[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    """Goal: dump and diff have values, inspect the links and values. Method: with the payload log, and without it."""
    path, payloads = places
    code, out = run(capfd, "dump", path)
    rows = [json.loads(line) for line in out.splitlines()]
    assert (
        code == 0
        and {row["kind"] for row in rows} == {"put"}
        and rows[-1]["value"] == value_of(N - 1).decode()
    )
    assert run(capfd, "diff", path, path)[0] == 0
    code, out = run(capfd, "diff", f"{path}@{N - 1}", path, "--json")
    assert code == 1 and json.loads(out)["rows"][0]["right_value"] == value_of(N - 1).decode()
    with walkit.open(path, mode="r") as log:
        links = {record.lsn: record.link for record in log.read(resolve="link") if record.link}
    code, out = run(capfd, "inspect", path, "--links")
    assert code == 0 and all(
        f"{link.log_id:016x}" in out and f"{link.crc32c:08x}" in out for link in links.values()
    )
    assert value_of(N - 1)[:30].decode() in out
    found = json.loads(run(capfd, "inspect", path, "--links", "--json")[1])["links"]
    assert [row["lsn"] for row in found] == list(links) and {row["error"] for row in found} == {None}
    payloads.rename(payloads.with_name("away"))
    assert run(capfd, "dump", path)[0] == 3
    assert run(capfd, "dump", path, "--payload-log", payloads.with_name("away"))[0] == 0
    code, out = run(capfd, "inspect", path, "--links")
    assert (
        code == 0
        and "cannot be had" in out
        and out.count("its payload log cannot be reached") == len(links) - 1
    )


def test_inspector_shows_links_and_values(places: tuple[str, Path]) -> None:
    """Goal: a frame's links are shown with their values, or why not. Method: with the payload log, and without it."""
    path, payloads = places
    place = Path(path) if path.startswith("/") else path
    for is_there in (True, False):
        outline, job = outline_of(place), Job("test")
        view = frame_around(outline, find_lsn(outline, N, job), job)
        assert [(facts.lsn, facts.link.length) for facts in view.links] == [(N, 300)]
        assert isinstance(view.links[0].link, Link)
        page = records_html(view)
        assert ("000039000039" in page) is is_there and ("cannot be had" in page) is not is_there
        assert f"put of 300 bytes in payload log {view.links[0].link.log_id:016x}" in page
        (hit,) = hit_rows(find_key(outline, b"9", N, job))
        assert hit.cells[2].startswith("put of 300 bytes in payload log")
        if is_there:
            payloads.rename(payloads.with_name("away"))


def test_journal_resolves_a_link_when_its_value_is_used(tmp_path: Path) -> None:
    """Goal: the journal returns values lazily, as read does. Method: use the value with and without the payload log."""
    options, journal = linked(tmp_path / "payloads"), walkit.StoreOptions(journal_slots=8)
    with Store.open(tmp_path / "log", options, store_options=journal) as store:
        store.put(b"k", value_of(1))
        assert store.journal is not None
        found = store.journal.record(1)
        assert found is not None and found.kind is walkit.Kind.PUT and found.link is not None
        assert found.value == value_of(1) and store.journal.record(2) is None
    with Store.open(tmp_path / "log", store_options=journal) as store:
        (tmp_path / "payloads").rename(tmp_path / "away")
        assert store.journal is not None
        late = store.journal.record(1)
        assert late is not None and late.key == b"k"
        with pytest.raises(PayloadUnreachableError):
            _ = late.value


# Slow: logs at an LSN are compared by the code that compares stores.
@pytest.mark.parametrize("as_stores", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_diff_of_equal_values_under_different_links_is_bounded(tmp_path: Path, as_stores: bool) -> None:
    """Goal: equal values are not in memory together. Method: 48 MiB on each side; one value differs, one is inline."""
    stores = [
        Store.open(
            tmp_path / f"log{side}", options=linked(tmp_path / f"payloads{side}", queue_bytes_max=8 << 20)
        )
        for side in "ab"
    ]
    for side, store in enumerate(stores):
        for n in range(48):
            store.put(b"%02d" % n, bytes([n + (n == 7) * side]) * MIB)
        store.put(b"small", b"1")
    sides = stores if as_stores else [(store.log, store.log.acked_lsn) for store in stores]
    walkit.diff(sides[0], (stores[0].log, 1))
    tracemalloc.start()
    found = walkit.diff(*sides)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["key"].to_pylist() == [b"07"] and found["change"].to_pylist() == ["C"]
    assert found["left_value"].to_pylist() == [bytes([7]) * MIB] and found["right_value"].to_pylist() == [
        bytes([8]) * MIB
    ]
    assert peak < 40 * MIB, f"{peak / MIB:.0f} MiB"
    with walkit.open(tmp_path / "inline") as log:
        for n in range(48):
            log.append(bytes([n]) * MIB, key=b"%02d" % n)
        log.append(b"1", key=b"small")
        for pair in ((sides[0], log), (log, sides[0])):
            assert not walkit.diff(*pair).num_rows
    for store in stores:
        store.close()
