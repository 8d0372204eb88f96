"""The report of results that lack something, and of places where sync means nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from walkit.demo import CHECKS, Check, DemoResult
from walkit.demo.progress_printer import ProgressPrinter
from walkit.demo.report import report_html, write_report
from walkit.measure import FileSystemFacts, MachineFacts, Run, RunRecorder
from walkit.workload.expected_state import compare_states

RED = "sync means nothing here"


def run_at(machine: MachineFacts) -> Run:
    recorder = RunRecorder("flights", durability="sync", machine=machine)
    recorder.start()
    thread = recorder.thread()
    for i in range(100):
        thread.record(recorder.start_ns + i, recorder.start_ns + 1_000 * i)
    return recorder.finish(end_ns=recorder.start_ns + 1_000_000)


def machines() -> list[MachineFacts]:
    """One with a made-up tmpfs and, if the machine has one, the real one."""
    told = MachineFacts(file_system=FileSystemFacts(type="tmpfs", mount_point="/somewhere", tmpfs=True))
    here = MachineFacts.here("/dev/shm") if os.path.isdir("/dev/shm") else told
    return [told, here if here.file_system is not None and here.file_system.tmpfs else told]


@pytest.mark.parametrize("machine", machines(), ids=["told", "real"])
def test_a_run_on_tmpfs_has_a_red_line(machine: MachineFacts) -> None:
    """A Run in memory gives the red line in the report, in its figure and in a notebook, with the place named."""
    result = DemoResult(out=Path(), drive=run_at(machine))
    html = report_html(result)
    assert f"<p class='warning'>tmpfs: {RED}" in html
    assert html.count(RED) >= 3  # the line, the figures, the run's own table
    assert RED in result._repr_html_()
    assert machine.file_system is not None
    assert f"<code>{machine.file_system.mount_point}</code>" in html


def test_a_disk_has_no_red_line() -> None:
    """A Run on a disk names the file system and its device, without a warning."""
    disk = FileSystemFacts(type="xfs", mount_point="/data", device="sdb", tmpfs=False)
    html = report_html(DemoResult(out=Path(), drive=run_at(MachineFacts(file_system=disk))))
    assert RED not in html.replace("\n", " ")
    assert "<code>xfs</code>, mounted at <code>/data</code> on <code>sdb</code>" in html


def test_an_empty_result_is_a_failed_one(tmp_path: Path) -> None:
    """Nothing done: the report can be written all the same, and says of every check that it was not made."""
    path = write_report(DemoResult(out=tmp_path))
    html = path.read_text(encoding="utf-8")
    assert html.count("not made") == len(CHECKS)
    assert f"0 of {len(CHECKS)} checks held" in html
    assert "NOT every check held" in html
    assert "The file system of the logs is not known" in html


def test_a_failed_check_shows_its_keys_escaped() -> None:
    """The oracle's samples are below the table, and cannot become markup."""
    oracle = compare_states({b"key": b"<script>expected</script>"}, {b"key": b"found & wrong"}, subject="<b>")
    check = Check(name=CHECKS[0], ok=False, compared=1, text=str(oracle), oracle=oracle)
    html = DemoResult(out=Path(), checks=[check])._repr_html_()
    assert "WRONG" in html
    assert "&lt;script&gt;expected" in html
    assert "found &amp; wrong" in html
    assert "<script>" not in html
    assert "<b>:" not in html


def test_steps_continue_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the reader of standard output has gone, steps continue and keep their times; nothing is raised."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        printer = ProgressPrinter()
        with printer.step("one"), printer.part("half"):
            pass
        with printer.step("two"):
            printer.print_line("nobody hears this")
    assert [(s.title, len(s.parts)) for s in printer.steps] == [("one", 1), ("two", 0)]


def test_parts_are_announced_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """A part is announced before it begins and timed when it is over, even if it raises."""
    printer = ProgressPrinter()

    def fail() -> None:
        with printer.step("a step"):
            with printer.part("a part"):
                assert capsys.readouterr().out == "1. a step\n   a part ..."
            assert capsys.readouterr().out.endswith(" s\n")
            with printer.part("with a bar", bar=True):
                assert capsys.readouterr().out == "   with a bar ...\n"
            capsys.readouterr()
            with printer.part("one that fails"):
                raise OSError

    with pytest.raises(OSError):
        fail()
    assert capsys.readouterr().out == "   one that fails ...\n"
    assert [title for title, _ in printer.steps[0].parts] == ["a part", "with a bar"]
    assert printer.steps[0].seconds > 0
    silent = ProgressPrinter(show=False)
    with silent.step("unheard"):
        silent.print_line("unheard")
    assert capsys.readouterr() == ("", "")
