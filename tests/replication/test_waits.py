"""Waiting for a record: an LSN is a name that another history gives again, the result of an append names one record."""

from __future__ import annotations

from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S
from tests.replication.test_replica_checkpoint import put
from tests.replication.test_rewind import diverged
from tests.support.ports import free_address
from tests.support.stores import SMALL
from walkit.errors import DivergenceError, OptionsError
from walkit.record import AppendResult
from walkit.replication import DeltaReader, Primary, Replica
from walkit.segments.history import identity_at
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage
from walkit.store import Store


def result_at(folder: Path, lsn: int) -> AppendResult:
    """Return what the append of a record in this folder has returned, as far as a wait asks for it."""
    epoch_id = identity_at(load_manifest(FileStorage(folder)), lsn).epoch_id
    return AppendResult(lsn, lsn, 0, 64, epoch_id)


def parted(folder: Path) -> tuple[AppendResult, AppendResult]:
    """Part a log and its copy at LSN 10; return what the append of record 11 has returned in each."""
    with walkit.open(folder / "log") as log:
        log.append_many([b"v"] * 10, [b"k"] * 10)
    walkit.copy(folder / "log", folder / "copy")
    with walkit.open(folder / "log") as ours, walkit.open(folder / "copy") as theirs:
        return ours.append(b"ours", key=b"k"), theirs.append(b"theirs", key=b"k")


def test_a_replica_without_contact_knows_only_results(tmp_path: Path) -> None:
    """Open a diverged replica whose primary is away: an LSN below its end does not count, its own result does."""
    with diverged(tmp_path, tmp_path / "old"):
        own = result_at(tmp_path / "old", 80)
        with Replica(tmp_path / "old", free_address(), options=SMALL) as replica:
            assert replica.store.applied_lsn == 100
            for wanted in (80, result_at(tmp_path / "new", 80)):
                with pytest.raises(TimeoutError):
                    replica.wait_for(wanted, 0.1)
            assert replica.wait_for(own, WAIT_S) == 100


@pytest.mark.parametrize("rewinds", [False, True])
def test_a_replica_waits_for_records_of_its_primarys_history(tmp_path: Path, rewinds: bool) -> None:
    """Follow a primary whose history parted at LSN 60: no wait returns for a record that only the old one has."""
    with diverged(tmp_path, tmp_path / "old") as (promoted, address):
        cut, kept = result_at(tmp_path / "old", 70), promoted.put(b"k", b"v")
        refused: tuple[AppendResult | int, ...]
        with Replica(tmp_path / "old", address, options=SMALL, rewind=rewinds) as replica:
            if rewinds:
                assert replica.wait_for(kept, WAIT_S) == kept.last_lsn == 81
                refused = (cut,)
            else:
                assert replica.wait_for(cut, WAIT_S) == 100  # the very record, which is there
                refused = (kept, 70, 95)
            for wanted in refused:
                with pytest.raises(DivergenceError) as caught:
                    replica.wait_for(wanted, WAIT_S)
                assert caught.value.first_lsn == 61


def test_a_cut_record_is_refused_before_its_number_is_given_again(tmp_path: Path) -> None:
    """Wait at a replica that ends at LSN 80 for record 90 of the old history: refused at once, without more records."""
    with (
        diverged(tmp_path, tmp_path / "old") as (promoted, address),
        Store.open(tmp_path / "old", options=SMALL) as old,
    ):
        cut = result_at(tmp_path / "old", 90)
        later = old.put(b"k", b"v")  # of an epoch that the replica has never heard of: it may come
        with Replica(tmp_path / "third", address, options=SMALL) as replica:
            replica.wait_for(promoted.log.acked_lsn, WAIT_S)
            with pytest.raises(DivergenceError) as refused:
                replica.wait_for(cut, WAIT_S)
            assert refused.value.first_lsn == 61
            with pytest.raises(TimeoutError):
                replica.wait_for(later, 0.1)


def test_an_empty_result_names_the_end_of_the_log(tmp_path: Path) -> None:
    """Append nothing in a new epoch, after records of an older one: a replica that has those has it."""
    with Store.open(tmp_path / "log", options=SMALL) as store:
        put(store, 5)
    with Store.open(tmp_path / "log", options=SMALL) as store, Primary(store) as primary:
        nothing = store.log.append_many([])
        with Replica(tmp_path / "replica", primary.address, options=SMALL) as replica:
            assert replica.wait_for(nothing, WAIT_S) == 5
            for wrong in ("5", None, 5.0):
                with pytest.raises(OptionsError):
                    replica.wait_for(wrong, 0)  # type: ignore[arg-type]


def test_a_delta_reader_waits_for_records_of_its_log(tmp_path: Path) -> None:
    """Part a log and its copy at one LSN: a reader of the one has its own record, and refuses the other's."""
    ours, theirs = parted(tmp_path)
    assert ours.last_lsn == theirs.last_lsn == 11
    with (
        walkit.open(tmp_path / "log") as log,
        Primary(log) as primary,
        DeltaReader(tmp_path / "log", primary.address) as reader,
    ):
        assert reader.wait_for(ours, WAIT_S) == reader.wait_for(11, WAIT_S) == 11
        with pytest.raises(DivergenceError) as refused:
            reader.wait_for(theirs, WAIT_S)
        assert refused.value.first_lsn == 1  # the log has never had that epoch
        assert reader.wait_for(log.append(b"v", key=b"k"), WAIT_S) == 12


def test_a_delta_reader_compares_before_an_lsn_counts(tmp_path: Path) -> None:
    """Open a reader whose primary is away: an LSN counts once it has looked at the log itself, and not before."""
    ours, _ = parted(tmp_path)
    place = tmp_path / "checkpoint"
    with DeltaReader(tmp_path / "log", free_address(), checkpoint=place) as earlier:
        earlier.wait_for(11, WAIT_S)
    reader = DeltaReader(tmp_path / "log", free_address(), checkpoint=place)
    try:
        assert reader.wait_for(ours, WAIT_S) == 11
        with pytest.raises(TimeoutError, match="start"):
            reader.wait_for(5, 0.1)
        reader.start()
        assert reader.wait_for(5, WAIT_S) == 11
    finally:
        reader.stop()
