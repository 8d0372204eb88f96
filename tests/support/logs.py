"""Logs for tests: on memory that can be failed and held up, with short names for the parts used most."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import walkit
from walkit.format.frame import FrameHeader
from walkit.models import CrashingStorage, FaultyStorage
from walkit.read.view import LogView, segments_of
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.segment_set import SegmentSet
from walkit.storage import Storage

SEGMENTS = "*.segment"
SMALL_SEGMENT = 64 * 1024
SMALL_FRAME = 8 * 1024

TINY = walkit.LogOptions(segment_bytes=SMALL_SEGMENT, frame_bytes_max=SMALL_FRAME, idle_marker_ms=0)
"""Rotates every few frames, and writes no marks."""


def tiny(**options: Any) -> walkit.LogOptions:
    """Return `TINY` with changes."""
    return replace(TINY, **options)


def memory_log(options: walkit.LogOptions | None = None, **named: Any) -> walkit.WriteAheadLog:
    """Return a new log in memory."""
    return walkit.open(storage=CrashingStorage(), options=options or tiny(**named))


class FaultyMemory(FaultyStorage):
    """A storage in memory whose operations can be failed or held up."""

    inner: CrashingStorage

    def __init__(self) -> None:
        super().__init__(CrashingStorage())


def faulty_log(events: Any = None, **options: Any) -> tuple[FaultyMemory, walkit.WriteAheadLog]:
    """Return a new log in memory with one record, and its storage."""
    storage = FaultyMemory()
    log = walkit.open(storage=storage, options=tiny(**options), events=events)
    log.append(b"first")
    return storage, log


def values(records: Iterable[walkit.Record]) -> list[bytes | None]:
    """Return the values of records."""
    return [record.value for record in records]


def lsns(records: Iterable[walkit.Record]) -> list[int]:
    """Return the LSNs of records."""
    return [record.lsn for record in records]


def view_of(log: walkit.WriteAheadLog) -> LogView:
    """Return what can be read of an open log at this moment."""
    return segments_of(log.parts.contents.view(), "this test reads them")


def segment_set(log: walkit.WriteAheadLog) -> SegmentSet:
    """Return the segments of an open log in a folder."""
    segments = log.parts.segments
    assert isinstance(segments, SegmentSet)
    return segments


def manifest_store(log: walkit.WriteAheadLog) -> ManifestStore:
    """Return the manifest of an open log in a folder."""
    store = log.parts.manifest_store
    assert isinstance(store, ManifestStore)
    return store


def headers(log: walkit.WriteAheadLog) -> list[FrameHeader]:
    """Return the headers of all frames with records, as they are in the files."""
    return [header for header, _, _ in view_of(log).frames(1)]


def reopened(storage: Storage, options: walkit.LogOptions | None = None) -> list[walkit.Record]:
    """Return the records that the next opening for writing finds."""
    with walkit.open(storage=storage, options=options or TINY) as log:
        return list(log.read())


def run_python(script: str, *arguments: str | Path, timeout: float = 60, check: bool = True) -> Any:
    """Run a script in a process of its own, and return it done; it has printed nothing to standard error if `check`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert not check or (done.returncode == 0 and not done.stderr), done.stdout + done.stderr
    return done


class Child:
    """A Python process that prints lines of JSON and reads lines; killed at the end of the `with` block."""

    def __init__(self, script: str, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> Any:
        """Return what the next line says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended without another line"
        return json.loads(line)

    def send(self, what: object) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
