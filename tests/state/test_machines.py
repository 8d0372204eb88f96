"""The conformance suite of state machines: the shipped machines pass it, and each broken one fails it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest

from walkit.record import Batch, Kind
from walkit.state import (
    Counter,
    KeyedTable,
    StateMachine,
)
from walkit.testing.state import (
    SEEDS,
    CountingMachine,
    StateMachineTests,
    parts_of,
    picture,
    random_cuts,
    random_records,
)

PUT, DELETE = int(Kind.PUT), int(Kind.DELETE)


def puts(*pairs: tuple[bytes, bytes | None]) -> Batch:
    """Puts of these keys and values from LSN 1 on."""
    keys, values = [k for k, _ in pairs], [v for _, v in pairs]
    return Batch(range(1, len(pairs) + 1), PUT, keys, values)


class TableHooks(StateMachineTests):
    """Hooks for a keyed table: histories that lead to one state, and to two."""

    def make_machine(self) -> StateMachine:
        return KeyedTable()

    def equal_histories(self) -> list[tuple[Batch, Batch]]:
        ab = puts((b"a", b"1"), (b"b", b"2"))
        return [
            (ab, puts((b"b", b"0"), (b"b", b"2"), (b"a", b"1"))),
            (
                ab,
                Batch(
                    range(1, 5), [PUT, PUT, PUT, DELETE], [b"b", b"c", b"a", b"c"], [b"2", b"3", b"1", None]
                ),
            ),
            (ab, Batch(range(1, 4), [PUT, PUT, PUT], [b"a", None, b"b"], [b"1", b"event", b"2"])),
            (ab, Batch(range(1, 3), [int(Kind.LINK), int(Kind.BUNDLE)], [b"a", b"b"], [b"1", b"2"])),
        ]

    def different_histories(self) -> list[tuple[Batch, Batch]]:
        return [
            (puts((b"a", b"1")), puts((b"a", b"2"))),
            (puts((b"a", b"1")), puts((b"b", b"1"))),
            (puts((b"ab", b"c")), puts((b"a", b"bc"))),
            (puts((b"a", b"")), puts((b"a", None))),
            (puts((b"a", b"1")), puts((b"a", b"1"), (b"b", b""))),
            (puts(), puts((b"", b""))),
        ]


class TestKeyedTable(TableHooks):
    """The suite, and gathering, which replay uses."""

    def test_gathering_gives_the_same(self) -> None:
        """Gather batches, settled now and then, with batches applied in the other ways between: the same picture."""
        for seed in SEEDS:
            machine = KeyedTable()
            batch = self.records(seed)
            for number, part in enumerate(parts_of(batch, random_cuts(seed, len(batch)))):
                if number == seed % 3:
                    machine.apply(part)
                elif number == seed % 4:
                    machine.apply_arrow(part.to_arrow())
                else:
                    machine.gather(part.to_arrow())
                    machine.reduce()
                if number == seed % 5:
                    machine.settle()
            assert machine.applied_lsn == batch.last_lsn
            assert picture(machine) == picture(self.fed(batch))


class TestCounter(StateMachineTests):
    """A machine for which superseded records count; it does not take Arrow."""

    def make_machine(self) -> StateMachine:
        return Counter()

    def records(self, seed: int) -> Batch:
        batch = random_records(seed)
        numbers = [None if v is None else b"%d" % (len(v) * 7 - 20) for v in batch.values or ()]
        return Batch(batch.lsns, batch.kinds, batch.keys, numbers, batch.timestamps)

    def equal_histories(self) -> list[tuple[Batch, Batch]]:
        twice = puts((b"a", b"2"), (b"b", b"-1"))
        return [
            (twice, puts((b"b", None), (b"a", b"3"), (b"b", b"-2"), (b"a", b"-1"))),
            (
                twice,
                Batch(
                    range(1, 5), [PUT, DELETE, PUT, PUT], [b"b", b"b", b"a", b"b"], [b"9", None, b"2", b"-1"]
                ),
            ),
        ]


def test_a_counter_refuses_other_values() -> None:
    """A value of letters, of nothing, or of a lone sign: ValueError, and not one record of the batch has counted."""
    counter = Counter()
    counter.apply(puts((b"a", b"1")))
    for bad in (b"", b"-", b"one", b"1.5", b" 1", "\u0663".encode()):
        batch = Batch([2, 3], PUT, [b"a", b"a"], [b"5", bad])
        with pytest.raises(ValueError, match="not a whole number"):
            counter.apply(batch)
        assert (counter[b"a"], counter[b"other"], counter.applied_lsn) == (1, 0, 1)
    assert "1 key at LSN 1" in repr(counter)
    with pytest.raises(ValueError, match="every record"):
        counter.restore([puts((b"a", None))], 1)


class TestCountingMachine(StateMachineTests):
    """A machine without a set of keys; it does not take Arrow."""

    def make_machine(self) -> StateMachine:
        return CountingMachine()

    def equal_histories(self) -> list[tuple[Batch, Batch]]:
        return [(puts((b"a", b"1"), (b"b", b"2")), puts((b"c", b""), (b"c", b"")))]


class ForgetsNothing(KeyedTable):
    """Takes a tombstone for a put."""

    def apply(self, batch: Batch) -> None:
        super().apply(Batch(batch.lsns, PUT, batch.keys, batch.values))


class TakesAnything(KeyedTable):
    """Applies records again."""

    def apply(self, batch: Batch) -> None:
        self._applied_lsn = 0
        super().apply(batch)


class StandsStill(KeyedTable):
    """Does not move over events."""

    def apply(self, batch: Batch) -> None:
        if batch.keys is not None and any(key is not None for key in batch.keys):
            super().apply(batch)


class Unordered(KeyedTable):
    """Gives its snapshot in the order in which keys came."""

    def snapshot(self) -> Iterator[Batch]:
        return iter([Batch(list(self._lsns.values()), PUT, list(self._values), list(self._values.values()))])


class Alive(KeyedTable):
    """Gives a snapshot of whatever the state is when it is read."""

    def snapshot(self) -> Iterator[Batch]:
        for key in sorted(self._values):
            yield Batch([self._lsns[key]], PUT, [key], [self._values[key]])


class Remembers(KeyedTable):
    """Keeps its state when it is restored."""

    def restore(self, batches: Iterable[Batch], lsn: int) -> None:
        kept, kept_lsns = self._values, self._lsns
        super().restore(batches, lsn)
        self._values, self._lsns = kept | self._values, kept_lsns | self._lsns


class Historical(KeyedTable):
    """Has its history in its checksum."""

    def checksum(self) -> int:
        return hash((super().checksum(), self.applied_lsn)) & (1 << 64) - 1


class Blind(KeyedTable):
    """Has one checksum for all states."""

    def checksum(self) -> int:
        return 0


class OtherArrow(KeyedTable):
    """Takes the first record of a key if it comes as Arrow."""

    def apply_arrow(self, batch: pa.RecordBatch) -> None:
        for row in reversed(range(len(batch))):
            super().apply_arrow(batch.slice(row, 1))
            self._applied_lsn = 0


def run_suite(make: Callable[[], StateMachine]) -> None:
    """Run the tests of the suite, to the first that fails, for the machines that `make` makes."""

    class Suite(TableHooks):
        def make_machine(self) -> StateMachine:
            return make()

    suite = Suite()
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite, name)()


@pytest.mark.parametrize(
    "broken",
    [ForgetsNothing, TakesAnything, StandsStill, Unordered, Alive, Remembers, Historical, Blind, OtherArrow],
)
def test_the_suite_notices_a_broken_machine(broken: type[KeyedTable]) -> None:
    """Each mutant of the keyed table fails at least one test of the suite."""
    with pytest.raises((AssertionError, ValueError, RuntimeError, KeyError)):
        run_suite(broken)


def test_the_suite_is_imported_without_pytest() -> None:
    """The shipped module imports no test tool, so that a program can run the suite as it likes."""
    import subprocess
    import sys

    code = "import sys, walkit.testing.state; print(sorted({'pytest', 'hypothesis'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_random_records_hold_every_case() -> None:
    """The suite's own records have all kinds, the empty key, absent keys and values: it covers its claims."""
    rows = [row for seed in range(20) for row in random_records(seed).rows()]
    assert {kind for _, kind, _, _ in rows} == {1, 2, 3, 4}
    assert {b"", None} <= {key for _, _, key, _ in rows}
    assert {b"", None} <= {value for _, kind, _, value in rows if kind != DELETE}
