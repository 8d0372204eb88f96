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
from walkit.objects.layout import CLAIMS_KEY, MANIFEST_KEY, Claims
from walkit.objects.object_sink import SAVE_OBJECTS
from walkit.objects.remove import remove_log
from walkit.record import wall_us
from walkit.storage import MemoryObjectStore, ObjectFault, ObjectRequest

LEFT = [CLAIMS_KEY, MANIFEST_KEY]
"""The objects that a removal leaves."""


def written(store: MemoryObjectStore) -> None:
    with walkit.open(store.client()) as log:
        log.append_many([b"v"] * 10)
        log.append(b"w")


def keys(store: MemoryObjectStore) -> list[str]:
    return sorted(entry.key for entry in store.list_after(""))


def test_the_command_confirms_and_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answer no, then yes: exit codes 1 and 0, and the log is gone; a folder is a wrong argument."""
    url = f"objects:{tmp_path}/log"
    walkit.open(url).close()
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert main(["remove", url]) == 1
    walkit.open(url, mode="r").close()
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    assert main(["remove", url]) == 0 and "deleted 1 object" in capsys.readouterr().out
    with pytest.raises(LogNotFoundError):
        walkit.open(url, mode="r")
    assert main(["remove", "--yes", url]) == 0 and "deleted 0 objects" in capsys.readouterr().out
    assert main(["remove", "--yes", f"objects:{tmp_path}/none"]) == 3 and main(["remove", str(tmp_path)]) == 2


def test_a_removed_place_stays_empty() -> None:
    """Remove a log with snapshot, cursor and an expired claim: all go, and no log or copy is made there again."""
    store, source = MemoryObjectStore(), MemoryObjectStore()
    with walkit.Store.open(store.client()) as state:
        state.put(b"k", b"v")
        state.checkpoint()
    with walkit.open(store.client(), mode="r") as reader:
        reader.cursor("mailer").advance(1)
    walkit.claim(store.client(), "dead", 2, lease_s=0.001)
    over_us = wall_us() + 2_000
    wait_until(lambda: wall_us() > over_us, "the lease to end")
    assert len(keys(store)) > 4
    remove_log(store)
    assert keys(store) == LEFT
    written(source)
    for use in (
        lambda: walkit.open(store.client()),
        lambda: walkit.open(store.client(), mode="r"),
        lambda: walkit.copy(source.client(), store.client()),
        lambda: walkit.claim(store.client(), "late", 1),
    ):
        with pytest.raises(LogNotFoundError, match="removed"):
            use()
    assert keys(store) == LEFT


def test_an_opening_that_sleeps_through_a_removal_makes_no_log() -> None:
    """Remove the log before each request of an opening and its append: the place stays removed, and can be cleaned."""
    number, removed = 0, True
    while removed:
        store, removed = MemoryObjectStore(), False
        written(store)

        def plan(request: ObjectRequest, number: int = number, store: MemoryObjectStore = store) -> None:
            nonlocal removed
            if request.number == number:
                remove_log(store)
                removed = True

        with suppress(walkit.WalkitError), walkit.open(store.client(plan)) as log:
            log.append(b"of no log")
        if removed:
            with pytest.raises(LogNotFoundError, match="removed"):
                walkit.open(store.client())
            remove_log(store)
            assert keys(store) == LEFT
        number += 1
    assert number > 8


def test_a_claim_beside_a_removal_is_kept_or_refused() -> None:
    """Take a claim before each request of a removal: it is refused, or the log stays, and opens."""
    outcomes, number = set[str](), 0
    while True:
        store, taken = MemoryObjectStore(), list[walkit.Claim]()
        written(store)

        def plan(
            request: ObjectRequest,
            number: int = number,
            store: MemoryObjectStore = store,
            taken: list[walkit.Claim] = taken,
        ) -> None:
            if request.number == number:
                with suppress(LogNotFoundError, walkit.GapError):
                    taken.append(walkit.claim(store.client(), "reader", 1))

        client = store.client(plan)
        try:
            remove_log(client)
            assert not taken
            outcomes.add("removed")
        except ClaimError:
            assert taken
            with walkit.open(store.client()) as log:
                assert log.first_lsn == 1
            taken[0].renew()
            outcomes.add("kept")
        if len(client.requests) <= number:
            break
        number += 1
    assert outcomes == {"removed", "kept"}


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
            assert keys(store) == LEFT
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
        assert keys(store) == LEFT
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


def test_a_writer_whose_log_was_removed_fails_when_it_saves() -> None:
    """Remove the log of a writer: its next save ends it, with the cause in an event."""
    store, failed = MemoryObjectStore(), list[object]()

    def note(name: str, attributes: dict[str, object]) -> None:
        if name == "walkit.log.poison":
            failed.append(attributes["cause"])

    options = walkit.LogOptions(policy=OneRecordPerFrame())
    log = walkit.open(store.client(), options=options, events=note)
    log.append(b"kept")
    remove_log(store)
    with suppress(LogPoisonedError, CommitFailedError):
        for _ in range(SAVE_OBJECTS):
            log.append(b"of no log")
    wait_until(lambda: bool(failed), "the log to fail")
    assert "LogNotFoundError" in str(failed[0])
    log.close()
