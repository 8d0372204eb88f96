"""The files of a plan, on the side of the source: opened one after the other, read in pieces."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from walkit.copier.plan import open_span, plan_segments, planned_manifest
from walkit.errors import StorageError, WalkitError
from walkit.read.payloads import LOGS_KEY, names_of
from walkit.read.view import LogView
from walkit.storage.bulk import read_ahead
from walkit.storage.interface import StorageFile


class PlannedFiles:
    """The segments and the snapshots of one plan. Used by one thread; to be closed."""

    def __init__(
        self,
        look: Callable[[], LogView],
        snapshots: Mapping[int, StorageFile],
        *,
        covered_lsn: int = 0,
        payload_places: Mapping[int, str] | None = None,
    ) -> None:
        """Make the plan of this moment; a claim on all that there is comes before, and so do the open snapshots.

        `look` returns the part on stable storage. Snapshots beyond its end are left out. Segments that `covered_lsn`, a
        snapshot's, covers wholly are left out, too, and without `payload_places` the manifest's facts of its own
        folder. These have the new places of payload logs. Raises the errors of `plan_segments`
        and `look`; the files are closed then.
        """
        self._file: StorageFile | None = None
        self._head, self._index = b"", -1
        self._snapshots = dict(snapshots)
        try:
            self._view = look()
            self._segments, end = plan_segments(self._view, covered_lsn)
            own, records = self._view.manifest, [segment.record for segment in self._segments]
            extra = (
                None
                if payload_places is None
                else {**own.extra, **_named_payloads(self._view, payload_places)}
            )
            self.manifest = planned_manifest(own, records, end, covered_lsn, extra)
            self.snapshot_lsns = tuple(lsn for lsn in self._snapshots if lsn <= end.last_lsn)
            sizes = [segment.size for segment in self._segments]
            self.sizes = (*sizes, *(self._snapshots[lsn].size() for lsn in self.snapshot_lsns))
        except BaseException:
            self.close()
            raise

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Return bytes of a file of the plan, by the index of its size. GapError if it was dropped; StorageError.

        The header of a segment comes without a promise: it is about the manifest in the source's folder.
        """
        head = b""
        if index >= len(self._segments):
            file = self._snapshots[self.snapshot_lsns[index - len(self._segments)]]
        else:
            if self._index != index or self._file is None:
                self._close_segment()
                self._file, header = open_span(self._view, self._segments[index].span)
                self._head, self._index = replace(header, manifest_generation=0).encode(), index
            file, head = self._file, self._head[offset : offset + size]
        read_ahead(file, offset + size, size)
        data = file.read(offset, size)
        if len(data) != size:
            raise StorageError(
                f"file {index} of the plan ends before byte {offset + size:,}",
                errno=errno.EIO,
                name=file.name,
            )
        return head + data[len(head) :] if head else data

    def _close_segment(self) -> None:
        file, self._file, self._index = self._file, None, -1
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close the files."""
        for close in (self._close_segment, *(file.close for file in self._snapshots.values())):
            with suppress(WalkitError):
                close()


def _named_payloads(view: LogView, places: Mapping[int, str]) -> dict[str, Any]:
    """Return the fact that names the payload logs of a log by places that are the same for its copy anywhere."""
    named = {**names_of(view.manifest, view.storage.location), **places}
    return {LOGS_KEY: {f"{log_id:016x}": place for log_id, place in named.items()}} if named else {}
