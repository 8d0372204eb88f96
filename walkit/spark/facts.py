"""What `load()` notes of a log's history, and whether its records give a state.

The records of a log that was trimmed or compacted do not give every state. The manifest has the LSNs of those that
they give, so `load()` puts them into the metadata of column `lsn`, of the same moment as the ranges that it
plans.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame

from walkit.errors import HistoryTrimmedError

METADATA_KEY = "walkit"
"""Under this name the facts are in the metadata of the column."""

SEVERAL_KEY = "walkit_logs"
"""Under this name the metadata have a list of facts, one for each log of a load of several."""

TOUCHED_KEY = "walkit_touched_from"
"""Under this name the metadata have an LSN where only records of keys that a record from there on touches are read."""

SOURCE_NAME = "walkit"
"""The name of the data source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """The facts of a log that one `load()` saw: a dict of these is `df.schema["lsn"].metadata["walkit"]`."""

    log_id: str
    """16 hexadecimal digits; Spark's metadata have no unsigned numbers of 64 bits."""
    first_lsn: int
    """The oldest LSN that the log then had."""
    last_lsn: int
    """The newest LSN on stable storage, or option `lastLsn`."""
    exact_from_lsn: int
    """Below, trimming or compaction has dropped what states are made of."""
    snapshot_lsn: int
    """The LSN of the snapshot that the records start with; 0 if they are the log's alone."""
    from_lsn: int
    """Option `firstLsn`; 0 where it was not given."""
    path: str
    """Where the log is, as workers find it."""
    partitions: int
    """Option `partitions`; 0 where it was not given."""
    epoch_id: str
    """The id of the epoch of the record at `last_lsn`, 16 hexadecimal digits."""

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata of the column."""
        return {METADATA_KEY: asdict(self)}

    @classmethod
    def all_of(cls, df: DataFrame) -> list[LogFacts]:
        """Return the facts that column `lsn` carries, one for each log of its load; empty without them."""
        metadata = next((field.metadata for field in df.schema.fields if field.name == "lsn"), {})
        found = metadata.get(SEVERAL_KEY, [metadata.get(METADATA_KEY)])
        return [cls(**noted) for noted in found if noted is not None]

    def require_state(self, lsn: int) -> None:
        """Raise HistoryTrimmedError where the records do not give the state at this LSN.

        With `firstLsn` the records from there on are asked for, and not the state before them.
        """
        if lsn <= 0 or lsn == self.snapshot_lsn:
            return
        if lsn < self.exact_from_lsn:
            raise self.refusal(lsn, self.exact_from_lsn)
        is_complete = self.first_lsn == 1 or self.from_lsn or 0 < self.snapshot_lsn < lsn
        if not is_complete:
            raise self.refusal(1, self.first_lsn)

    def require_records(self, first_lsn: int) -> None:
        """Raise HistoryTrimmedError where the state before this LSN, or a record from there on, is not known."""
        self.require_state(first_lsn - 1)
        if first_lsn < self.exact_from_lsn:
            raise self.refusal(first_lsn - 1, self.exact_from_lsn)

    def refusal(self, wanted: int, exact_from_lsn: int) -> HistoryTrimmedError:
        """Return the error that names the state that is wanted, and what may give it."""
        error = HistoryTrimmedError(wanted, exact_from_lsn)
        error.add_note(
            "The records of the load do not give this state. A snapshot may: load the log with option "
            "snapshot=true, and with lastLsn for the one nearest to an LSN."
        )
        error.add_note(f"The log is {self.path}.")
        return error
