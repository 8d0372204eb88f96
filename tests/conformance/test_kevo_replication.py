"""What Kevo tests of its WAL, replication and compaction, and what it does not test: each with the test for it here.

`WHERE` is the table, in words; test_tables walks it, so that it cannot name a test that is not there. The scenarios
that needed a test of their own follow it, on the cores without I/O, and over gRPC where two processes would talk.

Without a meaning here, and why: the choice of tables of a level, their overlaps and the manager of it (the log is not
cut into levels); the topology that a client learns, and helpers of roles (a client names its primary); a switch of the
applier to writing and back (a replica has no append); merge operators (a record is a put, a deletion or an event);
fragments of a record (a record never leaves its frame); rotation by a call (a segment ends where the next frame does
not fit).
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import walkit
from tests.log.crashes import SMALL
from tests.log.logs import lsns, memory_log, reopened, tiny, values
from tests.replication.callers import WAIT_S, until
from tests.replication.sim_network import World, history_of
from tests.replication.test_grpc import quick
from walkit.errors import LogClosedError, LogNotFoundError, RecordTooLargeError
from walkit.format.manifest import LogEnd
from walkit.models import CrashingStorage
from walkit.record import Kind
from walkit.replication import Primary, Replica
from walkit.replication.logs.source import source_of
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.protocol.codecs import pack, unpack
from walkit.replication.protocol.messages import Batch
from walkit.replication.protocol.wire import decode_from_publisher

HERE = "conformance/test_kevo_replication"

WHERE: dict[str, tuple[str, ...]] = {
    # -- the WAL
    "write and replay": ("log/test_append::test_what_goes_in_comes_out",),
    "delete, then put again": (f"{HERE}::test_a_key_that_is_put_again_after_its_deletion_lives",),
    "a large single record, and one that needed fragments": (
        f"{HERE}::test_large_keys_and_values_stand_in_one_frame_or_are_refused",
        "log/test_append::test_the_limit_of_a_record_is_exact",
    ),
    "a batch": ("log/test_transaction::test_its_operations_are_one_frame_with_one_result",),
    "recovery over two files": (f"{HERE}::test_records_are_recovered_over_files_in_their_order",),
    "three modes of syncing": (
        "log/test_durability::test_sync_means_durable_when_acknowledged",
        "log/test_durability::test_the_other_levels_acknowledge_before_they_sync",
        "log/test_durability::test_the_timer_syncs_an_idle_tail",
    ),
    "errors after close, and a missing file": (
        "log/test_concurrency::test_after_close_everything_is_refused_and_the_marks_stay",
        "log/test_readers::test_a_closed_reader_refuses_and_a_missing_log_is_named",
    ),
    "appending with a given sequence: only what follows, and only to a replica": (
        "log/test_imported::test_imported_frames_are_the_primarys_frame_by_frame",
        "replication/test_cores::test_intact_frames_of_another_history_fail_for_good",
    ),
    "observers: single, batch, sync, several, unregistered": (
        "log/test_observe::test_observers_see_the_frames_as_they_stand_in_the_files",
        f"{HERE}::test_observers_come_and_go_and_stay_over_rotations",
    ),
    "numbers beyond 32 bits": (
        "conformance/test_automq_commit::test_positions_and_lsns_cross_what_32_bits_hold",
    ),
    "entries from a sequence: start, middle, end, beyond, over files, closed, empty, missing": (
        f"{HERE}::test_entries_from_any_lsn",
        f"{HERE}::test_frames_for_a_replica_from_any_end",
    ),
    "retention by count, age, sequence, of one file, combined": (
        "log/test_retention::test_every_limit_alone_and_together",
        "log/test_retention::test_what_the_slowest_hold_has_passed",
        "log/test_retention::test_the_newest_segment_with_a_record_stays",
    ),
    "retention of a closed log": ("log/test_retention::test_by_call_with_progress_and_report",),
    "recovery of the state: simple, over several tables, with batches": (
        "test_store_recovery::test_the_state_is_that_of_a_dict",
        "test_store_recovery::test_snapshot_and_tail_equal_the_full_replay",
        "test_store::test_transactions_are_seen_whole",
    ),
    "rotation under writers, a hundred times": (
        "log/test_concurrency::test_hundreds_of_segments_under_load",
        f"{HERE}::test_a_replica_follows_writers_over_rotations",
    ),
    "newer versions win over a flush, and tombstones survive it": (
        f"{HERE}::test_a_checkpoint_keeps_what_is_newest_and_what_is_deleted",
    ),
    # -- what has no test there
    "a torn tail": ("log/test_recovery::test_a_cut_at_every_byte_of_the_tail_recovers_the_exact_prefix",),
    "a flipped byte in the middle": (
        "log/test_recovery::test_a_flip_below_a_promise_is_corruption_of_acknowledged_data",
    ),
    "a torn batch": ("log/test_transaction::test_every_transaction_comes_back_whole",),
    "a crash": ("log/test_crash::test_every_acknowledged_record_survives_a_power_cut",),
    "appending behind a torn tail": ("log/test_crash::test_what_follows_a_recovery_survives_the_next_crash",),
    "the sequence over rotation and reopening": (
        f"{HERE}::test_numbers_go_on_over_rotation_and_reopening",
        "log/test_hold_trim::test_lsns_go_on_after_trim_and_reopening",
    ),
    "replication over rotation": (f"{HERE}::test_a_replica_follows_writers_over_rotations",),
    "a batch with a member that is too large leaves nothing": (
        "log/test_transaction::test_over_the_limit_is_refused_whole",
    ),
    "only what is durable is sent": ("replication/test_grpc::test_only_durable_frames_leave",),
    "a key of a batch and a later put of the same key": (
        f"{HERE}::test_a_checkpoint_keeps_what_is_newest_and_what_is_deleted",
    ),
    # -- replication
    "the batcher: size limit, boundaries of transactions, reset": (
        f"{HERE}::test_batches_are_whole_frames_up_to_their_size_and_none_is_left_out",
    ),
    "the applier: in order, gap, error, reset": (
        "replication/test_cores::test_a_gap_is_asked_for_once_and_again_only_after_a_while",
        "replication/test_failures::test_any_error_of_the_replicas_thread_is_a_state",
        f"{HERE}::test_a_transaction_and_a_repeated_batch_are_no_gaps",
    ),
    "serialisation of entries and messages, and the type of the error": (
        "replication/test_messages::test_every_flipped_bit_and_every_cut_is_seen",
        "replication/test_failures::test_content_that_cannot_be_ends_in_a_state_with_its_error",
    ),
    "codecs: round trip, invalid data, levels": (
        f"{HERE}::test_codecs_give_back_what_they_took_or_nothing",
        "replication/test_grpc::test_the_codec_of_the_way_changes_nothing_that_is_stored",
    ),
    "heartbeats: sent, answered, missed": (
        "replication/test_cores::test_silence_is_filled_by_heartbeats_and_ends_both_sides",
    ),
    "TLS and tokens": (
        "replication/test_grpc::test_a_token_is_required_where_it_is_set",
        "replication/test_tls::test_flipped_bits_under_tls_cost_connections_and_nothing_else",
    ),
    "a primary is made, and its sessions are counted": (
        "replication/test_status::test_a_lag_is_known_only_with_contact",
        f"{HERE}::test_an_acknowledgement_counts_for_the_replica_that_gave_it",
    ),
    "sessions come and go, and an acknowledgement is its own session's": (
        f"{HERE}::test_an_acknowledgement_counts_for_the_replica_that_gave_it",
    ),
    "a replica takes ten entries": (f"{HERE}::test_ten_entries_and_the_states_on_the_way",),
    "error and recovery": (
        "replication/test_grpc::test_both_sides_restart_and_go_on_where_the_replica_stands",
    ),
    "states, their names and how long they last": (
        f"{HERE}::test_ten_entries_and_the_states_on_the_way",
        "replication/test_status::test_silence_and_missing_frames_are_told_with_their_time",
    ),
    "what was applied is known after a restart": (
        f"{HERE}::test_a_replica_that_restarts_takes_nothing_twice",
    ),
    "the status of a manager": ("replication/test_status::test_a_lag_is_known_only_with_contact",),
    "the applier's kinds: put, delete, events": (f"{HERE}::test_every_kind_of_record_is_applied",),
    # -- compaction
    "precedence in a merge": (
        "compaction/test_compaction::test_the_state_of_a_compacted_log_is_the_state_before",
    ),
    "tombstones": (
        "compaction/test_compaction::test_tombstones_stay_until_every_snapshot_is_newer",
        "compaction/test_compaction::test_a_tombstone_stays_while_what_it_suppresses_does",
    ),
}


# -- the WAL


def test_a_key_that_is_put_again_after_its_deletion_lives() -> None:
    """Put, delete and put a key, and delete another: after a kill one has its last value, and the other none."""
    storage = CrashingStorage()
    with walkit.Store.open(storage=storage, options=tiny()) as store:
        for key in (b"again", b"gone"):
            store[key] = b"first"
            del store[key]
        store[b"again"] = b"second"
        image = storage.process_kill()
    with walkit.Store.open(storage=image, options=tiny()) as store:
        assert dict(store.items()) == {b"again": b"second"}
        kinds = [record.kind for record in store.log.read()]
        assert kinds == [Kind.PUT, Kind.DELETE, Kind.PUT, Kind.DELETE, Kind.PUT]


@pytest.mark.parametrize(("key_bytes", "value_bytes"), [(8 << 10, 16 << 10), (40 << 10, 100 << 10)])
def test_large_keys_and_values_stand_in_one_frame_or_are_refused(key_bytes: int, value_bytes: int) -> None:
    """Append records larger than a fragment would be: back byte for byte, in one frame; over the limit, none."""
    storage = CrashingStorage()
    options = walkit.LogOptions(segment_bytes=1 << 20, frame_bytes_max=256 << 10)
    key, value = bytes(range(256)) * (key_bytes // 256), b"\xff" * value_bytes
    with walkit.open(storage=storage, options=options) as log:
        log.append(value, key=key)
        assert log.statistics().frames_written == 1
        with pytest.raises(RecordTooLargeError):
            log.append(bytes(256 << 10), key=key)
        assert log.appended_lsn == 1
    (record,) = reopened(storage, options)
    assert (record.key, record.value) == (key, value)


def test_records_are_recovered_over_files_in_their_order() -> None:
    """Kill a writer in its third file: all records of the three come back, in their order, each once."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([b"%03d" % n + bytes(7000) for n in range(20)])
        assert log.statistics().rotations == 3
        image = storage.process_kill()
    found = reopened(image)
    assert lsns(found) == list(range(1, 21))
    assert [bytes(v or b"")[:3] for v in values(found)] == [b"%03d" % n for n in range(20)]


def test_numbers_go_on_over_rotation_and_reopening() -> None:
    """Append over ten files and three openings: every LSN is one more than the last, and none begins at 1 again."""
    storage, expected = CrashingStorage(), 1
    for _ in range(3):
        with walkit.open(storage=storage, options=tiny()) as log:
            for _ in range(30):
                result = log.append(bytes(7000))
                assert result.first_lsn == result.last_lsn == expected
                expected += 1
            assert log.statistics().rotations >= 3
    assert lsns(reopened(storage)) == list(range(1, expected))


def test_observers_come_and_go_and_stay_over_rotations() -> None:
    """Observe with two, end one in the midst, rotate ten times: each sees every record of its time once, in order."""
    with memory_log() as log:
        stays: list[int] = []
        leaves: list[int] = []
        first = log.observe(lambda frames: stays.extend(range(frames.first_lsn, frames.last_lsn + 1)))
        second = log.observe(lambda frames: leaves.extend(range(frames.first_lsn, frames.last_lsn + 1)))
        log.append_many([bytes(7000)] * 40)
        with log.transaction() as tx:
            tx.put(b"a", b"1")
            tx.put(b"b", b"2")
        until(lambda: len(leaves) == 42, "the one that leaves")
        second.close()
        log.append_many([bytes(7000)] * 40)
        assert log.statistics().rotations >= 10
        until(lambda: len(stays) == 82, "the one that stays")
        first.close()
        assert stays == list(range(1, 83))
        assert leaves == list(range(1, 43))


def test_entries_from_any_lsn(tmp_path: Path) -> None:
    """Read from the start, the middle, a file's border, the end and beyond, open and closed; an empty and no log."""
    with walkit.open(tmp_path / "p", options=tiny()) as log:
        assert lsns(log.read(1)) == []
        log.append_many([bytes(7000)] * 20)
        for first in (1, 8, 9, 10, 20, 21, 1000):
            assert lsns(log.read(first)) == list(range(first, 21))
            with walkit.open(tmp_path / "p", mode="r") as reader:
                assert lsns(reader.read(first)) == list(range(first, 21))
    with pytest.raises(LogClosedError):
        log.read(1)
    with pytest.raises(LogNotFoundError):
        walkit.open(tmp_path / "none", mode="r")


def test_frames_for_a_replica_from_any_end() -> None:
    """Ask a source for what follows each end that it ever had, over three files: just the frames behind it."""
    with memory_log() as log:
        log.append_many([bytes(7000)] * 20)
        source = source_of(log)
        reader = FrameReader(source)
        assert reader.read(LogEnd(last_lsn=20, position=1 << 40, chain=1), 1 << 20) is None
        ends = [LogEnd()]
        while (run := reader.read(ends[-1], 1)) is not None:
            ends.append(run.end)
        assert [end.last_lsn for end in ends] == list(range(21))
        for end in ends[:-1]:
            run = reader.read(end, 1)
            assert run is not None and (run.after, run.first_lsn) == (end, end.last_lsn + 1)
        assert reader.read(ends[-1], 1) is None
        reader.close()


def test_a_checkpoint_keeps_what_is_newest_and_what_is_deleted() -> None:
    """Put in a transaction, then alone, delete one, with checkpoints and openings between: what is newest counts."""
    storage = CrashingStorage()
    with walkit.Store.open(storage=storage, options=tiny()) as store:
        with store.transaction() as tx:
            for key in (b"a", b"b", b"c"):
                tx.put(key, b"of the transaction")
        store[b"a"] = b"later"
        store.checkpoint()
        del store[b"b"]
        store[b"a"] = b"after the checkpoint"
    for turn in range(2):
        with walkit.Store.open(storage=storage, options=tiny()) as store:
            assert dict(store.items()) == {b"a": b"after the checkpoint", b"c": b"of the transaction"}
            if not turn:
                store.checkpoint()


# -- replication, on the cores


def test_batches_are_whole_frames_up_to_their_size_and_none_is_left_out() -> None:
    """Let a publisher send with small batches: each holds whole frames, up to the size or one, and all come once."""
    history = history_of(9, 7, 8)
    history.durable = len(history.frames)
    borders = {0} | {header.end_position for _, header, _ in history.frames}
    sizes = {header.position: header.footprint for _, header, _ in history.frames}
    for batch_bytes in (1, 2000, 8000):
        world = World(history, batch_bytes=batch_bytes, window_bytes=1 << 20)
        world.deliver_to_publisher(world.to_publisher.popleft())
        batches = [m for m in map(decode_from_publisher, world.to_subscriber) if isinstance(m, Batch)]
        at = 0
        for batch in batches:
            assert batch.after_position == at and {batch.start_position, batch.end_position} <= borders
            size = batch.end_position - batch.start_position
            assert size <= max(batch_bytes, sizes[batch.start_position])
            at = batch.end_position
        assert at == history.end().position
        world.settle()
        world.check()


def test_a_transaction_and_a_repeated_batch_are_no_gaps() -> None:
    """Deliver every batch twice, transactions among them: each repeat is a duplicate, none a gap; the end is equal."""
    history = history_of(9, 7, 8)
    history.durable = len(history.frames)
    world = World(history, batch_bytes=500)
    for _ in range(2000):
        if world.to_publisher:
            world.deliver_to_publisher(world.to_publisher.popleft())
        elif world.to_subscriber:
            data = world.to_subscriber.popleft()
            for _ in range(1 + isinstance(decode_from_publisher(data), Batch)):
                world.deliver_to_subscriber(data)
            world.import_waiting()
        if world.end == history.end():
            break
    world.check()
    assert world.end == history.end()
    assert world.subscriber.gaps == 0 and world.subscriber.duplicates > 5


@pytest.mark.parametrize("codec", ["", "zstd", "snappy"])
def test_codecs_give_back_what_they_took_or_nothing(codec: str) -> None:
    """Pack and unpack; then cut, flip, and lie about size and codec: the same bytes again, or none, and no more."""
    for data in (b"again and again " * 500, bytes(range(256)), b"x"):
        used, packed = pack(data, codec)
        assert used in ("", codec) and len(packed) <= len(data)
        assert (used == "") == (packed == data)
        assert unpack(packed, used, len(data)) == data
        for size in (0, -1, len(data) - 1, len(data) + 1, 1 << 40):
            assert unpack(packed, used, size) is None
        assert unpack(packed[:-1], used, len(data)) is None
    used, packed = pack(b"again and again " * 500, codec or "zstd")
    assert used and len(packed) < 4000
    assert unpack(packed, "", 8000) is None and unpack(b"plain text", "zstd", 10) is None
    for at in range(len(packed)):
        found = unpack(packed[:at] + bytes([packed[at] ^ 0x20]) + packed[at + 1 :], used, 8000)
        assert found is None or len(found) == 8000


# -- replication, over gRPC


def test_a_replica_follows_writers_over_rotations(tmp_path: Path) -> None:
    """Rotate dozens of times under four writers and a trim, followed and observed: no gap, no repeat, all equal."""
    seen: list[int] = []
    with (
        walkit.open(tmp_path / "p", options=SMALL) as log,
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address, backoff=quick()) as replica,
    ):
        log.observe(lambda frames: seen.append(frames.last_lsn))

        def write(writer: int) -> None:
            for n in range(60):
                log.append(b"%d " % n + bytes(7000), key=b"%d" % writer)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert log.statistics().rotations > 20
        replica.wait_for(240, WAIT_S)
        assert log.trim(100) <= 100
        log.append(b"after the trim", key=b"0")
        replica.wait_for(241, WAIT_S)
        assert lsns(replica.log.read()) == list(range(1, 242))
        assert (replica.status().gaps, replica.status().duplicates) == (0, 0)
        state = {record.key: record.value for record in log.read()}
        assert {key: replica.store[key] for key in state if key is not None} == state
        until(lambda: bool(seen) and seen[-1] == 241, "the observer")
    assert seen == sorted(set(seen))


def test_an_acknowledgement_counts_for_the_replica_that_gave_it(tmp_path: Path) -> None:
    """Follow with two, stop one, go on with the other: what the primary says of each is its own, and its hold stays."""
    with ExitStack() as stack:
        log = stack.enter_context(walkit.open(tmp_path / "p", options=SMALL))
        primary = stack.enter_context(Primary(log))

        def followers() -> dict[str, int]:
            return {f.name: f.acked_lsn for f in primary.status().followers}

        slow = stack.enter_context(Replica(tmp_path / "slow", primary.address, name="slow"))
        fast = stack.enter_context(Replica(tmp_path / "fast", primary.address, name="fast"))
        log.append_many([bytes(2000)] * 50)
        until(lambda: followers() == {"slow": 50, "fast": 50}, "both")
        slow.stop()
        until(lambda: set(followers()) == {"fast"}, "the session of one to end")
        log.append_many([bytes(2000)] * 200)
        fast.wait_for(250, WAIT_S)
        until(lambda: followers() == {"fast": 250}, "the acknowledgement of the other")
        # Claims follow the acknowledgements, a few times a minute.
        until(lambda: sorted(claim.needed_lsn for claim in log.claims()) == [51, 251], "both claims")
        assert log.trim(250) == 50, "what the one that is away needs stays"
        again = stack.enter_context(Replica(tmp_path / "slow", primary.address, name="slow"))
        again.wait_for(250, WAIT_S)
        assert lsns(again.log.read()) == list(range(1, 251))


def test_ten_entries_and_the_states_on_the_way(tmp_path: Path) -> None:
    """Send ten puts to a new replica, one by one: all are applied, and its states are the ones that have a name."""
    with walkit.open(tmp_path / "p") as log, Primary(log) as primary:
        replica = Replica(tmp_path / "r", primary.address)
        states = [replica.status().state]
        with replica:
            until(lambda: replica.status().state == "streaming", "the first contact")
            for n in range(10):
                log.append(b"value %d" % n, key=b"key %d" % n)
                replica.wait_for(n + 1, WAIT_S)
                states.append(replica.status().state)
            assert dict(replica.store.items()) == {b"key %d" % n: b"value %d" % n for n in range(10)}
        states.append(replica.status().state)
    assert states[0] == "new" and states[-1] == "stopped"
    assert set(states[1:-1]) <= {"streaming", "catching up"}


def test_a_replica_that_restarts_takes_nothing_twice(tmp_path: Path) -> None:
    """Restart a replica ten times under a log that grows: it goes on behind what it has, without a duplicate."""
    with walkit.open(tmp_path / "p", options=SMALL) as log, Primary(log) as primary:
        for turn in range(1, 11):
            log.append_many([b"%d" % turn + bytes(500)] * 10)
            with Replica(tmp_path / "r", primary.address, name="r") as replica:
                assert replica.status().applied_lsn == (turn - 1) * 10
                replica.wait_for(turn * 10, WAIT_S)
                assert (replica.status().duplicates, replica.status().gaps) == (0, 0)
                assert lsns(replica.log.read()) == list(range(1, turn * 10 + 1))


def test_every_kind_of_record_is_applied(tmp_path: Path) -> None:
    """Send puts, a deletion, an event, a transaction and an absent value: log and state are the primary's."""
    with (
        walkit.Store.open(tmp_path / "p") as store,
        Primary(store) as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        store[b"kept"] = b"1"
        store[b"gone"] = b"2"
        del store[b"gone"]
        store.log.append(b"an event without a key")
        with store.transaction() as tx:
            tx.put(b"empty", b"")
            tx.delete(b"never there")
        lsn = store.log.acked_lsn
        replica.wait_for(lsn, WAIT_S)
        assert dict(replica.store.items()) == dict(store.items()) == {b"kept": b"1", b"empty": b""}
        assert list(replica.log.read()) == list(store.log.read())
        assert replica.store.checksum() == store.checksum()
