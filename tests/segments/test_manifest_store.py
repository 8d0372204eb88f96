"""The manifest of an open log: numbers that are given once, and edits that are kept, promised, or made a new base."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.stores import memory_store, run_threads
from walkit.errors import CorruptionError, FormatVersionError, StorageError, WalkitError
from walkit.format.checksum import crc32c
from walkit.format.layout import FORMAT_DRAFT
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage, FaultyStorage
from walkit.segments.manifest_store import DURABLE_NAME, ManifestStore, load_manifest, load_manifest_file
from walkit.storage.interface import Storage

OPTIONS = walkit.LogOptions(segment_bytes=64 << 10)


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


def test_a_log_made_at_this_moment_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
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


def edited() -> tuple[CrashingStorage, bytes, bytes]:
    """Kill the writer of three segments; return the rest, the manifest file before its last edit, and with it."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=OPTIONS) as log:
        for _ in range(3):
            log.append(bytes(33 << 10))
        log.wait_idle()
        before = file_of(storage)
        log.parts.manifest_store.update(lambda m: m.next(next_segment=50))
        return storage.process_kill(), before, file_of(storage)


def file_of(storage: Storage, name: str = MANIFEST_NAME) -> bytes:
    """Return the bytes of a file."""
    file = storage.open(name, "read")
    data = file.read(0, 1 << 20)
    file.close()
    return data


def put(storage: Storage, data: bytes, name: str = MANIFEST_NAME) -> None:
    """Write bytes over those of a file, durably."""
    file = storage.open(name, "write")
    file.write(0, [data], sync=True)
    file.close()


@pytest.mark.parametrize("operation", ["synced_write", "sync"])
def test_after_a_sync_that_failed_comes_a_new_base(operation: Any) -> None:
    """Fail the write of an edit or its sync: that file gets no further edit, and the next change is a new base."""
    storage = FaultyStorage(CrashingStorage())
    with walkit.open(storage=storage, options=OPTIONS) as log:
        log.append(b"1")
        store, base = log.parts.manifest_store, load_manifest_file(storage).base_crc
        fault = storage.fail("synced_write", MANIFEST_NAME, landed=operation == "sync")
        with pytest.raises(StorageError):
            store.update(lambda m: m.next(next_segment=m.next_segment + 1))
        assert fault.hits == 1 and load_manifest_file(storage).base_crc == base
        assert store.update(lambda m: m.next(next_segment=m.next_segment + 2)) == load_manifest(storage)
        assert load_manifest_file(storage).base_crc != base


@pytest.mark.parametrize("promise", ["durable", "header"])
def test_an_edit_that_is_promised_and_missing_is_damage(promise: str) -> None:
    """Take the last edit away, which the durable slot promises, or a segment's header alone: CorruptionError."""
    storage, before, _ = edited()
    if promise == "header":
        with walkit.open(storage=storage, options=OPTIONS) as log:
            for _ in range(2):
                log.append(bytes(33 << 10))
            log.wait_idle()
        storage.remove(DURABLE_NAME)
    put(storage, before.ljust(len(file_of(storage)), b"\0"))
    with pytest.raises(CorruptionError, match="older"):
        walkit.open(storage=storage, options=OPTIONS)
    assert not walkit.verify(storage).ok


def test_an_edit_that_nothing_promises_may_be_torn() -> None:
    """Tear the last edit and take its promise away: the state before it is opened, and no byte of the edit is left."""
    storage, before, after = edited()
    offset = next(at for at in range(len(before)) if before[at] != after[at])
    put(storage, after[: offset + 30].ljust(len(after), b"\0"))
    storage.remove(DURABLE_NAME)
    found = load_manifest_file(storage)
    assert found.torn_until > found.offset == offset - offset % 64 and found.manifest.next_segment < 50
    with walkit.open(storage=storage, options=OPTIONS) as log:
        assert log.acked_lsn == 3
    assert load_manifest_file(storage).torn_until == 0


def test_a_manifest_with_a_second_name_is_replaced(tmp_path: Path) -> None:
    """Give the file a second name, as a copy of hard links has: the next change leaves that file as it is."""
    with walkit.open(tmp_path / "log", options=OPTIONS) as log:
        log.append(b"1")
        linked = tmp_path / "copy"
        os.link(tmp_path / "log" / MANIFEST_NAME, linked)
        before = linked.read_bytes()
        log.parts.manifest_store.update(lambda m: m.next(next_segment=m.next_segment + 1))
        assert linked.read_bytes() == before != (tmp_path / "log" / MANIFEST_NAME).read_bytes()


def test_a_reader_that_meets_half_an_edit_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reader find half an edit at its first look, and the whole one at the second: it has the newer state."""
    storage, before, after = edited()
    offset = next(at for at in range(len(before)) if before[at] != after[at])
    looks, opened = [after[: offset + 30].ljust(len(after), b"\0"), after], storage.open

    def open_and_change(name: str, mode: Any) -> Any:
        if name == MANIFEST_NAME and looks:
            file = opened(name, "write")
            file.write(0, [looks.pop(0)])
            file.close()
        return opened(name, mode)

    monkeypatch.setattr(storage, "open", open_and_change)
    assert load_manifest(storage).next_segment == 50 and not looks


TOOLS: dict[str, Callable[[Storage], object]] = {
    "open": lambda storage: walkit.open(storage=storage).close(),
    "read": lambda storage: walkit.open(storage=storage, mode="r").first_lsn,
    "repair": walkit.repair,
    "salvage": lambda storage: walkit.repair(storage, policy="salvage"),
    "verify": walkit.verify,
    "scan": walkit.scan,
    "claim": lambda storage: walkit.claim(storage, "reader", 1),
    "store": lambda storage: walkit.Store.open(storage=storage).close(),
}


@pytest.mark.parametrize("where", ["manifest", "headers"])
@pytest.mark.parametrize("tool", TOOLS)
def test_another_draft_is_refused_and_stays(tool: str, where: str) -> None:
    """Write another draft into the manifest, or into the headers of segments without one: no tool changes a byte."""
    storage, _, _ = edited()
    if where == "manifest":
        data = bytearray(file_of(storage))
        data[28:32] = (FORMAT_DRAFT + 1).to_bytes(4, "little")
        start = len(data) - int.from_bytes(data[32:36], "little")
        data[24:28] = crc32c(bytes(data[28:start]), crc32c(bytes(data[:24]))).to_bytes(4, "little")
        put(storage, bytes(data))
    else:
        storage.remove(MANIFEST_NAME)
        for name in (n for n in storage.names() if n.endswith(".segment")):
            block = bytearray(file_of(storage, name)[:4096])
            block[128:132] = (FORMAT_DRAFT + 1).to_bytes(4, "little")
            block[4092:] = crc32c(bytes(block[:4092])).to_bytes(4, "little")
            put(storage, bytes(block), name)
    before = {name: file_of(storage, name) for name in storage.names() if not name.endswith("/")}
    refusal: WalkitError | None = None
    try:
        TOOLS[tool](storage)
    except WalkitError as error:
        refusal = error
    # The others see a log without its manifest, whose headers they do not read.
    is_read = where == "manifest" or tool in ("repair", "salvage", "verify", "scan")
    assert isinstance(refusal, FormatVersionError if is_read else CorruptionError), refusal
    after = {name: file_of(storage, name) for name in storage.names() if not name.endswith("/")}
    assert {n: d for n, d in after.items() if n != "lock"} == {n: d for n, d in before.items() if n != "lock"}
