"""`walkit.open_async`: what `walkit.open` opens, in an event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from walkit.config import LogOptions
from walkit.events import EventCallback
from walkit.log.async_log import AsyncLog
from walkit.log.wal import WriteAheadLog
from walkit.objects.entrance import open_log
from walkit.read.reader import LogReader
from walkit.storage.address import AnyPlace


def open_async(
    path: AnyPlace | None = None,
    mode: str = "a",
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    *,
    storage: AnyPlace | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AsyncLog:
    """Return what `async with` opens as a log: the parameters and errors are those of `walkit.open`."""
    by_mode: Callable[..., WriteAheadLog | LogReader] = open_log
    return AsyncLog(
        lambda: by_mode(path, mode, options, events, storage=storage, storage_options=storage_options)
    )
