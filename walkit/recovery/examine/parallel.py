"""Sealed segments side by side: checksums and reads of large frames release the interpreter's lock.

Each segment is examined into a context of its own; they are joined in the order of the log, so that the report is the
same as that of one after the other. Small frames are the interpreter's work, which more threads only slow down.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait

from walkit.recovery.examine.scan_context import ScanContext
from walkit.recovery.examine.sealed import examine_sealed

WORKERS_MAX = 4
FRAME_BYTES_MIN = 32 * 1024
"""Mean size of frames from which on segments are examined side by side; below, CRC-32C holds the lock."""
PROGRESS_S = 0.1


def examine_sealed_segments(context: ScanContext) -> None:
    """Examine all sealed segments. The calling thread reports progress; its interrupt ends the others."""
    records = context.manifest.sealed
    workers = min(WORKERS_MAX, os.cpu_count() or 1, len(records))
    size, frames = sum(r.size_bytes for r in records), sum(r.frames for r in records)
    if workers < 2 or not context.bodies or size < frames * FRAME_BYTES_MIN:
        for record in records:
            examine_sealed(context, record)
        return
    parts = [context.part() for _ in records]
    with ThreadPoolExecutor(workers, "walkit-verify") as pool:
        try:
            futures = [
                pool.submit(examine_sealed, part, record) for part, record in zip(parts, records, strict=True)
            ]
            for part, future in zip(parts, futures, strict=True):
                while not wait([future], PROGRESS_S).done:
                    context.report_progress(sum(one.bytes_done for one in parts))
                future.result()
                context.join(part)
        except BaseException:
            for part in parts:
                part.stopped = True
            pool.shutdown(cancel_futures=True)
            raise
    context.report_progress(sum(part.bytes_done for part in parts))
