"""The fourth step: checkpoint and compaction, and what they do to the log and to its opening."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from walkit.compaction import CompactionReport
from walkit.config import LogOptions
from walkit.demo.parts import Parts
from walkit.demo.progress_printer import ProgressPrinter
from walkit.read.describe import LogInventory
from walkit.recovery.report import RecoveryReport
from walkit.state.checkpoint import CheckpointReport
from walkit.store import Store


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """What checkpoint and compaction did, and the openings before and after them."""

    before: RecoveryReport
    checkpoint: CheckpointReport
    compaction: CompactionReport
    after: RecoveryReport
    segments_before: LogInventory
    segments_after: LogInventory


def checkpoint_and_compact(
    out: Path, parts: Parts, options: LogOptions, printer: ProgressPrinter
) -> tuple[Compacted, dict[str, Any]]:
    """Open the log, save its state, compact what lies before the first cut, and open it again.

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
        with printer.part("the Store goes back to the states at two LSNs"):
            first, second = (dict(store.state_at(lsn)) for lsn in (parts.first_lsn, parts.second_lsn))
    printer.say(
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
        "records_before": compaction.records_before,
        "records_after": compaction.records_after,
        "bytes_before": compaction.bytes_before,
        "bytes_after": compaction.bytes_after,
        "first_state": first,
        "second_state": second,
    }
