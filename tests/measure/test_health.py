"""`walkit doctor`: what it finds is there, what is wrong comes with what to do, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import walkit
from walkit.cli import main
from walkit.errors import OptionsError
from walkit.measure import Finding, HealthReport, file_system, health_checks
from walkit.measure.health_checks import _requirements, folder, java, lab, spark_starts
from walkit.storage.object_files import FileObjectStore

ROOT = Path(walkit.__file__).parent.parent
MEMORY = "/dev/shm"


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops on the raw device as long as it takes to have some writes: how many there are is not tested."""
    monkeypatch.setattr("walkit.measure.health_checks.ROUND_S", 0.02)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_extras_are_those_of_the_metadata() -> None:
    """Lines as installed metadata has them: each package once, with its extras; no other Python's packages."""
    lines = [
        "numpy<3,>=2.1",
        'pandas<4,>=2.2; extra == "spark"',
        "pandas<4,>=2.2 ; extra == 'notebooks'",
        'old>=1; (python_version < "3.11") and extra == "peers"',
        'walkit[spark]; extra == "all"',
        'pandas<4,>=2.2; extra == "all"',
    ]
    found = _requirements(lines, ["notebooks", "peers", "spark"])
    ranges = SpecifierSet(">=2.2,<4")
    assert found == {
        "numpy": ([], [SpecifierSet(">=2.1,<3")]),
        "pandas": (["spark", "notebooks"], [ranges, ranges]),
    }


def test_missing_and_old_packages_have_advice(tmp_path: Path) -> None:
    """Metadata that requires absent packages: core is a problem, an extra a note, another version a problem."""
    info = tmp_path / "walkit-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: walkit\nVersion: 9\nRequires-Dist: no-such-core\n"
        "Provides-Extra: docs\nProvides-Extra: peers\n"
        'Requires-Dist: no-such-extra; extra == "peers"\nRequires-Dist: numpy<1\n'
        + "".join(f'Requires-Dist: no-such-{n}; extra == "docs"\n' for n in range(6))
    )
    code = (
        "import json; from walkit.measure.health_checks import packages\n"
        "print(json.dumps([vars(f) for f in packages()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout)
    found = {row["name"]: (row["state"], row["advice"]) for row in rows}
    assert found["walkit"] == ("fine", "")
    assert found["no-such-core"][0] == "problem" and "make setup" in found["no-such-core"][1]
    assert found["extras"] == ("note", "in walkit's checkout: pip install -e '.[docs,peers]'")
    assert [row["found"] for row in rows if row["name"] == "extras"] == [
        "not installed: docs (no-such-0, no-such-1, no-such-2, no-such-3 and 2 more), peers (no-such-extra)"
    ]
    assert found["numpy"][0] == "problem" and "numpy<1" in found["numpy"][1]


def test_missing_packages_are_one_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the packages of notebooks and Spark: those findings point to the one note on extras, and advise nothing."""
    monkeypatch.setattr(health_checks, "_version", lambda name: None)
    monkeypatch.setitem(sys.modules, "walkit.spark.java", None)
    found = [*lab(), *java()]
    assert [(f.state, f.advice) for f in found] == [("fine", "")] * 2
    assert all("see extras" in f.found for f in found)


def test_a_folder_is_measured_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File system, options and disk as measure.file_system has them; the raw device with n and spread; nothing left."""
    found = by_name(list(folder(str(tmp_path))))
    place = file_system(tmp_path)
    assert found["file system"].found.startswith(str(place.type))
    assert found["mount options"].found == place.mount_options
    assert "n=5" in found["raw device, synced 4 KiB writes"].found
    assert "writes/s" in found["raw device, synced 4 KiB writes"].found
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(health_checks, "file_system", lambda _: dataclasses.replace(place, type="btrfs"))
    copying = next(finding for finding in folder(str(tmp_path)) if finding.name == "file system")
    assert copying.state == "note" and "a full disk" in copying.advice


def test_an_object_store_honours_conditional_puts_or_is_a_problem(tmp_path: Path) -> None:
    """A store in a folder is fine, and left without objects; one that cannot be made is a problem with advice."""
    (fine,) = folder(f"objects:{tmp_path}")
    assert (fine.state, fine.found) == ("fine", "honoured")
    with closing(FileObjectStore(tmp_path)) as store:
        assert list(store.list_after("")) == []
    (tmp_path / "file").write_bytes(b"")
    (wrong,) = folder(f"objects:{tmp_path}/file")
    assert wrong.state == "problem" and wrong.advice


@pytest.mark.skipif(not file_system(MEMORY).tmpfs, reason="no file system in memory at /dev/shm")
def test_memory_is_named_plainly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command on a folder of /dev/shm: exit 1, JSON explains tmpfs and the remedy; also saved as a file."""
    out = tmp_path / "report.json"
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:  # others write to the folder itself
        assert main(["doctor", "--path", place, "--json", "--out", str(out)]) == 1
        assert os.listdir(place) == []
    report = json.loads(capsys.readouterr().out)
    assert json.loads(out.read_text()) == report
    (found,) = [f for f in report["findings"] if f["name"] == "file system"]
    assert (found["state"], report["ok"]) == ("problem", False)
    assert "a sync means nothing here" in found["advice"] and "TMPDIR" in found["advice"]


def test_a_folder_that_takes_no_files_is_a_problem() -> None:
    """/proc refuses new files, of root too: a problem with advice, and no traceback."""
    found = by_name(list(folder("/proc")))
    assert found["writing"].state == "problem" and "may write" in found["writing"].advice


def test_the_report_says_the_same_everywhere() -> None:
    """Text, HTML and plain values of a made report: every finding, problems with their advice, all escaped."""
    report = HealthReport(
        findings=(
            Finding(part="packages", name="numpy", found="2.4"),
            Finding(part="folder <x>", name="disk", found="none", state="problem", advice="buy <one>"),
            Finding(part="folder <x>", name="free", found="1 GiB", state="note", advice="tidy"),
        )
    )
    text, html = report.text(), report._repr_html_()
    assert "problem: disk: buy <one>" in text and "note: free: tidy" in text and "1 problem found" in text
    assert "buy &lt;one&gt;" in html and "<one>" not in html and "background" not in html
    assert [problem.name for problem in report.problems] == ["disk"]
    assert json.loads(json.dumps(report.to_dict()))["findings"][1]["advice"] == "buy <one>"
    assert HealthReport(findings=report.findings[:1]).ok


def test_the_report_is_there_in_python(tmp_path: Path) -> None:
    """walkit.doctor on a folder: parts in order, progress reported; a file is refused."""
    told: list[str] = []
    report = walkit.doctor([tmp_path], progress=told.append)
    parts = list(dict.fromkeys(finding.part for finding in report.findings))
    assert parts == ["packages", f"folder {tmp_path}", "Spark", "dashboard and notebooks"]
    assert told[0] == f"measuring the disk of {tmp_path}"
    assert all(finding.advice for finding in report.problems)
    with pytest.raises(OptionsError, match="folders="):
        walkit.doctor([tmp_path / "absent"])


@pytest.mark.slow
@pytest.mark.spark
def test_spark_starts_in_a_process_of_its_own() -> None:
    """Start it: it counts its rows, and no child is left."""
    import psutil

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    (found,) = spark_starts()
    assert found.state == "fine" and found.found.startswith("yes, 4."), found
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
