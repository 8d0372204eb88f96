"""The manifest of an open log: numbers that are given once, whoever asks."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import pytest

from tests.stores import memory_store, run_threads
from walkit.errors import StorageError
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import Manifest
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage, FaultyStorage
from walkit.segments.manifest_store import ManifestStore, load_manifest


def test_a_number_is_given_once() -> None:
    """Take numbers in threads, with manifests in between that name some of them: no number twice, none given before."""
    storage = CrashingStorage()
    storage.create()
    store = ManifestStore(storage, Manifest(log_id=1, next_segment=7))
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(thread: int) -> None:
        for i in range(100):
            number = store.take_number()
            taken[thread].append(number)
            if i % 10 == thread:
                store.update(lambda m, n=number: m.next(next_segment=max(m.next_segment, n + 1)))  # type: ignore[misc]

    run_threads(4, take)
    assert sorted(n for numbers in taken for n in numbers) == list(range(7, 407))
    assert store.take_number() == 407 >= load_manifest(storage).next_segment


def test_a_number_is_not_given_again_after_a_failure() -> None:
    """Fail the manifest that would name a number: the next one is another, as the file may be there all the same."""
    storage = CrashingStorage()
    storage.create()
    faulty = FaultyStorage(storage)
    store = ManifestStore(faulty, Manifest(log_id=1))
    first = store.take_number()
    faulty.fail("replace", landed=True)
    with contextlib.suppress(StorageError):
        store.update(lambda m: m.next(next_segment=first + 1))
    assert store.current.next_segment == first
    assert store.take_number() == first + 1


def test_rotation_and_compaction_never_share_a_number() -> None:
    """Write and compact at the same time: every segment that was ever made has a number of its own."""
    storage = CrashingStorage()
    made: list[int] = []

    with memory_store(storage) as store:
        inner = store.log.parts.manifest_store.take_number

        def noted() -> int:
            made.append(inner())
            return made[-1]

        store.log.parts.manifest_store.take_number = noted  # type: ignore[method-assign]

        def work(thread: int) -> None:
            for i in range(150 if thread else 12):
                if thread:
                    store.put(b"%d" % (i % 3), b"%d" % i * 2000)
                else:
                    store.compact()

        run_threads(3, work)
        store.compact()
        flags = {s.flags for s in store.log.parts.manifest_store.current.sealed}
    assert SegmentFlag.COMPACTED in flags and len(made) > 10
    assert len(set(made)) == len(made)


def test_a_file_that_somebody_put_there_is_never_overwritten() -> None:
    """Put files under the next numbers of an open store, write and compact: they are passed over and stay."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        for i in range(40):
            store.put(b"k", b"%d" % i * 4000)
        store.log.wait_idle()
        number = store.log.parts.manifest_store.take_number()
        others = [segment_name(n) for n in range(number + 1, number + 6)]
        for name in others:
            storage.open(name, "create").write(0, [name.encode()])
        report: Any = store.compact()
        assert report.segments_rewritten > 0
        for i in range(40):
            store.put(b"k", b"%d" % i * 4000)
        for name in others:
            assert storage.open(name, "read").read(0, 100) == name.encode()


def test_reading_a_manifest_lists_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the manifest of a folder that may be large: it is opened by its name, and the folder is not listed."""
    with memory_store() as store:
        storage = store.log.parts.storage
        store.put(b"k", b"v")

        def listed(folder: str = "") -> list[str]:
            raise AssertionError(f"listed {folder!r}")

        monkeypatch.setattr(storage, "names", listed)
        assert load_manifest(storage) == store.log.parts.manifest_store.current
        monkeypatch.undo()


def test_a_log_that_is_made_this_very_moment_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the manifest and a segment appear between the look for the manifest and the listing: it is read then."""
    with memory_store() as store:
        storage = store.log.parts.storage
        store.put(b"k", b"v")
        opened, missing = storage.open, [StorageError("gone", errno=errno.ENOENT, name="manifest")]

        def open_late(*arguments: Any) -> Any:
            if missing:
                raise missing.pop()
            return opened(*arguments)

        monkeypatch.setattr(storage, "open", open_late)
        assert load_manifest(storage) == store.log.parts.manifest_store.current
        monkeypatch.undo()
