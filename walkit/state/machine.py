"""The contract of a state machine, which is fed a log's records.

A state machine turns records into state, deterministically: the same records in the same order give the same state,
in any batches, on any machine, at any time. It has no clock, no randomness and no I/O. It is not
thread-safe: its caller makes one method at a time (the iterator of `snapshot` may be read meanwhile).

`walkit.testing.StateMachineTests` holds an implementation to every sentence here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from walkit.record import Batch


class StateMachine(Protocol):
    """State that is made of records: fed in LSN order, saved and restored through snapshots."""

    @property
    def snapshot_format(self) -> str:
        """Name and version of the meaning of a snapshot's records, such as "keyed-table/1".

        By it a machine's snapshots are found again: `walkit.checkpoint` writes them beside the log, `walkit.recover`
        takes the newest. One of another format is refused before `restore` is called. A custom machine that
        takes the keyed table's records in `restore` may name that format, and so be recovered beside a Store.
        """

    @property
    def applied_lsn(self) -> int:
        """LSN up to which records have been applied; 0 before the first."""

    def apply(self, batch: Batch) -> None:
        """Apply records that follow: in LSN order, the first above `applied_lsn`, which moves to the last.

        LSNs that are missing between records are those that compaction left out. A batch that does not follow is a
        ValueError, and changes nothing. An empty batch changes nothing.
        """

    def snapshot(self) -> Iterator[Batch]:
        """Return the state as records with a key each, in ascending order of keys, no key twice.

        The records are those of the moment of the call: records applied while the iterator is read are not in them.
        Equal state at an equal LSN gives equal records in equal batches, by any history. The LSN of a record
        is that of the log's record with its value, if the machine keeps that, else any LSN up to
        `applied_lsn`. (Here, and only here, the LSNs of a batch need not grow.) Batches are of bounded size, as
        several are in memory together with the state.
        """

    def restore(self, batches: Iterable[Batch], lsn: int) -> None:
        """Become the state that `snapshot` gave at this LSN; its earlier state is forgotten.

        No batches and LSN 0 are the empty state.

        When the batches raise, the state is undefined and is to be restored again.
        """

    def checksum(self) -> int:
        """Return 64 bits that are equal for equal state, by any history, and otherwise differ."""


@runtime_checkable
class ArrowStateMachine(StateMachine, Protocol):
    """A machine that also takes records as Arrow columns, which is how replay feeds it then."""

    def apply_arrow(self, batch: pa.RecordBatch) -> None:
        """Apply a batch of `walkit.RECORD_SCHEMA`; all else as `apply`, and with the same result."""


def check_follows(applied_lsn: int, first_lsn: int) -> None:
    """Refuse records that do not follow the applied ones."""
    if first_lsn <= applied_lsn:
        raise ValueError(f"the batch begins at LSN {first_lsn}, and the state is at {applied_lsn} already")


@dataclass(frozen=True, slots=True)
class StateImage:
    """The state of a machine at one moment: the source of a snapshot file. Its batches can be read once."""

    lsn: int
    snapshot_format: str
    batches: Iterator[Batch]


def take_image(machine: StateMachine, lsn: int | None = None) -> StateImage:
    """Return the machine's state as it is now; the machine may be fed on while the image is written.

    `lsn` is given if the log is known to hold nothing more for the machine up to there.
    """
    at = machine.applied_lsn if lsn is None else lsn
    if at < machine.applied_lsn:
        raise ValueError(f"the machine has applied LSN {machine.applied_lsn}; it has no image at {at}")
    return StateImage(at, machine.snapshot_format, machine.snapshot())
