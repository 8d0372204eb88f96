"""The command as a whole: help, exit codes, errors as sentences, pipes, interrupts, and how light it is."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import walkit
from tests.support.damaged import RECORDS, contents
from walkit.cli.output import events_printed

if TYPE_CHECKING:
    from tests.cli.conftest import Run

ROOT = Path(walkit.__file__).parent.parent
COMMANDS = (
    ["inspect"],
    ["dump"],
    ["verify"],
    ["repair"],
    ["claims"],
    ["copy"],
    ["diff"],
    ["serve"],
    ["follow"],
    ["status"],
    ["promote"],
    ["demo"],
    ["bench", "write"],
    ["bench", "spark"],
    ["bench", "replication"],
    ["bench", "recovery"],
    ["bench", "order"],
    ["simulate", "world"],
    ["crashtest"],
    ["dashboard"],
    ["doctor"],
    ["remove"],
    ["salvage"],
    ["completion"],
)


def child(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
    """Start the command in a process of its own."""
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "walkit", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        **options,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_with_an_example_that_parses(
    command: list[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask for help: a sentence, an example of this very command, the exit codes; nothing is wider than a terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(*command, "--help")
    assert [line for line in ran.out.splitlines() if len(line) > 80] == []
    assert (ran.code, ran.err) == (0, "")
    example = next(line for line in ran.out.splitlines() if line.startswith("example: "))
    assert example.startswith(f"example: walkit {' '.join(command)} ")
    codes = "exit codes: 0 fine, 1 found a problem, 2 bad arguments, 3 could not run, 130 interrupted"
    assert codes in " ".join(ran.out.split())
    from walkit.cli.arguments import parse

    assert parse(example.split()[2:]).command == command[0]


def test_version_and_help_of_the_whole(run: Run) -> None:
    """Ask for the version and the overview: the package's version, and every command with one line."""
    assert run("--version").out == f"walkit {walkit.__version__}\n"
    overview = run("--help")
    assert overview.code == 0
    listed = overview.out.split("  COMMAND\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(dict.fromkeys(c[0] for c in COMMANDS)), (
        "one line each"
    )


def test_no_command_prints_the_help_and_exits_2(run: Run) -> None:
    """Run walkit, walkit bench and walkit simulate alone: the text of --help, on standard error; nothing was done."""
    for alone in ([], ["bench"], ["simulate"]):
        ran, asked = run(*alone), run(*alone, "--help")
        assert (ran.code, ran.out) == (2, "")
        assert (asked.code, asked.err) == (0, "")
        assert ran.err == asked.out and "usage: walkit" in ran.err


BAD_ARGUMENTS: tuple[list[str], ...] = (
    [],
    ["nonsense"],
    ["inspect"],
    ["bench"],
    ["bench", "read"],
    ["inspect", "LOG", "--unknown"],
    ["dump", "LOG", "--format", "xml"],
    ["dump", "LOG", "--format", "parquet"],
    ["dump", "LOG", "--format", "csv", "--json"],
    ["dump", "LOG", "--from", "0"],
    ["dump", "LOG", "--from", "-1"],
    ["dump", "LOG", "--from", "one"],
    ["dump", "LOG", "--from", "9", "--to", "8"],
    ["dump", "LOG", "--from", str(RECORDS + 1)],
    ["dump", "LOG", "--to", str(RECORDS + 1)],
    ["bench", "write", "--writers", "1,,2"],
    ["bench", "write", "--writers", "0"],
    ["bench", "write", "--seconds", "-1"],
    ["bench", "write", "--durability", "maybe"],
    ["bench", "replication", "--writers", "1,2"],
    ["bench", "replication", "--seconds", "0.01"],
    ["bench", "recovery", "--cache", "lukewarm"],
    ["simulate"],
    ["simulate", "world", "--seed", "-1"],
    ["simulate", "world", "--schedules", "0"],
    ["simulate", "world", "--keep", "1,,2"],
    ["simulate", "world", "--chaos-ms", "0"],
    ["simulate", "world", "--chaos-ms", "90000"],
    ["crashtest", "--scenario", "earthquake"],
    ["crashtest", "--profile", "fat32"],
    ["crashtest", "--mutant", "none"],
    ["crashtest", "--budget", "0"],
    ["crashtest", "--seed", "-1"],
    ["crashtest", "--save-violation", "LOG"],
    ["bench", "recovery", "--checkpoint-age", "1,2"],
    *(
        ["bench", kind, "--record-bytes", "100000000"]
        for kind in ("write", "order", "spark", "replication", "recovery")
    ),
    ["bench", "write", "--record-bytes", "100,100000000", "--model", "gp3"],
    *(
        ["bench", kind, "--path", "LOG/none"]
        for kind in ("write", "order", "spark", "replication", "recovery")
    ),
    ["dashboard", "--port", "70000"],
    ["dashboard", "--port", "1", "--socket", "x"],
    ["doctor", "--path", "LOG/none"],
    ["inspect", "https://bucket/log"],
    ["inspect", "LOG", "--out", "LOG/report.txt"],
    ["dump", "LOG", "--out", "LOG/manifest"],
    ["verify", "LOG", "--out", "LOG"],
    ["serve", "LOG", "--listen", "0.0.0.0:0"],
    ["serve", "LOG", "--listen", "[::]:0", "--token", "secret"],
    ["serve", "LOG", "--listen", "127.0.0.1:99999"],
    *(
        ["follow", "127.0.0.1:9", "LOG/own", "--delta", "LOG", *option]
        for option in (["--rewind"], ["--new-identity"], ["--checkpoint-every", "5"], ["--codec", "zstd"])
    ),
)


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=" ".join)
def test_bad_arguments_exit_2_with_a_sentence(arguments: list[str], run: Run, originals: Path) -> None:
    """Give wrong arguments: exit 2, a sentence on standard error alone, and the log is untouched."""
    log = originals / "closed"
    before = contents(log)
    ran = run(*(a.replace("LOG", str(log)) for a in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert "walkit" in ran.err and "Traceback" not in ran.err
    assert contents(log) == before


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["inspct", "LOG"], "inspect"),
        (["bench", "recover"], "recovery"),
        (["inspect", "LOG", "--frame"], "--frames"),
        (["bench", "write", "--record-byte=5"], "--record-bytes"),
        (["dump", "LOG", "--format", "jsn"], "json"),
        (["nothing-like-it"], None),
    ],
)
def test_misspelt_names_get_the_nearest_one(arguments: list[str], near: str | None, run: Run) -> None:
    """Misspell a command, a kind, options and a choice: the complaint ends with the right name, if one is near."""
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.err.endswith(f"; did you mean {near}?\n") if near else "did you mean" not in ran.err


def on_a_terminal(*runs: tuple[list[str], dict[str, str]]) -> list[str]:
    """Run commands in one process, its standard output on a terminal, each with its variables: code and output."""
    program = (
        "import json, os, sys; from walkit.cli import main\n"
        "for arguments, variables in json.loads(sys.argv[1]):\n"
        "    os.environ.update(variables)\n"
        "    print(main(arguments), end='\\0', flush=True)\n"
    )
    ours, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    command = [sys.executable, "-c", program, json.dumps(runs)]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, cwd=ROOT, env=environment):
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal whose other side is closed
            while read := os.read(ours, 65536):
                said += read
    os.close(ours)
    return said.decode().replace("\r", "").split("\0")[:-1]


def test_reports_fit_the_terminal_and_verdicts_have_a_colour(originals: Path, tmp_path: Path) -> None:
    """Verify an intact and a damaged log at 60 columns: no line is wider; green and red, or none with NO_COLOR."""
    good, log = originals / "closed", shutil.copytree(originals / "closed", tmp_path / "log")
    segment = min(log.glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    green, red, plain = on_a_terminal(
        (["verify", str(good)], {"COLUMNS": "60"}),
        (["verify", str(log)], {}),
        (["verify", str(log)], {"COLUMNS": "200", "NO_COLOR": "1"}),
    )
    assert green[-1] == "0" and "\033[32mok\033[0m" in green and "\033[31m" not in green
    assert red[-1] == "1" and "\033[31mNOT OK\033[0m" in red and "\033[31mcorrupt\033[0m" in red
    shown = re.sub(r"\033\[\d+m", "", red)
    assert max(map(len, shown.splitlines())) <= 60 < len(str(log)) + 60
    assert plain[-1] == "1" and "\033" not in plain


def test_quiet_leaves_out_notes(run: Run, originals: Path, tmp_path: Path) -> None:
    """Save a report with -q and without: a note only then; -q and -v do not go together."""
    out = tmp_path / "report"
    assert run("verify", originals / "closed", "--out", out, "-q").err == ""
    assert str(out) in run("verify", originals / "closed", "--out", out).err
    assert run("verify", originals / "closed", "-q", "-v").code == 2


@pytest.mark.parametrize("wanted", [False, True])
def test_verbose_prints_events(wanted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Open a log in the block that -v makes: its events are on standard error, and without -v they are not."""
    with events_printed(wanted), walkit.open(tmp_path / "log") as log:
        log.append(b"value")
    assert ("walkit.segment" in capsys.readouterr().err) is wanted


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("walkit ins", "inspect"),
        ("walkit bench ", "recovery"),
        ("walkit bench write --peer", "--peers"),
        ("walkit verify --q", "--quiet"),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, found: str, run: Run) -> None:
    """Source the script in bash and ask for the completions of a line: the right names are among them."""
    words = typed.split(" ")
    line = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _walkit; echo ${{COMPREPLY[@]}}"
    script = f"{run('completion').out}\n{ask}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert found in done.stdout.split() and done.stderr == ""


@pytest.mark.parametrize("command", ["inspect", "verify", "dump"])
def test_a_missing_log_exits_3_with_one_sentence(command: str, run: Run, tmp_path: Path) -> None:
    """Point commands at nothing and at a file: one line on standard error, no traceback unless --debug asks for it."""
    (tmp_path / "file").write_text("text")
    for path in (tmp_path / "nothing", tmp_path / "file"):
        ran = run(command, path)
        assert (ran.code, ran.out) == (3, "")
        assert ran.err.startswith(f"walkit {command}: ") and ran.err.count("\n") == 1
        debug = run(command, path, "--debug")
        assert debug.code == 3 and "Traceback" in debug.err and debug.err.endswith(ran.err)


def test_a_place_that_takes_no_file_exits_3(run: Run, originals: Path, tmp_path: Path) -> None:
    """Save into a folder that is not there, and over a folder: one sentence, and no file is left behind."""
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "gone" / "report", tmp_path / "folder"):
        ran = run("verify", originals / "closed", "--out", out)
        assert ran.code == 3 and ran.err.count("\n") == 1, ran.err
    assert [p.name for p in tmp_path.rglob("*")] == ["folder"]


def test_out_saves_what_would_be_printed(run: Run, originals: Path, tmp_path: Path) -> None:
    """Save reports as text and JSON over an old file: the same as printed; with --json it is printed too."""
    out = tmp_path / "report"
    out.write_text("old")
    for command in ("inspect", "verify"):
        printed = run(command, originals / "closed")
        ran = run(command, originals / "closed", "--out", out)
        assert (ran.code, ran.out) == (0, "") and str(out) in ran.err
        assert out.read_text().rsplit(";", 1)[0] == printed.out.rsplit(";", 1)[0]
        ran = run(command, originals / "closed", "--json", "--out", out)
        assert ran.out == out.read_text() and json.loads(ran.out)["ok"] is (
            None if command == "inspect" else True
        )
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


def test_a_device_is_written_and_not_replaced(run: Run, originals: Path) -> None:
    """Save to the null device: it is still a device afterwards."""
    ran = run("dump", originals / "closed", "--out", os.devnull)
    assert ran.code == 0 and not Path(os.devnull).is_file()


def test_a_reader_that_goes_away_ends_a_dump_quietly(originals: Path) -> None:
    """Read one line of a dump that is larger than a pipe and close it: exit 0, nothing on standard error."""
    dump = child("dump", originals / "closed")
    assert dump.stdout is not None and dump.stderr is not None
    assert json.loads(dump.stdout.readline())["lsn"] == 1
    dump.stdout.close()
    assert dump.stderr.read() == b""
    dump.stderr.close()
    assert dump.wait(60) == 0


def test_an_interrupt_exits_130(originals: Path) -> None:
    """Interrupt a dump that waits for its reader: exit 130 and one word, although the reader has stopped."""
    dump = child("dump", originals / "closed")
    assert dump.stdout is not None and dump.stderr is not None
    assert dump.stdout.readline()
    dump.send_signal(signal.SIGINT)
    assert dump.wait(60) == 130
    assert dump.stderr.read() == b"interrupted\n"
    dump.stdout.close()
    dump.stderr.close()


def test_a_full_disk_under_standard_output_exits_3(originals: Path) -> None:
    """Send a dump to the device that is always full: one sentence and exit 3."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "walkit", "dump", str(originals / "closed")],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
    assert done.returncode == 3
    assert done.stderr.startswith(b"walkit dump: ") and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("dump LOG --out OUT", ">&-"),
        # Slow: one stream less is closed than in the next one.
        pytest.param("inspect --json LOG", "2>&-", marks=pytest.mark.slow),
        ("claims LOG", "<&- >&- 2>&-"),
    ],
)
def test_a_closed_standard_stream_stops_no_command(
    command: str, closed: str, originals: Path, tmp_path: Path
) -> None:
    """Start commands without some of the standard streams: the work is done, exit 0, no traceback, no other output."""
    shutil.copytree(originals / "closed", tmp_path / "log")
    before = {file.name: file.read_bytes() for file in (tmp_path / "log").iterdir() if file.suffix != ".lock"}
    words = command.replace("LOG", str(tmp_path / "log")).replace("OUT", str(tmp_path / "out"))
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {shlex.quote(sys.executable)} -m walkit {words} {closed}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=ROOT,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if ">&-" in closed.split():
        assert done.stdout == ""
    elif "--json" in command:
        json.loads(done.stdout)
    if "OUT" in command:
        assert (tmp_path / "out").read_text().count("\n") == RECORDS
    assert all((tmp_path / "log" / name).read_bytes() == data for name, data in before.items())


def test_what_a_command_finds_is_its_exit_code_without_standard_output(
    originals: Path, tmp_path: Path
) -> None:
    """Verify a damaged log with standard output closed: exit 1, as with it."""
    shutil.copytree(originals / "closed", tmp_path / "log")
    segment = min((tmp_path / "log").glob("*.segment"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {shlex.quote(sys.executable)} -m walkit verify {tmp_path / 'log'} >&-"],
        capture_output=True,
        cwd=ROOT,
        text=True,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr


def test_output_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    """Dump a value that is not ASCII under the C locale: UTF-8 all the same."""
    with walkit.open(tmp_path / "log") as log:
        log.append("zwölf €".encode())
    dump = child("dump", tmp_path / "log", env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    out, err = dump.communicate(timeout=60)
    assert (dump.returncode, err) == (0, b"")
    assert json.loads(out.decode())["value"] == "zwölf €"


def test_the_command_is_light() -> None:
    """Import the command and ask for help in a new interpreter: no heavy package, and no room that runs the jobs."""
    program = (
        "import json, sys; from walkit.cli import main; main(['--help'])\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = set(json.loads(done.stderr))
    assert "walkit.cli.arguments" in modules
    heavy = {"pandas", "pyspark", "plotly", "panel", "grpc", "tqdm", "hdrh", "pyarrow.parquet"}
    rooms = {
        "walkit.demo",
        "walkit.workload",
        "walkit.measure",
        "walkit.spark",
        "walkit.plots",
        "walkit.cli.dump",
    }
    assert modules & (heavy | rooms) == set()


def test_the_bench_saves_its_rows_for_pandas(run: Run, tmp_path: Path) -> None:
    """Ask for FILE.parquet: pandas reads the rows that --json prints, all else is in attrs, and the text is printed."""
    import pandas as pd

    out = tmp_path / "rows.parquet"
    ran = run(
        "bench", "write", "--writers", "1,2", "--model", "gp3", "--seconds", "0.05", "--out", out, "--json"
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report, found = json.loads(ran.out), pd.read_parquet(out)
    assert found.attrs == {name: value for name, value in report.items() if name not in ("rows", "schema")}
    assert found["way"].tolist() == [row["way"] for row in report["rows"]]
    assert found["records_per_s"].tolist() == [row["records_per_s"] for row in report["rows"]]
    assert f"{len(found)} rows saved as {out}" in ran.err


@pytest.mark.slow  # tests/replication/test_commands.py measures; here the command prints it
def test_the_bench_of_replication_tells_both_ratios(run: Run, tmp_path: Path) -> None:
    """Measure for moments: JSON alone on standard output, saved as well; the ratios match the columns beside them."""
    work, saved = tmp_path / "work", tmp_path / "saved.json"
    work.mkdir()
    ran = run(
        "bench", "replication", "--writers", "2", "--record-bytes", "64", "--seconds", "0.1", "--path", work,
        "--json", "--out", saved,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert json.loads(saved.read_text()) == report
    assert report["bench"] == "replication"
    assert report["ratio"] == pytest.approx(report["with_replica_per_s"] / report["alone_per_s"])
    assert report["catch_up_ratio"] == pytest.approx(report["catch_up_per_s"] / report["read_per_s"])
    assert min(report["ratio"], report["catch_up_ratio"], report["catch_up_records"]) > 0
    assert list(work.iterdir()) == []


def test_what_the_system_refuses_is_a_file_and_a_reason(tmp_path: Path, run: Run) -> None:
    """Show a log that is not there on the dashboard: the path and the reason, and no number of an error."""
    served = run("dashboard", tmp_path / "absent")
    assert served.code == 3
    assert served.err.splitlines()[-1] == f"walkit dashboard: {tmp_path / 'absent'}: no log and no saved run"
