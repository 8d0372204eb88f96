"""The class archive: what sessions take, and that a damaged one is never taken."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from walkit.spark.archive import INDEX, archive_folder, archive_options
from walkit.spark.java import JavaHome, find_java


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JavaHome:
    """The machine's own Java, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return find_java()


def put_archive(java: JavaHome, content: bytes, *, index: object) -> Path:
    """Put an archive with this index where sessions look."""
    folder = archive_folder(java)
    folder.mkdir(parents=True)
    (folder / "spark-1.jsa").write_bytes(content)
    (folder / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    return folder


def test_no_archive_no_options(java: JavaHome) -> None:
    """An empty cache: sessions start without an archive."""
    assert archive_options(java) == []


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"spark-1.jsa": 8},
        {"spark-1.jsa": 9, "base-1.jsa": 9},
        "half an ind",
        "[]",
        "null",
        '{"spark-1.jsa": "9"}',
    ],
)
def test_an_archive_that_is_not_whole_is_left_out(java: JavaHome, index: object) -> None:
    """Another size than the index says, a missing file, a damaged index: no option names the archive."""
    put_archive(java, b"nine bytes"[:9], index=index)
    assert archive_options(java) == []


def test_bytes_that_are_no_archive_do_not_stop_the_jvm(java: JavaHome) -> None:
    """The size is right and the bytes are not: the JVM starts, and says nothing on standard output."""
    folder = put_archive(java, bytes(range(256)) * 512, index={"spark-1.jsa": 131_072})
    options = archive_options(java)
    assert f"-XX:SharedArchiveFile={folder / 'spark-1.jsa'}" in options
    done = subprocess.run(
        [java.runtime / "bin" / "java", *options, "-version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert java.version in done.stderr


def test_two_archives_are_named_base_first(java: JavaHome) -> None:
    """A runtime without an archive of its own: ours is stacked on one that was made for it."""
    folder = put_archive(java, b"top", index={"base-1.jsa": 4, "spark-1.jsa": 3})
    (folder / "base-1.jsa").write_bytes(b"base")
    assert archive_options(java)[0] == f"-XX:SharedArchiveFile={folder}/base-1.jsa:{folder}/spark-1.jsa"


def test_a_folder_that_an_option_cannot_name(
    java: JavaHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark splits the JVM's options at blanks, so a cache folder with a blank in its name is not used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    put_archive(java, b"x", index={"spark-1.jsa": 1})
    assert archive_options(java) == []


def test_another_jvm_than_hotspot_gets_no_options(java: JavaHome) -> None:
    """The options are HotSpot's own."""
    put_archive(java, b"x", index={"spark-1.jsa": 1})
    other = JavaHome(
        path=java.path, version=java.version, source=java.source, runtime=java.runtime, hotspot=False
    )
    assert archive_options(java)
    assert archive_options(other) == []
