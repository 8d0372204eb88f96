"""The report of `walkit bench recovery`, as rows, text, JSON, HTML and a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from walkit._internal.report import Cells, TableReport
from walkit.bench.runner import plain_row
from walkit.measure import MachineFacts

if TYPE_CHECKING:
    import pandas as pd

SHOWN_PHASES = ("scan", "verify", "apply", "snapshot", "replay")


@dataclass(frozen=True, kw_only=True)
class RecoveryRow:
    """One way of opening, after the writer was killed. Times are milliseconds; the row is the run of the median."""

    way: str
    """verify, log (opened), store (opened and replayed), clean (opened after a close), or the name of a peer."""
    operations: int
    frame_records: int
    checkpoint_age: float
    """Share of the operations after the checkpoint; 1 means no checkpoint."""
    cache: str
    """warm: the files were in the page cache; cold: they were dropped from it before."""
    log_bytes: int
    """Bytes of the files; of walkit's segments, up to the end of their frames."""
    frames: int | None
    """Frames that were verified; None for a peer."""
    records: int
    """Operations that were verified, or brought back."""
    open_ms: float
    """Until the first key could be read; of `verify`, until the report was there."""
    phases: dict[str, float]
    """Milliseconds of each phase of walkit's own report."""
    plain_ms: float
    """Plainly reading the same bytes, just before."""
    complete: bool
    """Whether everything that was written is there."""
    all_ms: tuple[float, ...] = ()
    """Of every run."""

    @property
    def records_per_s(self) -> float:
        """Records verified or brought back in a second."""
        return self.records * 1e3 / self.open_ms

    @property
    def mb_per_s(self) -> float:
        """Megabytes of the files in a second."""
        return self.log_bytes / 1e3 / self.open_ms

    @property
    def times_plain(self) -> float:
        """The speed, in that of plain reading."""
        return self.plain_ms / self.open_ms

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        digits = {"all_ms": 3, "open_ms": 3, "plain_ms": 3, "phases": 3}
        return plain_row(self, digits | {"records_per_s": 1, "mb_per_s": 2, "times_plain": 4})


@dataclass(frozen=True, kw_only=True)
class RecoveryBenchReport(TableReport):
    """The result of one `walkit bench recovery`."""

    bench = "recovery"

    keys: tuple[int, ...]
    """Keys that the operations were on, for each number of operations."""
    record_bytes: int
    machine: MachineFacts
    rows: tuple[RecoveryRow, ...]
    runs: int = 1

    @property
    def ok(self) -> bool:
        """Whether nothing that was written is missing from any of walkit's rows."""
        return all(row.complete for row in self.rows)

    @property
    def notes(self) -> list[str]:
        """The machine of the numbers, and their limits."""
        medians = "" if self.runs == 1 else f"; medians of {self.runs} runs"
        keys = ", ".join(f"{count:,}" for count in self.keys)
        notes = [
            f"puts of {self.record_bytes:,} bytes over {keys} keys of 16, on {self.machine.where}{medians}",
            "the writer was killed (SIGKILL), and each row has a copy of its folder",
            "x plain: against reading the same bytes; opening drops unsealed segments, so it is never all warm",
        ]
        if any(row.frames is None for row in self.rows):
            notes.append(
                "peers keep all operations in their logs: their buffers hold everything (LevelDB: 1 GiB)"
            )
        if self.machine.in_memory:
            notes.append("tmpfs: it is memory, and nothing is ever cold")
        if not self.ok:
            notes.append("something that was written is MISSING after reopening; see the column complete")
        return notes

    def ratios(self) -> Iterator[tuple[RecoveryRow, str, float]]:
        """Yield (row of a replayed Store, peer, operations a second in those of the peer), of the same operations."""
        for row in self.rows:
            if row.way != "store" or row.checkpoint_age < 1:
                continue
            same = (row.operations, row.frame_records, row.cache)
            for peer in self.rows:
                if peer.frames is None and (peer.operations, peer.frame_records, peer.cache) == same:
                    yield row, peer.way, row.records_per_s / peer.records_per_s

    def _facts(self) -> dict[str, Any]:
        system = self.machine.file_system
        return {
            "keys": list(self.keys),
            "record_bytes": self.record_bytes,
            "runs": self.runs,
            "file_system": None if system is None else system.type,
            "tmpfs": self.machine.in_memory,
            "ok": self.ok,
            "rows": [row.to_dict() for row in self.rows],
            "ratios": [
                {
                    "operations": row.operations,
                    "frame_records": row.frame_records,
                    "cache": row.cache,
                    "peer": peer,
                    "times_peer": round(ratio, 3),
                }
                for row, peer, ratio in self.ratios()
            ],
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a DataFrame; phases are columns of their own."""
        import pandas as pd

        plain = [row.to_dict() for row in self.rows]
        return pd.DataFrame(
            [{**row, **{f"{name}_ms": ms for name, ms in row.pop("phases").items()}} for row in plain]
        )

    def _head(self) -> Cells:
        phases = (f"{name} ms" for name in SHOWN_PHASES)
        sizes = ("way", "operations", "a frame", "age", "cache", "MB", "ms")
        return (*sizes, *phases, "records/s", "MB/s", "x plain", "complete")

    def _cells(self) -> list[Cells]:
        return [
            (
                row.way,
                f"{row.operations:,}",
                f"{row.frame_records:,}",
                f"{row.checkpoint_age:g}",
                row.cache,
                f"{row.log_bytes / 1e6:,.1f}",
                f"{row.open_ms:,.1f}",
                *(f"{row.phases[p]:,.1f}" if p in row.phases else "" for p in SHOWN_PHASES),
                f"{row.records_per_s:,.0f}",
                f"{row.mb_per_s:,.0f}",
                f"{row.times_plain:,.3f}",
                "yes" if row.complete else "NO",
            )
            for row in self.rows
        ]

    def _plain_notes(self) -> int:
        return 3

    def _lines_below(self) -> list[str]:
        return [
            f"{row.operations:,} operations, {row.frame_records:,} a frame, {row.cache}: "
            f"a Store is {ratio:,.2f} times as fast as {peer}"
            for row, peer, ratio in self.ratios()
        ]
