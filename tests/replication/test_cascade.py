"""A replica that serves replicas of its own: what it has imported goes on, and its trim waits for them."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.replication.blocking_callers import quick, until
from tests.replication.test_replica_checkpoint import put
from tests.replication.test_rewind import diverged
from tests.support.stores import SMALL
from walkit.errors import LogNotFoundError, OptionsError
from walkit.models import FaultyStorage
from walkit.replication import Primary, Replica
from walkit.replication.primary import claims as replica_claims
from walkit.segments.consumer_files import claim_facts
from walkit.storage import FileStorage
from walkit.store import Store


def claimed(replica: Replica) -> list[int | None]:
    """From where on claims in a replica's folder keep records."""
    return [fact.first_lsn for fact in claim_facts(replica.log.storage, replica.log.manifest)]


def test_the_trim_of_a_replica_waits_for_its_own_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the last of three, checkpoint the middle: it keeps what the last one has not."""
    monkeypatch.setattr(replica_claims, "MOVE_S", 0.25)
    with (
        Store.open(tmp_path / "log", options=SMALL) as store,
        Primary(store) as primary,
        Replica(tmp_path / "middle", primary.address, options=SMALL) as middle,
    ):
        middle.wait_for(put(store, 50), 30)
        with Primary(middle.log, lease_s=600) as second:
            with Replica(tmp_path / "last", second.address, options=SMALL) as last:
                last.wait_for(50, 30)
                until(lambda: claimed(middle) == [51], "the claim of the last")
            middle.wait_for(put(store, 100), 30)
            assert middle.checkpoint().low_watermark == 50
            with Replica(tmp_path / "last", second.address, options=SMALL) as last:
                last.wait_for(150, 30)
                assert last.store.items() == store.items()
                until(lambda: claimed(middle) == [151], "the claim to move")


def test_a_primary_of_a_replica_ends_with_its_log(tmp_path: Path) -> None:
    """Stop the middle of three: its primary says "closed", and the last one waits and continues with a new one."""
    with Store.open(tmp_path / "log", options=SMALL) as store, Primary(store) as primary:
        middle = Replica(tmp_path / "middle", primary.address, options=SMALL).start()
        middle.wait_for(put(store, 20), 30)
        with (
            Primary(middle.log) as second,
            Replica(tmp_path / "last", second.address, options=SMALL) as last,
        ):
            last.wait_for(20, 30)
            middle.stop()
            assert second.status().state == "closed"
            until(lambda: last.status().state != "streaming", "the end of the session")
            address = second.address
            second.stop()
            with Replica(tmp_path / "middle", primary.address, options=SMALL) as again:
                again.wait_for(put(store, 20), 30)
                with Primary(again.log, address):
                    last.wait_for(40, 30)
                    assert last.store.items() == store.items()


def test_a_primary_of_a_replica_outlives_its_logs(tmp_path: Path, stack: ExitStack) -> None:
    """Serve a replica before its first contact, over a bootstrap, a failed storage and a rewind: the last follows."""
    storage = FaultyStorage(FileStorage(str(tmp_path / "middle")))
    store = stack.enter_context(Store.open(tmp_path / "log", options=SMALL))
    primary = stack.enter_context(Primary(store))
    put(store, 50)
    store.checkpoint()
    middle = Replica(storage, primary.address, options=SMALL, backoff=quick())
    second = stack.enter_context(Primary(middle))
    last = stack.enter_context(Replica(tmp_path / "last", second.address, options=SMALL, backoff=quick()))
    until(lambda: last.status().reason == "absent", "the refusal")
    assert second.status().state == "absent"
    stack.enter_context(middle)
    last.wait_for(put(store, 10), 30)
    assert second.status().state == "serving"
    fault = storage.fail("synced_write", "*.segment", times=None, errno=errno.EIO)
    result = put(store, 10)
    until(lambda: middle.status().state == "absent", "the failed storage")
    fault.cancel()
    last.wait_for(result, 30)
    assert last.store.items() == store.items()
    promoted, address = stack.enter_context(diverged(tmp_path, tmp_path / "old"))
    middle = Replica(tmp_path / "old", address, options=SMALL, rewind=True, force_rewind=True)
    third = stack.enter_context(Primary(middle))
    last = Replica(tmp_path / "end", third.address, options=SMALL, rewind=True, backoff=quick())
    stack.enter_context(last).wait_for(100, 30)
    stack.enter_context(middle)
    until(lambda: last.log.durable_lsn == 80, "the rewind of both")  # of 100
    last.wait_for(put(promoted, 30), 30)
    assert last.store.items() == promoted.items() and third.status().state == "serving"
    middle.stop()
    assert third.status().state == "closed"


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    """Serve a replica without a log, and with leases that no hold can have: typed errors before anything listens."""
    with Replica(tmp_path / "replica", "127.0.0.1:1") as replica, pytest.raises(LogNotFoundError):
        Primary(replica.log)
    with Store.open(tmp_path / "log", options=SMALL) as store:
        for wrong in (0, -1, float("inf"), "soon"):
            with pytest.raises(OptionsError) as caught:
                Primary(store, lease_s=wrong)  # type: ignore[arg-type]
            assert caught.value.option == "lease_s"
