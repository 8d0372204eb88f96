"""The number of records between two LSNs, by headers alone."""

from __future__ import annotations

import os

from walkit._internal.arguments import as_lsn, refuse
from walkit.read.record_count import count_records
from walkit.spark.options import local_path


def count(path: str | os.PathLike[str], first_lsn: int | None = None, last_lsn: int | None = None) -> int:
    """Return the number of records of a log between two LSNs, inclusive; None is the oldest and the newest one.

    From the manifest and frame headers, in this process: no session is started. Spark's own `df.count()` reads every
    record, as Spark pushes no aggregation down to a source written in Python. GapError where `first_lsn` is trimmed.
    """
    if first_lsn is not None and as_lsn(first_lsn, "first_lsn") < 0:
        refuse("first_lsn", first_lsn, "0 or more")
    return count_records(local_path(os.fspath(path)), first_lsn, last_lsn)
