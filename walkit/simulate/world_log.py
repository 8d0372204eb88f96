"""The ledger of a world: which record each LSN has, and the promises, branch by branch. It reads no disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from walkit.format.manifest import EpochRecord, LogEnd

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


class Branch:
    """The log of one primary. It learns each record from whoever has it first; everyone after has to have the same.

    A promotion begins a branch, which has the records of the one before up to its first LSN.
    """

    def __init__(self, before: Branch | None = None, base: LogEnd | None = None) -> None:
        self.before, self.base = before, base or LogEnd()
        """The branch that it continues, and where."""
        lsn = self.base.last_lsn
        self.rows: list[tuple[bytes, bytes]] = [] if before is None else before.rows[:lsn]
        self.states: list[dict[bytes, bytes]] = [{}] if before is None else before.states[: lsn + 1]
        """By LSN: of everything up to it."""
        self.acked_lsn = 0
        """The last record that a client was told is durable."""
        self.shown_lsn = 0
        """The last record that anybody has seen: it was durable."""
        self.ends: dict[int, LogEnd] = {0: LogEnd()}
        """By position: the end of a frame there."""
        if before is not None:
            self.ends |= {at: end for at, end in before.ends.items() if at <= self.base.position}
        self.digest: int = 0 if before is None else before.digest
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

    def has_all_of(self, other: Branch, end: LogEnd) -> bool:
        """Say whether this branch goes through an end of another one."""
        branch: Branch | None = self
        while branch is not other:
            if branch is None or branch.base.position < end.position or branch.base.last_lsn < end.last_lsn:
                return False
            branch = branch.before
        return True


class Ledger:
    """The branches of one log, by the epochs that their primaries began."""

    def __init__(self) -> None:
        self._branches: dict[int, Branch] = {}
        self.found: Violation | None = None
        """A broken rule that a program was not to see."""

    def branch_of(self, lineage: Sequence[EpochRecord]) -> Branch | None:
        """Return the branch of a log by its last epoch; None before the first. Violation if nobody began it."""
        if not lineage:
            return None
        if lineage[-1].id not in self._branches:
            raise Violation("logs", f"a log has epoch {lineage[-1].number}, which no primary began")
        return self._branches[lineage[-1].id]

    def opened(self, lineage: Sequence[EpochRecord], epoch_id: int, branch: Branch | None) -> Branch:
        """Note the epochs of a primary's log, and that of its opening; return its branch, a new one if it has none."""
        new = [epoch for epoch in lineage if epoch.id not in self._branches]
        if branch is None:
            branch = Branch()
            if new:
                first, before = new[0], self.branch_of(lineage[: -len(new)])
                base = LogEnd(last_lsn=first.first_lsn - 1, position=first.position, chain=first.chain)
                branch = Branch(before, base)
        self._branches |= dict.fromkeys([*(epoch.id for epoch in new), epoch_id], branch)
        return branch
