"""The conformance suite of `walkit.state.StateMachine`: every sentence of its contract that a test can hold it to.

A machine's test module is mostly inheritance::

    class TestMyMachine(walkit.testing.StateMachineTests):
        def make_machine(self):
            return MyMachine()

        def equal_histories(self): ...  # different records that lead to one state

`CountingMachine` is a small machine to begin from.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from walkit.format.frame import FrameIdentity
from walkit.record import Batch, Kind
from walkit.state.batch_columns import part_of
from walkit.state.machine import (
    ArrowStateMachine,
    StateMachine,
    check_follows,
    take_image,
)
from walkit.state.snapshot import read_snapshot, write_snapshot
from walkit.storage import MemoryStorage

Rows = list[tuple[int, int, bytes | None, bytes | None]]
SEEDS = range(20)


class CountingMachine:
    """Counts records by their kind. The effect of one more record depends on all before it: nothing may come twice."""

    snapshot_format = "counts/1"

    def __init__(self) -> None:
        self.applied_lsn = 0
        self._counts: dict[bytes, int] = {}
        self._last: dict[bytes, int] = {}

    def apply(self, batch: Batch) -> None:
        """See `StateMachine.apply`."""
        if not len(batch):
            return
        check_follows(self.applied_lsn, batch.first_lsn)
        for lsn, kind, _, _ in batch.rows():
            name = Kind(kind).name.encode()
            self._counts[name] = self._counts.get(name, 0) + 1
            self._last[name] = lsn
        self.applied_lsn = batch.last_lsn

    def snapshot(self) -> Iterator[Batch]:
        """See `StateMachine.snapshot`: one record for each kind."""
        keys = sorted(self._counts)
        values = [self._counts[key].to_bytes(8, "little") for key in keys]
        return iter([Batch([self._last[key] for key in keys], int(Kind.PUT), keys, values)] if keys else [])

    def restore(self, batches: Iterable[Batch], lsn: int) -> None:
        """See `StateMachine.restore`."""
        self._counts, self._last = {}, {}
        for batch in batches:
            for at, _, key, value in batch.rows():
                assert key is not None and value is not None
                self._counts[key] = int.from_bytes(value, "little")
                self._last[key] = at
        self.applied_lsn = lsn

    def checksum(self) -> int:
        """See `StateMachine.checksum`: the counts, as digits of one number."""
        counts = [self._counts.get(kind.name.encode(), 0) for kind in Kind]
        return sum(count << 16 * place for place, count in enumerate(counts)) & (1 << 64) - 1


class StateMachineHooks(ABC):
    """Override `make_machine`; `records` and the histories as the machine is."""

    @abstractmethod
    def make_machine(self) -> StateMachine:
        """Return a new, empty machine."""

    def records(self, seed: int) -> Batch:
        """Return records that the machine takes, from LSN 1 on: by default puts, deletes, events, bundles, links."""
        return random_records(seed)

    def equal_histories(self) -> list[tuple[Batch, Batch]]:
        """Return pairs of histories that lead to one state by different ways."""
        return []

    def different_histories(self) -> list[tuple[Batch, Batch]]:
        """Return pairs of histories that lead to two states; by default one of the records, and the same cut short."""
        whole = self.records(1)
        return [(whole, part_of(whole, 0, 1))]


class StateMachineTests(StateMachineHooks):
    """All tests that a state machine passes, of any state."""

    def fed(self, batch: Batch, cuts: Sequence[int] = ()) -> StateMachine:
        """Return a machine that was given the records, cut into several batches."""
        machine = self.make_machine()
        feed(machine, batch, cuts)
        return machine

    def test_an_empty_machine_has_applied_nothing(self) -> None:
        """A new machine is at LSN 0, and an empty batch leaves it there."""
        machine = self.make_machine()
        before = picture(machine)
        assert machine.applied_lsn == 0
        machine.apply(Batch((), 1, None, None))
        assert picture(machine) == before

    def test_applied_lsn_moves_to_the_last_record(self) -> None:
        """After each batch, events alone too, the machine is at the batch's last LSN."""
        machine = self.make_machine()
        batch = self.records(3)
        for part in parts_of(batch, [*range(1, len(batch) // 2), len(batch) - 1]):
            machine.apply(part)
            assert machine.applied_lsn == part.last_lsn

    def test_state_does_not_depend_on_how_records_are_batched(self) -> None:
        """One record at a time, all at once, and at random cuts: the same picture."""
        for seed in SEEDS:
            batch = self.records(seed)
            whole = picture(self.fed(batch))
            assert picture(self.fed(batch, range(1, len(batch)))) == whole
            assert picture(self.fed(batch, random_cuts(seed, len(batch)))) == whole

    def test_lsns_may_be_missing(self) -> None:
        """Records with gaps between their LSNs, as compaction leaves them, are applied as they come."""
        batch = self.records(5)
        sparse = Batch(
            [lsn * 3 for lsn in batch.lsns], batch.kinds, batch.keys, batch.values, batch.timestamps
        )
        machine = self.fed(sparse, random_cuts(5, len(batch)))
        assert machine.applied_lsn == batch.last_lsn * 3
        assert machine.checksum() == self.fed(batch).checksum()

    def test_records_that_do_not_follow_are_refused(self) -> None:
        """A batch that begins at or below applied_lsn is a ValueError, and the state is as before."""
        batch = self.records(4)
        machine = self.fed(batch)
        before = picture(machine)
        for start in (0, len(batch) // 2, len(batch) - 1):
            try:
                machine.apply(part_of(batch, start, len(batch)))
            except ValueError:
                pass
            else:
                raise AssertionError(f"records from LSN {batch.lsns[start]} were applied again")
            assert picture(machine) == before

    def test_arrow_gives_the_same(self) -> None:
        """Where the machine takes Arrow, the same records as Arrow give the same picture."""
        for seed in SEEDS:
            machine = self.make_machine()
            if not isinstance(machine, ArrowStateMachine):
                return
            batch = self.records(seed)
            for part in parts_of(batch, random_cuts(seed, len(batch))):
                machine.apply_arrow(part.to_arrow())
            assert picture(machine) == picture(self.fed(batch))

    def test_arrow_that_does_not_follow_is_refused(self) -> None:
        """Where the machine takes Arrow: records that were applied are a ValueError, an empty batch is nothing."""
        machine = self.make_machine()
        if not isinstance(machine, ArrowStateMachine):
            return
        arrow = self.records(4).to_arrow()
        machine.apply_arrow(arrow)
        before = picture(machine)
        machine.apply_arrow(arrow.slice(0, 0))
        try:
            machine.apply_arrow(arrow)
        except ValueError:
            assert picture(machine) == before
        else:
            raise AssertionError("records were applied again")

    def test_a_snapshot_has_each_key_once_and_in_order(self) -> None:
        """Every record of a snapshot has a key, keys grow over all batches, no LSN is beyond applied_lsn."""
        for seed in SEEDS:
            machine = self.fed(self.records(seed))
            rows = rows_of(machine)
            keys = [key for _, _, key, _ in rows]
            assert None not in keys
            assert keys == sorted(set(keys), key=lambda key: key or b"")
            assert all(0 <= lsn <= machine.applied_lsn for lsn, *_ in rows)

    def test_a_snapshot_shows_the_moment_of_the_call(self) -> None:
        """Records applied after `snapshot` was called are not in what its iterator yields."""
        batch = self.records(6)
        half = len(batch) // 2
        machine = self.fed(part_of(batch, 0, half))
        expected = rows_of(machine)
        image = machine.snapshot()
        machine.apply(part_of(batch, half, len(batch)))
        assert [row for part in image for row in part.rows()] == expected

    def test_restore_gives_the_state_back(self) -> None:
        """A machine restored from a snapshot, empty or not before, is the same and continues the same way."""
        for seed in SEEDS:
            batch = self.records(seed)
            half = len(batch) // 2
            first, rest = part_of(batch, 0, half), part_of(batch, half, len(batch))
            source = self.fed(first)
            for restored in (self.make_machine(), self.fed(self.records(seed + 1))):
                restored.restore(source.snapshot(), source.applied_lsn)
                assert picture(restored) == picture(source)
                restored.apply(rest)
                assert picture(restored) == picture(self.fed(batch))

    def test_restore_of_nothing_is_the_empty_machine(self) -> None:
        """`restore((), 0)` forgets everything."""
        machine = self.fed(self.records(2))
        machine.restore((), 0)
        assert picture(machine) == picture(self.make_machine())
        machine.apply(self.records(2))
        assert picture(machine) == picture(self.fed(self.records(2)))

    def test_equal_state_has_an_equal_checksum(self) -> None:
        """Two ways to one state give one checksum; another state gives another; asking changes nothing."""
        for one, other in self.equal_histories():
            assert self.fed(one).checksum() == self.fed(other).checksum()
        for one, other in self.different_histories():
            assert self.fed(one).checksum() != self.fed(other).checksum()
        machine = self.fed(self.records(8))
        assert machine.checksum() == machine.checksum() == self.fed(self.records(8)).checksum()
        assert 0 <= machine.checksum() < 1 << 64

    def test_snapshot_files_are_equal_and_come_back(self) -> None:
        """The same records in other batches give the same snapshot file, byte for byte, and it restores the state."""
        for seed in SEEDS:
            batch = self.records(seed)
            files = []
            for cuts in ((), random_cuts(seed, len(batch))):
                machine = self.fed(batch, cuts)
                storage = MemoryStorage()
                storage.create()
                identity = FrameIdentity(1, 2, 3)
                info = write_snapshot(
                    storage, take_image(machine), identity=identity, make_durable=lambda lsn: None
                )
                restored = self.make_machine()
                read_snapshot(storage, info.lsn, restored, identity=identity)
                assert picture(restored) == picture(machine)
                files.append(storage.open(info.name, "read").read(0, info.size_bytes))
            assert files[0] == files[1]


def picture(machine: StateMachine) -> tuple[int, int, Rows]:
    """Return all that can be seen of a machine's state."""
    return machine.applied_lsn, machine.checksum(), rows_of(machine)


def rows_of(machine: StateMachine) -> Rows:
    """Return the records of the machine's snapshot."""
    return [row for batch in machine.snapshot() for row in batch.rows()]


def feed(machine: StateMachine, batch: Batch, cuts: Sequence[int] = ()) -> None:
    """Apply the records, cut into several batches."""
    for part in parts_of(batch, cuts):
        machine.apply(part)


def parts_of(batch: Batch, cuts: Sequence[int]) -> Iterator[Batch]:
    """Yield the records between the cuts."""
    borders = [0, *cuts, len(batch)]
    for start, stop in pairwise(borders):
        yield part_of(batch, start, stop)


def random_cuts(seed: int, count: int) -> list[int]:
    """Return a few places to cut, in order."""
    chance = random.Random(seed)
    return sorted(chance.sample(range(count + 1), min(5, count)))


def random_records(seed: int, count: int = 60, keys: int = 9) -> Batch:
    """Return records of all kinds over a few keys, the empty key among them; some without key, value or timestamp."""
    chance = random.Random(seed)
    names = [b"", *(b"key-%d" % i for i in range(keys))]
    columns: list[tuple[int, bytes | None, bytes | None, int | None]] = []
    for i in range(count):
        kind = int(chance.choice([Kind.PUT, Kind.PUT, Kind.PUT, Kind.DELETE, Kind.BUNDLE, Kind.LINK]))
        value = None if kind == Kind.DELETE else chance.choice([b"", b"value-%d" % i, b"v" * i, None])
        key = chance.choice(names) if kind == Kind.DELETE else chance.choice([*names, None])
        columns.append((kind, key, value, chance.choice([None, i])))
    kinds, key_column, values, stamps = (list(column) for column in zip(*columns, strict=True))
    return Batch(range(1, count + 1), kinds, key_column, values, stamps)
