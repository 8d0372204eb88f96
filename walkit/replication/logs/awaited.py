"""Which record a caller waits for: an LSN alone is a name, and only with its epoch the identity of a record."""

from __future__ import annotations

from typing import NamedTuple

from walkit._internal.arguments import as_lsn
from walkit.errors import DivergenceError
from walkit.format.manifest import Manifest
from walkit.record import AppendResult
from walkit.segments.history import identity_at, lies_in, parted_at


class Awaited(NamedTuple):
    """A record that a caller waits for."""

    lsn: int
    epoch_id: int
    """The random id of the epoch that wrote it; 0 if the caller gave a bare LSN."""

    @classmethod
    def of(cls, result_or_lsn: AppendResult | int) -> Awaited:
        """Return the last record of an append's result, or any record at a bare LSN; OptionsError for anything else."""
        if not isinstance(result_or_lsn, AppendResult):
            return cls(as_lsn(result_or_lsn, "result_or_lsn"), 0)
        # A result of no records names the end of a log, which an earlier epoch may have written.
        is_empty = result_or_lsn.last_lsn < result_or_lsn.first_lsn
        return cls(result_or_lsn.last_lsn, 0 if is_empty else result_or_lsn.epoch_id)

    def is_applied(self, applied_lsn: int, manifest: Manifest, *, in_contact: bool) -> bool:
        """Return whether the record is applied, in the history of this manifest, which was read after `applied_lsn`.

        `in_contact`: that history was compared with the primary's. Until then a bare LSN does not count, and another
        record at the LSN says nothing; afterwards that one is a DivergenceError, for the record will not come.
        """
        if not self.epoch_id:
            return in_contact and applied_lsn >= self.lsn
        if lies_in(manifest, self.lsn, self.epoch_id):
            return applied_lsn >= self.lsn
        is_known = applied_lsn >= self.lsn or any(e.id == self.epoch_id for e in manifest.lineage)
        if in_contact and is_known:
            here = identity_at(manifest, self.lsn)
            raise DivergenceError(
                f"record {self.lsn:,} of epoch {self.epoch_id:016x} is not in this history, which has epoch "
                f"{here.epoch_id:016x} there: it was cut, or belongs to another log",
                first_lsn=parted_at(manifest, self.epoch_id),
            )
        return False
