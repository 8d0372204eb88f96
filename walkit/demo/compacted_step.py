"""The fourth step: checkpoint and compaction, their effect on the log and its opening, and a replica that joins."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from walkit.compaction import CompactionReport
from walkit.config import LogOptions
from walkit.demo.parts import Parts
from walkit.demo.progress_printer import ProgressPrinter
from walkit.read.inventory import LogInventory
from walkit.recovery.report import RecoveryReport
from walkit.replication.primary.server import Primary
from walkit.replication.replica.follower import Replica
from walkit.state.checkpoint import CheckpointReport
from walkit.store import Store

JOIN_S: Final = 180.0


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """The effects of checkpoint and compaction, and the openings before and after them."""

    before: RecoveryReport
    checkpoint: CheckpointReport
    compaction: CompactionReport
    after: RecoveryReport
    segments_before: LogInventory
    segments_after: LogInventory


def checkpoint_and_compact(
    out: Path, parts: Parts, options: LogOptions, printer: ProgressPrinter
) -> tuple[Compacted, dict[str, Any]]:
    """Open the log, save its state, compact the part before the first cut, and open it again.

    Nothing is trimmed, and compaction leaves every state from the first cut on exact: they are replayed later.
    """
    path = out / "log"
    with printer.part("opening it: the whole log is replayed"):
        store = Store.open(path, options)
    with store:
        before, segments_before = store.recovery, store.inventory()
        with printer.part("checkpoint"):
            checkpoint = store.checkpoint(trim=False)
        with printer.part(f"compaction; states stay exact from LSN {parts.first_lsn:,} on"):
            compaction = store.compact(exact_from_lsn=parts.first_lsn)
        segments_after = store.inventory()
    with printer.part("opening it again: from the snapshot"):
        store = Store.open(path, options)
    with store:
        after, state = store.recovery, dict(store.items())
        with printer.part("a new replica joins: it gets snapshot, compacted segments, and the tail"):
            joined, bootstraps = _joined(store, out / "joined-log", options)
        with printer.part("the Store goes back to the states at two LSNs"):
            first, second = (dict(store.state_at(lsn)) for lsn in (parts.first_lsn, parts.second_lsn))
    printer.print_line(
        f"   {compaction.records_before:,} records became {compaction.records_after:,}, "
        f"{compaction.bytes_before:,} bytes became {compaction.bytes_after:,}; "
        f"opening took {before.duration_s * 1e3:,.0f} ms, and takes {after.duration_s * 1e3:,.0f} ms"
    )
    compacted = Compacted(
        before=before,
        checkpoint=checkpoint,
        compaction=compaction,
        after=after,
        segments_before=segments_before,
        segments_after=segments_after,
    )
    return compacted, {
        "compacted_state": state,
        "joined_state": joined,
        "joined_bootstraps": bootstraps,
        "records_before": compaction.records_before,
        "records_after": compaction.records_after,
        "bytes_before": compaction.bytes_before,
        "bytes_after": compaction.bytes_after,
        "first_state": first,
        "second_state": second,
    }


def _joined(store: Store, folder: Path, options: LogOptions) -> tuple[dict[bytes, bytes], int]:
    """Let a new replica follow the compacted primary; return its state, and how often its log came as a whole."""
    bootstraps: list[str] = []
    noted = threading.Event()

    def note(event: str, _: Mapping[str, Any]) -> None:
        if event == "walkit.replica.replace":
            bootstraps.append(event)
            noted.set()

    with (
        Primary(store) as primary,
        Replica(folder, primary.address, options=options, events=note) as replica,
    ):
        replica.wait_for(store.log.acked_lsn, JOIN_S)
        noted.wait(JOIN_S)  # a thread of its own sends the events
        return {key: value for key, value in replica.store.items() if value is not None}, len(bootstraps)
