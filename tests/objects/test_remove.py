"""`walkit remove`: a log on object storage is deleted, after a question, and never by halves without a mark."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.support.threads import wait_until
from walkit.cli import main
from walkit.commit.policy import OneRecordPerFrame
from walkit.errors import (
    ClaimError,
    CommitFailedError,
    LogNotFoundError,
    LogPoisonedError,
    ObjectStoreError,
    ObjectUnsupportedError,
)
from walkit.objects.layout import CLAIMS_KEY, Claims
from walkit.objects.object_sink import SAVE_OBJECTS
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
    claimed = replace(Claims.decode(found.data), claims={"reader": "00"})
    store.put_if_match(CLAIMS_KEY, claimed.encode(), found.tag)
    before = sorted(keys(store))
    with pytest.raises(ClaimError, match="reader"):
        remove_log(store)
    blind = store.client()
    blind.can_list = False
    with pytest.raises(ObjectUnsupportedError):
        remove_log(blind)
    assert sorted(keys(store)) == before


@pytest.mark.parametrize("is_remade", [False, True])
def test_a_writer_whose_log_was_removed_fails_when_it_saves(is_remade: bool) -> None:
    """Remove the log of a writer, and make another there: its next save ends it, with the cause in an event."""
    store, failed = MemoryObjectStore(), list[object]()

    def note(name: str, attributes: dict[str, object]) -> None:
        if name == "walkit.log.poison":
            failed.append(attributes["cause"])

    options = walkit.LogOptions(policy=OneRecordPerFrame())
    log = walkit.open(store.client(), options=options, events=note)
    log.append(b"kept")
    remove_log(store)
    if is_remade:
        walkit.open(store.client()).close()
    with suppress(LogPoisonedError, CommitFailedError):
        for _ in range(SAVE_OBJECTS):
            log.append(b"of no log")
    wait_until(lambda: bool(failed), "the log to fail")
    assert ("DivergenceError" if is_remade else "CorruptionError") in str(failed[0])
    log.close()
