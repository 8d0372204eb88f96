"""`walkit.open`, `open_async` and `Store.open` with a log on object storage, and real writers that are killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from walkit.errors import (
    LogNotFoundError,
    ObjectThrottledError,
    ObjectUnknownError,
    OptionsError,
    StorageError,
)
from walkit.objects.layout import CLAIMS_KEY, BulkHeader, Claims, object_key
from walkit.objects.open import open_object_writer
from walkit.storage import MemoryObjectStore
from walkit.storage.object_memory import ObjectFault, ObjectRequest

WRITER = """
import sys
import walkit
with walkit.open(sys.argv[1], options=walkit.LogOptions(in_flight=4)) as log:
    print("open", log.acked_lsn, flush=True)
    n = log.acked_lsn
    while True:
        tickets = [log.submit(b"%d" % (n + i)) for i in range(1, 9)]
        for ticket in tickets:
            print(ticket.result().first_lsn, flush=True)
        n += 8
"""


def test_a_url_is_a_log_like_a_folder(tmp_path: Path) -> None:
    """Open `objects:/folder` for writing, for reading and in an event loop; the URL is its location."""
    url = f"objects:{tmp_path}/log"
    with pytest.raises(LogNotFoundError):
        walkit.open(url, "r")
    with walkit.open(url, "x") as log:
        assert log.location == url and log.append(b"a", key=b"k").first_lsn == 1
        with walkit.open(url, mode="r") as reader:
            assert [r.value for r in reader.read()] == [b"a"] and reader.location == url

    async def appended() -> list[bytes | None]:
        async with walkit.open_async(url) as log:
            await log.append(b"b")
            return [r.value async for r in log.read_async()]

    assert asyncio.run(appended()) == [b"a", b"b"]


def test_a_store_keeps_its_state_in_a_log_on_object_storage(tmp_path: Path) -> None:
    """Put and delete keys in a store over objects, save them or not, open it again: the state is there."""
    url = f"objects:{tmp_path}/log"
    with walkit.Store.open(url) as store:
        store[b"a"] = b"1"
        store[b"b"] = b"2"
        del store[b"a"]
    with walkit.Store.open(url) as store:
        assert dict(store.items()) == {b"b": b"2"}
        assert store.checkpoint().low_watermark == 3
        store[b"c"] = b"3"
    with walkit.Store.open(url) as store:
        assert store.recovery.phases[-1].detail["records"] == 1 and store.log.first_lsn == 4
        assert dict(store.items()) == {b"b": b"2", b"c": b"3"} and dict(store.state_at(3)) == {b"b": b"2"}


def test_options_of_a_store_are_for_a_url_and_are_not_shown(tmp_path: Path) -> None:
    """Give storage_options with a folder, and with `objects:`: OptionsError, without their values."""
    for place in (tmp_path / "log", f"objects:{tmp_path}/log"):
        with pytest.raises(OptionsError) as caught:
            walkit.open(place, storage_options={"secret": "hidden-value"})
        assert "hidden-value" not in repr(caught.value)


@pytest.mark.parametrize("options", [{1: "v"}, "x", [("region", "y")]])
def test_options_of_a_store_are_names_and_values(options: Any, tmp_path: Path) -> None:
    """Give storage_options of other kinds: OptionsError before any request."""
    for url in ("s3://bucket/log", f"objects:{tmp_path}/log"):
        with pytest.raises(OptionsError, match="storage_options"):
            walkit.open(url, "r", storage_options=options)


def test_places_of_both_kinds_are_not_mixed(tmp_path: Path) -> None:
    """Open a folder's log as objects, and copy a log on object storage into itself: refused, and no file is added."""
    walkit.open(tmp_path / "log").close()
    walkit.open(f"objects:{tmp_path}/objects").close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageError):
        walkit.open(f"objects:{tmp_path}/log")
    with pytest.raises(OptionsError, match="outside it"):
        walkit.copy(f"objects:{tmp_path}/objects", tmp_path / "objects" / "copy")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_busy_store_is_probed_again() -> None:
    """Refuse a request of the probe of conditional writes as busy, and lose the answer of another: it is repeated."""
    faults = {1: ObjectFault(before=ObjectThrottledError), 4: ObjectFault(after=ObjectUnknownError)}
    store = MemoryObjectStore(lambda request: faults.get(request.number))
    open_object_writer(store, is_url=True).close()
    assert [entry.key for entry in store.list_after("probe")] == []


def test_an_object_store_of_ones_own_is_not_closed_and_not_probed() -> None:
    """Pass a store as path and as storage: it is used as it is; both at once are refused."""
    store = MemoryObjectStore()
    with walkit.open(store) as log:
        log.append(b"a")
    with walkit.open(storage=store, mode="r") as reader:
        assert [r.value for r in reader.read()] == [b"a"]
    assert not any("probe" in request.key for request in store.requests)
    with pytest.raises(OptionsError):
        walkit.open(store, storage=store)


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    """Kill -9 a real writer over files three times, after some acknowledgements: each is in the log under its LSN."""
    url, last = f"objects:{tmp_path}/log", 0
    for acked in (1, 20, 61):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            opened = writer.stdout.readline().split()
            assert opened[0] == "open" and int(opened[1]) >= last
            for _ in range(acked):
                last = int(writer.stdout.readline())
            writer.kill()
            last = max([last, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
    with walkit.open(url) as log:
        values = [r.value for r in log.read()]
        assert len(values) >= last and values == [b"%d" % lsn for lsn in range(1, len(values) + 1)]


def test_an_opener_that_slept_through_writes_an_opening_and_a_trim_is_fenced() -> None:
    """Stop an opener before its fence; others write, open, and delete below a new floor: its fence does not count."""
    store = MemoryObjectStore()
    old = walkit.open(store.client())
    old.append(b"1")

    def meanwhile(request: ObjectRequest) -> ObjectFault | None:
        if request.method == "put_if_absent" and request.key.startswith("log/") and not newer:
            old.append(b"2")
            newer.append(walkit.open(store.client()))
            newer[0].append(b"3")
            trim(store, newer[0])
        return None

    newer: list[walkit.WriteAheadLog] = []
    with pytest.raises(walkit.LogFencedError):
        walkit.open(store.client(meanwhile))
    assert newer[0].append(b"4").first_lsn == 4
    newer[0].close()
    old.close()


def trim(store: MemoryObjectStore, log: walkit.WriteAheadLog) -> None:
    """Do what a trim by the newest writer does: move the floor in the claims object, delete the bulks below."""
    found = store.get(CLAIMS_KEY)
    last = max(n for e in store.list_after("log") if (n := int(e.key[4:])))
    floor = BulkHeader.decode(store.get(object_key(last)).data).end
    store.put_if_match(CLAIMS_KEY, replace(Claims.decode(found.data), floor=floor).encode(), found.tag)
    for entry in list(store.list_after("log")):
        if not BulkHeader.decode(store.get(entry.key).data).is_fence:
            store.delete(entry.key)
