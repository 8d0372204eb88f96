"""`walkit remove`: a log on object storage is deleted, after a question, and never by halves without a mark."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from walkit.cli import main
from walkit.errors import ClaimError, LogNotFoundError, ObjectStoreError, ObjectUnsupportedError
from walkit.objects.layout import CLAIMS_KEY, Claims
from walkit.objects.remove import remove_log
from walkit.storage import MemoryObjectStore, ObjectFault, ObjectRequest


def written(store: MemoryObjectStore) -> None:
    with walkit.open(store.client()) as log:
        log.append_many([b"v"] * 10)
        log.append(b"w")


def keys(store: MemoryObjectStore) -> list[str]:
    return [entry.key for entry in store.list_after("")]


def test_the_command_asks_and_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answer no, then yes: exit codes 1 and 0, and the log is gone; a folder is a wrong argument."""
    url = f"objects:{tmp_path}/log"
    walkit.open(url).close()
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert main(["remove", url]) == 1
    walkit.open(url, mode="r").close()
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert main(["remove", url]) == 0 and "deleted 1 bulk" in capsys.readouterr().out
    with pytest.raises(LogNotFoundError):
        walkit.open(url, mode="r")
    assert main(["remove", "--yes", url]) == 3 and main(["remove", str(tmp_path)]) == 2


def test_a_removal_that_ends_anywhere_is_finished_by_the_next() -> None:
    """End a removal before each of its requests: the log is as before, or nothing opens it; the next call ends it."""
    number = 0
    while True:
        store = MemoryObjectStore()
        written(store)

        def plan(request: ObjectRequest, number: int = number) -> ObjectFault | None:
            return ObjectFault(before=ObjectStoreError) if request.number >= number else None

        client = store.client(plan)
        try:
            remove_log(client)
            assert keys(store) == []
            break
        except ObjectStoreError:
            pass
        try:
            with walkit.open(store.client(), mode="r") as reader:
                assert reader.last_lsn == 11
        except LogNotFoundError:
            with pytest.raises(LogNotFoundError, match="removed"):
                walkit.open(store.client())
        remove_log(store.client())
        assert keys(store) == []
        number += 1
    assert number > 5


def test_what_keeps_a_log_from_being_removed() -> None:
    """A live claim, a store that cannot list, no log: typed errors, and every object is there."""
    store = MemoryObjectStore()
    with pytest.raises(LogNotFoundError):
        remove_log(store)
    written(store)
    found = store.get(CLAIMS_KEY)
    claimed = replace(Claims.decode(found.data), claims={"reader": [1]})
    store.put_if_match(CLAIMS_KEY, claimed.encode(), found.tag)
    before = sorted(keys(store))
    with pytest.raises(ClaimError, match="reader"):
        remove_log(store)
    blind = store.client()
    blind.can_list = False
    with pytest.raises(ObjectUnsupportedError):
        remove_log(blind)
    assert sorted(keys(store)) == before
