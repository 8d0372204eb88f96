"""Values in payload logs: a task fetches those of the records that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack

import pyarrow as pa

from walkit.objects.entrance import reader_at
from walkit.read.read_api import Resolve, has_links
from walkit.read.reader import LogReader
from walkit.record import is_link
from walkit.storage.address import StorageOptions


def with_values(
    path: str, options: StorageOptions | None, batches: Iterable[pa.RecordBatch], resolve: Resolve = "value"
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the log at `path` with values instead of links, in bounded memory; or with the links.

    The log is opened when the first link comes. PayloadGoneError, PayloadUnreachableError: a task must reach the
    payload logs that the log's manifest names.
    """
    if resolve == "link":
        yield from batches
        return
    with ExitStack() as stack:
        log: LogReader | None = None
        for batch in batches:
            if not has_links(batch) or not any(map(is_link, batch.column("value").to_pylist())):
                yield batch  # a record of kind link without a link stays as it is
                continue
            if log is None:
                log = stack.enter_context(reader_at(path, storage_options=options))
            yield from log.payloads.batches(batch)
