"""Scratch logs and Stores: a cell run twice, names, options, and the removal of each log's files."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import Child, run_python, values
from walkit.log import scratch as room


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, and no scratch log yet, for each test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(room, "_home", None)
    yield tmp_path
    for log in walkit.open_logs():
        if log.location.startswith(str(tmp_path)):
            log.close()


@pytest.mark.parametrize("make", [walkit.scratch, walkit.Store.scratch])
@pytest.mark.parametrize("closed", [False, True])
def test_a_cell_run_twice_gives_a_new_empty_log_and_an_event(make: Any, closed: bool) -> None:
    """The same name again, the earlier one open or closed: it ends closed, its files go, and an event reports it."""
    told: list[tuple[str, dict[str, Any]]] = []
    earlier = make("cell", events=lambda name, facts: told.append((name, facts)))
    log = getattr(earlier, "log", earlier)
    log.append(b"value", b"key")
    assert os.path.isdir(log.location)
    if closed:
        earlier.close()
    again = make("cell", events=lambda name, facts: told.append((name, facts)))
    new = getattr(again, "log", again)
    assert earlier.closed if make is walkit.scratch else log.closed
    assert not os.path.exists(log.location) and os.path.isdir(new.location)
    assert (new.acked_lsn, new.recovery.verdict) == (0, "created")
    replaced = [facts for name, facts in told if name == "walkit.scratch.replace"]
    assert replaced == [{"name": "cell", "removed": log.location, "location": new.location}]
    assert new.append(b"1").first_lsn == 1
    with pytest.raises(walkit.LogClosedError):
        log.append(b"2")
    again.close()


def test_a_log_takes_the_place_of_a_store_and_other_names_stay() -> None:
    """Names are shared by logs and Stores and exact: "a b" and "a-b" are two, and neither is touched by a third."""
    first, second = walkit.scratch("a b"), walkit.scratch("a-b")
    store = walkit.Store.scratch("s")
    log = walkit.scratch("s")
    assert store.log.closed
    assert len({log.location, first.location, second.location}) == 3
    assert not (first.closed or second.closed or log.closed)
    assert {first, second, log} <= set(walkit.open_logs())


def test_the_default_logger_warns_the_second_time(caplog: pytest.LogCaptureFixture) -> None:
    """Without `events=`: nothing is logged the first time, and a warning, which a notebook shows, the second."""
    log = walkit.scratch("cell")
    assert "walkit.scratch.replace" not in caplog.text
    log = walkit.scratch("cell")
    assert [r.levelname for r in caplog.records if "walkit.scratch.replace" in r.getMessage()] == ["WARNING"]
    log.close()


def test_options_pass_through_and_refused_ones_leave_the_earlier_log() -> None:
    """The options are the log's; if refused, nothing is left of the new log and the earlier one works on."""
    options = walkit.LogOptions(durability="interval", interval_ms=7)
    log = walkit.scratch("cell", options)
    assert log.options == options
    home = Path(log.location).parent
    for wrong in ("sync", {"durability": "sync"}):
        with pytest.raises(walkit.OptionsError):
            walkit.scratch("cell", wrong)  # type: ignore[arg-type]
    assert not log.closed and log.append(b"1").first_lsn == 1
    assert sorted(os.listdir(home)) == ["cell", room.LOCK_FILE]


def test_names_cannot_leave_the_folder() -> None:
    """Names with slashes, dots and nothing in them: all logs stand side by side in the folder of this process."""
    logs = [walkit.scratch(name) for name in ("../../up", "", ".", "a/b", room.LOCK_FILE)]
    assert len({os.path.dirname(log.location) for log in logs}) == 1
    assert len({log.location for log in logs}) == 5
    assert Path(logs[0].location).parent.parent == Path(tempfile.gettempdir())


KILLED = """
    import json, sys, walkit
    log = walkit.scratch("killed")
    log.append(b"1")
    print(json.dumps(log.location), flush=True)
    sys.stdin.readline()
"""


def test_what_a_killed_process_left_is_swept_and_a_living_one_is_let_be(own_folder: Path) -> None:
    """Kill one process with a scratch log and leave one alive: the next scratch log removes the first's files only."""
    (own_folder / "walkit-scratch-file").write_bytes(b"not a folder")
    with Child(KILLED) as dead, Child(KILLED) as alive:
        left, kept = dead.read(), alive.read()
        dead.process.send_signal(signal.SIGKILL)
        dead.process.wait()
        assert os.path.isdir(left) and os.path.isdir(kept)
        log = walkit.scratch("mine")
        assert not os.path.exists(os.path.dirname(left)) and os.path.isdir(kept)
        assert room.sweep() == []
        assert os.path.isdir(log.location) and (own_folder / "walkit-scratch-file").exists()


FORKED = """
    import os, sys, walkit
    log, closed = walkit.scratch("parents"), walkit.scratch("closed")
    closed.close()
    child = os.fork()
    if child == 0:
        other = walkit.scratch("parents")
        assert os.path.dirname(other.location) != os.path.dirname(log.location)
        other.append(b"child")
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.isdir(log.location) and os.path.isdir(closed.location)
    log.append(b"parent")
    print(os.path.dirname(log.location))
"""


def test_a_forked_child_has_its_own_folder_and_removes_only_that(own_folder: Path) -> None:
    """Fork with scratch logs, open or closed, and end the child in order: the parent's are there until its own end."""
    place = run_python(FORKED).stdout.strip()
    assert not os.path.exists(place)
    assert [name for name in os.listdir(own_folder) if "walkit" in name] == []


def test_files_beside_a_scratch_log_go_with_the_process() -> None:
    """Copy a log next to itself and end the process by an exception: nothing of either is left."""
    script = """
        import shutil, walkit
        log = walkit.scratch("original")
        log.append(b"1")
        print(shutil.copytree(log.location, log.location + "-copy"), flush=True)
        raise SystemExit(3)
    """
    done = run_python(script, check=False)
    assert done.returncode == 3 and done.stderr == ""
    assert not os.path.exists(os.path.dirname(done.stdout.strip()))


def _exchange(path: str | Path) -> Path:
    """Rename a folder away, and put another one with a file of somebody else at its name; return that file."""
    os.rename(path, f"{path}-kept")
    os.mkdir(path)
    precious = Path(path, "precious")
    precious.write_bytes(b"precious")
    return precious


def _leave_again(log: walkit.WriteAheadLog) -> None:
    walkit.scratch("cell").close()


def _leave_unreferenced(log: walkit.WriteAheadLog) -> None:
    assert log.closed


@pytest.mark.parametrize("leave", [_leave_again, _leave_unreferenced])
def test_a_folder_that_took_the_name_of_a_scratch_log_stays(
    leave: Callable[[walkit.WriteAheadLog], None],
) -> None:
    """Move a scratch log away and put a folder at its name; then replace it, or drop it: both folders stay."""
    log = walkit.scratch("cell")
    log.append(b"1")
    log.close()
    place = log.location
    precious = _exchange(place)
    leave(log)
    del log
    gc.collect()
    assert precious.read_bytes() == b"precious"
    with walkit.open(f"{place}-kept", mode="r") as reader:
        assert values(reader.read()) == [b"1"]


EXCHANGED = """
    import os, walkit
    from tests.log.test_scratch import _exchange
    log = walkit.scratch("cell")
    log.append(b"1")
    log.close()
    print(_exchange(os.path.dirname(log.location)))
"""


def test_the_end_of_a_process_removes_only_its_own_folder() -> None:
    """Replace the folder of scratch logs and end the process: the new file of that name stays, and the folder too."""
    precious = Path(run_python(EXCHANGED).stdout.strip())
    assert precious.read_bytes() == b"precious"
    assert os.path.isdir(f"{precious.parent}-kept")


def test_a_sweep_leaves_folders_without_an_owner(own_folder: Path) -> None:
    """Sweep beside folders of the same prefix: a person's, a linked one, a living process's without its lock file."""
    mine, linked = own_folder / f"{room.PREFIX}notes", own_folder / "linked"
    for folder in (mine, linked):
        folder.mkdir()
        (folder / "precious").write_bytes(b"precious")
    (linked / room.LOCK_FILE).write_bytes(b"")
    (own_folder / f"{room.PREFIX}link").symlink_to(linked)
    pipe = own_folder / f"{room.PREFIX}pipe"
    pipe.mkdir()
    os.mkfifo(pipe / room.LOCK_FILE)
    with Child(KILLED) as alive:
        kept = Path(alive.read())
        (kept.parent / room.LOCK_FILE).unlink()
        assert room.sweep() == []
        assert kept.is_dir() and pipe.is_dir()
        assert all((folder / "precious").exists() for folder in (mine, linked))


def test_scratch_logs_survive_a_tidied_folder_for_temporary_files(own_folder: Path) -> None:
    """Remove this process's folder beneath a scratch log: the next one is made in a new folder, and replaces it."""
    first = walkit.scratch("cell")
    shutil.rmtree(os.path.dirname(first.location))
    again = walkit.scratch("cell")
    assert first.closed and again.append(b"1").first_lsn == 1
    assert os.path.dirname(first.location) != os.path.dirname(again.location)
    again.close()
