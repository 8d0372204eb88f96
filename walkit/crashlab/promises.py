"""The records that a scenario appended, and the log's promises at each moment, by which a crash is judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from walkit.models import CrashingStorage
from walkit.record import Kind

Row = tuple[int, bytes | None, bytes | None]
"""Kind, key and value of a record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """The promises of one moment, which hold in every state after a power cut."""

    rows: list[Row] = field(repr=False)
    """The records by LSN, from 1 on; those that are appended later come after `submitted`."""
    submitted: int
    """LSNs up to this one were given to the log; no record after it can be there."""
    kept: int
    """Records up to this one are promised to survive."""
    also: frozenset[int]
    """Records after `kept` that are promised, too: in completion order a later frame may be acknowledged first."""
    trimmed: int
    """Records up to this one may be gone: a trim or a checkpoint that drops them has started."""
    compacted: bool
    """Whether a compaction has started: then a record may be gone that is not the newest of its key."""
    transactions: tuple[tuple[int, int], ...] = field(repr=False)
    """First and last LSN of records that are all or nothing."""
    held: int = 0
    """A trim after the recovery has to keep records from this one on, for a hold or a claim; 0: none does."""
    lost: frozenset[int] = frozenset()
    """Records that damage has hit: they may be gone."""
    is_damaged: bool = False
    """Whether an opening may need a repair before it."""
    aside: frozenset[str] = frozenset()
    """Files under lost+found that a repair has put there."""
    repaired: object = None
    """The result of a repair that nothing cuts short: see `repaired_in`. None if that is not judged."""
    source: CrashingStorage | None = field(default=None, repr=False)
    """The log that this is a copy of: an unfinished copy of it is continued."""
    places: tuple[tuple[str, int, int], ...] = ()
    """Kind and name of each cursor and claim, with its lowest and highest LSN; 0 if its file is missing."""

    @property
    def key(self) -> object:
        """Its key among the promises of a run."""
        return (
            *(id(self.rows), self.submitted, self.kept, self.also, self.trimmed, self.compacted, self.held),
            *(self.places, self.lost, self.is_damaged, self.aside, self.repaired, id(self.source)),
        )

    def state_at(self, lsn: int) -> dict[bytes, bytes | None]:
        """Return the keyed state after the record of this LSN."""
        state: dict[bytes, bytes | None] = {}
        for kind, key, value in self.rows[:lsn]:
            if key is None:
                continue
            if kind == Kind.DELETE:
                state.pop(key, None)
            else:
                state[key] = value
        return state


class Ledger:
    """Every record in the order of its LSN, and the current promises. For the thread that runs the scenario."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.kept = 0
        self.trimmed = 0
        self.compacted = False
        self.kept_from: dict[str, int] = {}
        """By name of a hold or claim: the first LSN that it keeps."""
        self.places: dict[str, tuple[int, int]] = {}
        """By "cursor NAME" or "claim NAME": its lowest and its highest LSN."""
        self.lost: frozenset[int] = frozenset()
        self.is_damaged = False
        self.aside: frozenset[str] = frozenset()
        self.repaired: object = None
        self.source: CrashingStorage | None = None
        self._also: set[int] = set()
        self._transactions: list[tuple[int, int]] = []

    def submit(self, *rows: Row, together: bool = False) -> int:
        """Note records that are given to the log now; return the LSN of the last one."""
        first = len(self.rows) + 1
        self.rows += rows
        if together:
            self._transactions.append((first, len(self.rows)))
        return len(self.rows)

    def keep(self, lsn: int) -> None:
        """Note that everything up to this LSN is promised from now on."""
        self.kept = max(self.kept, lsn)
        while self.kept + 1 in self._also:
            self.kept += 1
        self._also = {other for other in self._also if other > self.kept}

    def keep_also(self, first_lsn: int, last_lsn: int) -> None:
        """Note that these records are promised, and perhaps not those before them."""
        self._also |= set(range(first_lsn, last_lsn + 1))
        self.keep(self.kept)

    @contextmanager
    def moving(self, place: str, lsn: int) -> Iterator[None]:
        """Note that a cursor or claim is moved to this LSN within the block, and has it after the block."""
        before = self.places.get(place, (0, 0))
        self.places[place] = (min(before[0], lsn), max(before[1], lsn))
        yield
        self.places[place] = (lsn, lsn)

    def restart(self, last_lsn: int) -> None:
        """Note that the log was opened again and ends there: later records were never promised, and are gone."""
        self.take_back(last_lsn)
        self.kept, self._also = last_lsn, set()

    def take_back(self, last_lsn: int) -> None:
        """Note that nothing of the records after this one was written, and that their LSNs are given again."""
        assert last_lsn >= max(self.kept, *self._also, 0), (
            f"LSN {self.kept:,} was promised, and {last_lsn:,} is the last"
        )
        self.rows = self.rows[:last_lsn]  # a new list: promises of before keep theirs
        self._transactions = [t for t in self._transactions if t[1] <= last_lsn]

    def promise(self) -> Promise:
        """Return the promises of this moment. Any thread."""
        return Promise(
            rows=self.rows,
            submitted=len(self.rows),
            kept=self.kept,
            also=frozenset(self._also),
            trimmed=self.trimmed,
            compacted=self.compacted,
            transactions=tuple(self._transactions),
            lost=self.lost,
            is_damaged=self.is_damaged,
            aside=self.aside,
            repaired=self.repaired,
            source=self.source,
            held=min(self.kept_from.values(), default=0),
            places=tuple((name, *lsns) for name, lsns in self.places.items()),
        )
