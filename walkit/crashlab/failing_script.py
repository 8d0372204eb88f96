"""A script whose calls may meet a failing storage: what it notes of their records then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from walkit.commit.ticket import Ticket
from walkit.crashlab.ledger import Row
from walkit.crashlab.script import Script
from walkit.errors import (
    CommitFailedError,
    LogClosedError,
    LogFullError,
    LogPoisonedError,
    SnapshotError,
    StorageError,
)
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.record import Kind

REFUSED = (LogFullError, LogPoisonedError, LogClosedError)
"""Nothing of the call was written except its acknowledged prefix."""


class FailingScript(Script):
    """A script whose calls may meet a failure: it notes what is known of their records then."""

    def __init__(self, script: Script) -> None:
        vars(self).update(vars(script))

    def begin(self) -> None:
        """Go on with an empty disk."""
        self.storage.inner = CrashingStorage()
        vars(self.ledger).update(vars(type(self.ledger)()))

    def _given(self, rows: list[Row], call: Callable[[], object], *, together: bool = False) -> None:
        before = len(self.ledger.rows)

        def checked() -> None:
            last = getattr(call(), "last_lsn", None)
            assert last in (None, before + len(rows)), f"LSN {last} for {before + len(rows)}"

        try:
            super()._given(rows, checked, together=together)
        except (CommitFailedError, *REFUSED) as error:
            _check_cause(error)
            if self.options.durability == "sync" and error.acknowledged_prefix:
                self.ledger.keep(before + error.acknowledged_prefix)
            if not isinstance(error, CommitFailedError):
                self.ledger.take_back(before + error.acknowledged_prefix)

    def submit(self, log: WriteAheadLog, count: int, size: int) -> None:
        """See `Script`; what was refused was the last of it."""
        tickets: list[tuple[int, Ticket]] = []
        refused: list[int] = []
        for _ in range(count):
            value = self.value(size)
            lsn = self.ledger.submit((Kind.PUT, None, value))
            try:
                tickets.append((lsn, log.submit(value)))
            except REFUSED as error:
                _check_cause(error)
                refused.append(lsn)
        for lsn, ticket in tickets:
            try:
                ticket.result()
            except (CommitFailedError, *REFUSED) as error:
                _check_cause(error)
                if not isinstance(error, CommitFailedError):
                    refused.append(lsn)
                continue
            assert not refused, f"LSN {lsn:,} was written, and not that before it"
            if self.options.durability == "sync" and self.options.ack_order == "completion":
                self.ledger.keep_also(lsn, lsn)
            elif self.options.durability == "sync":
                self.ledger.keep(lsn)
        if refused:
            self.ledger.take_back(min(refused) - 1)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Survive an error of the kinds that a failing storage brings."""
        try:
            yield
        except (StorageError, SnapshotError, CommitFailedError, *REFUSED) as error:
            _check_cause(error)

    def note_durable(self, log: WriteAheadLog) -> None:
        """Note that what the log calls durable is promised."""
        self.ledger.keep(min(log.durable_lsn, len(self.ledger.rows)))


def _check_cause(error: BaseException) -> None:
    """Assert that the storage caused it, and no error of another kind in one of the log's threads."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, StorageError):
        cause = cause.__cause__
    assert isinstance(error, LogClosedError) or cause is not None, f"no error of the storage: {error!r}"
    assert cause is None or cause.errno is not None, f"no errno: {cause!r}"
