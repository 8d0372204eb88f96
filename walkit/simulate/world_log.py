"""The ledger of a world: which record each LSN has, and what was promised to whom. It reads no disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from walkit.format.manifest import LogEnd

Rows = Sequence[tuple[bytes, bytes]]


class Violation(Exception):  # noqa: N818 - it is a finding about the program, not an error of the simulation
    """A promise was broken: `rule` is its name, as in RULES of `world_rules`."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule, self.text = rule, text


@dataclass(slots=True)
class Promise:
    """What a consumer may count on: the records from `first_lsn` on are there until `until_ms`."""

    first_lsn: int
    until_ms: float
    since_ms: float | None = None
    """Since when there has been contact without a pause; None without any."""


class Ledger:
    """Learns each record from whoever has it first; everyone after has to have the same."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes]] = []
        self.states: list[dict[bytes, bytes]] = [{}]
        """By LSN: of everything up to it."""
        self.acked_lsn = 0
        """The last record that a client was told is durable."""
        self.shown_lsn = 0
        """The last record that anybody has seen: it was durable."""
        self.ends: dict[int, LogEnd] = {0: LogEnd()}
        """By position: the end of a frame there."""
        self.digest = 0
        self.acked: dict[str, LogEnd] = {}
        """By replica: what it has said is on its disk."""
        self.promises: dict[str, Promise] = {}
        self._early: dict[int, tuple[bytes, bytes]] = {}

    @property
    def last_lsn(self) -> int:
        """The last record that is known, with all before it."""
        return len(self.rows)

    def learn(self, first_lsn: int, rows: Rows, who: str) -> None:
        """Note the records from an LSN on; Violation where one is another than before."""
        for lsn, row in enumerate(rows, first_lsn):
            known = self.rows[lsn - 1] if lsn <= len(self.rows) else self._early.setdefault(lsn, row)
            if known != row:
                raise Violation("durable", f"{who} has another record at LSN {lsn}")
        while (row_ := self._early.pop(len(self.rows) + 1, None)) is not None:
            key, value = row_
            self.rows.append(row_)
            self.states.append({**self.states[-1], key: value})
            self.digest = crc32(b"%d %b=%b" % (len(self.rows), key, value), self.digest)

    def forget_after(self, lsn: int) -> None:
        """A log ends at this LSN after a power cut, as it may: the next records get the LSNs after it."""
        self._early.clear()
        del self.rows[lsn:], self.states[lsn + 1 :]

    def end_at(self, end: LogEnd, who: str) -> None:
        """Note where a frame ends; Violation where another one ends there."""
        known = self.ends.setdefault(end.position, end)
        if known != end:
            raise Violation("logs", f"{who} ends at {end}, where another log ends at {known}")
