"""Opening logs: by path, by URL, in a storage of one's own, or as a scratch log."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, overload

from walkit.commit.to_end import run_to_end
from walkit.config import LogOptions, check_progress
from walkit.errors import LogLockedError, NotALogError, OptionsError
from walkit.events import EventCallback, EventSink
from walkit.log.engine import open_engine
from walkit.log.logreader import LogReader
from walkit.log.scratch import open_scratch
from walkit.log.wal import WriteAheadLog, opened
from walkit.storage.base import Storage
from walkit.storage.file import FileStorage

if TYPE_CHECKING:
    from walkit.storage.memory import MemoryStorage

Place = str | os.PathLike[str] | Storage

_memories: dict[str, MemoryStorage] = {}
_memories_lock = threading.Lock()


def storage_at(place: Place) -> Storage:
    """Return the storage that a path, a URL (`file://`, `memory://name`) or a storage means."""
    if not isinstance(place, str | os.PathLike):
        if not hasattr(place, "sync_directory"):
            what = type(place).__name__
            hint = "; of an open log or store give its .location" if hasattr(place, "location") else ""
            raise OptionsError(
                f"a place is a path, a URL or a storage, not {what}{hint}", option="path", wanted=place
            )
        return place
    path = os.fspath(place)
    if isinstance(path, bytes) or "\0" in path:
        raise OptionsError(
            f"{path!r} cannot be a path: text without a zero character", option="path", wanted=path
        )
    if not path:
        raise OptionsError("the path is empty; '.' is the folder you are in", option="path", wanted=path)
    if path.startswith("memory://"):
        from walkit.storage.memory import MemoryStorage

        with _memories_lock:
            return _memories.setdefault(path, MemoryStorage())
    if path.startswith("file://"):
        path = path[len("file://") :]
    elif "://" in path:
        raise OptionsError(
            f"{path}: a place is a path, file://PATH or memory://NAME", option="path", wanted=path
        )
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotALogError(path, "it is a file, and a log is a folder")
    return FileStorage(path)


@overload
def open_log(
    path: Place | None = None,
    mode: Literal["a", "x"] = "a",
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    *,
    storage: Storage | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WriteAheadLog: ...


@overload
def open_log(
    path: Place | None,
    mode: Literal["r"],
    options: None = None,
    events: EventCallback | None = None,
    *,
    storage: Storage | None = None,
    progress: None = None,
) -> LogReader: ...


@overload
def open_log(
    path: Place | None = None,
    *,
    mode: Literal["r"],
    events: EventCallback | None = None,
    storage: Storage | None = None,
) -> LogReader: ...


def open_log(
    path: Place | None = None,
    mode: str = "a",
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    *,
    storage: Storage | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WriteAheadLog | LogReader:
    """Open a log. mode "a" opens or creates it, "x" only creates; "r" reads it from any process, and never changes it.

    `path` is a folder, `file://PATH` or `memory://NAME`; `storage=` takes any `walkit.storage.Storage` instead. Opening
    for writing recovers first (`log.recovery` tells what was found) and takes the lock; `progress` is called with
    (bytes scanned, bytes to scan). Opening for reading scans nothing, and takes `events` alone: `options` or `progress`
    beside mode "r" are an OptionsError.

    An interrupt (Ctrl-C) is raised when the opening has ended, and nothing is held then; one that comes up after that,
    on the way to the caller, leaves the log in `walkit.opened()` until it is closed or collected.

    Raises LogNotFoundError, LogExistsError, NotALogError, LogLockedError, FormatVersionError, CorruptionError,
    SegmentMissingError, OptionsError, StorageError; then nothing was changed and no lock is held.
    """
    if (path is None) == (storage is None):
        raise OptionsError("give either a path or storage=", option="path", wanted=path, stored=storage)
    place = storage if storage is not None else storage_at(path if path is not None else "")
    if mode == "r":
        _refuse_for_reading(options=options, progress=progress)
        return LogReader(place, EventSink(events))
    if mode not in ("a", "x"):
        raise OptionsError(f"mode={mode!r}: it is 'a', 'x' or 'r'", option="mode", wanted=mode)
    check_progress(progress, "(bytes scanned, bytes to scan)")
    if options is not None and not isinstance(options, LogOptions):
        raise OptionsError(
            f"options is a {type(options).__name__}, not LogOptions", option="options", wanted=options
        )
    sink, given = EventSink(events), options or LogOptions()
    return run_to_end(
        lambda: _open_writer(place, mode, given, sink, progress),
        "open",
        events=sink,
        undo=WriteAheadLog.close,
    )


def _open_writer(
    place: Storage,
    mode: str,
    options: LogOptions,
    events: EventSink,
    progress: Callable[[int, int], None] | None,
) -> WriteAheadLog:
    try:
        engine = open_engine(place, mode, options, events, progress)
    except LogLockedError as error:
        if not error.same_process:
            raise
        raise LogLockedError(
            error.path,
            pid=error.pid,
            command=error.command,
            same_process=True,
            index=_index_of(place.location),
        ) from None
    return WriteAheadLog(engine)


def _refuse_for_reading(**given: object) -> None:
    """A reader writes, recovers and scans nothing at its opening: nothing is taken that would then be ignored."""
    for name, value in given.items():
        if value is not None:
            raise OptionsError(
                f"{name} is for opening a log for writing; mode='r' takes none",
                option=name,
                wanted=value,
                stored="r",
            )


def _index_of(location: str) -> int | None:
    """Return where in `opened()` the log at a place stands; None for one that is opened or closed at this moment."""
    for index, log in enumerate(opened()):
        known = log.location
        both_there = os.path.exists(known) and os.path.exists(location)
        if known == location or (both_there and os.path.samefile(known, location)):
            return index
    return None


def scratch(
    name: str = "log", options: LogOptions | None = None, events: EventCallback | None = None
) -> WriteAheadLog:
    """Return a new, empty log on real files in the folder for temporary ones. For notebooks; `Store.scratch` likewise.

    A name is one log in a process: the same name again closes the earlier log and removes its files, and the event
    `walkit.scratch.replace` (a warning in `logging`) says so, so that a cell can be run twice. The files are removed,
    too, when the log is dropped or the process ends, and after a kill by the next process that makes a scratch log.
    What else is put into the folder that the log's folder is in goes with the process.

    Raises what `walkit.open` raises for `options`; the earlier log is then left as it is. Safe from any thread.
    """
    return open_scratch(name, lambda place: open_log(place, "x", options, events), lambda log: log)
