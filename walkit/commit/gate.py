"""The ways into a commit driver through an admission gate: each asks the gate before it queues anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from walkit.commit.batch import BatchSlot
from walkit.commit.ports import AdmissionGate, CommitEntry
from walkit.commit.ticket import SingleTicket
from walkit.record import AppendResult


class GatedEntry:
    """A `CommitEntry` over another one; "no room" is what the gate says, too. Safe from any thread."""

    def __init__(self, entry: CommitEntry, gate: AdmissionGate) -> None:
        self._entry = entry
        self._gate = gate

    def append_put(self, key: bytes | None, value: bytes) -> AppendResult | None:
        """See CommitEntry."""
        if not self._gate.admit(1):
            return None
        try:
            return self._entry.append_put(key, value)
        finally:
            self._gate.entered()

    def append(self, ticket: SingleTicket) -> bool:
        """See CommitEntry."""
        if not self._gate.admit(ticket.count):
            return False
        try:
            return self._entry.append(ticket)
        finally:
            self._gate.entered()

    def enqueue(self, ticket: SingleTicket) -> bool:
        """See CommitEntry."""
        if not self._gate.admit(ticket.count):
            return False
        try:
            return self._entry.enqueue(ticket)
        finally:
            self._gate.entered()

    def enqueue_put(
        self, key: bytes | None, value: bytes, ticket: BatchSlot
    ) -> BatchSlot | SingleTicket | None:
        """See CommitEntry."""
        if not self._gate.admit(1):
            return None
        try:
            return self._entry.enqueue_put(key, value, ticket)
        finally:
            self._gate.entered()

    def enqueue_awaited(self, key: bytes | None, value: bytes) -> Awaitable[AppendResult] | None:
        """See CommitEntry."""
        if not self._gate.admit(1):
            return None
        try:
            return self._entry.enqueue_awaited(key, value)
        finally:
            self._gate.entered()

    def wait_for_room(self, size_bytes: int, timeout: float | None) -> bool:
        """See CommitEntry; raises what refuses the records where the gate gets no room in time."""
        return self._gate.wait(timeout) or self._entry.wait_for_room(size_bytes, timeout)

    def on_room(self, callback: Callable[[], object]) -> None:
        """See CommitEntry."""
        if not self._gate.on_room(callback):
            self._entry.on_room(callback)
