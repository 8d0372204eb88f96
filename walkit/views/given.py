"""Logs and Runs that are given by path: checked before anything is served, and each a part of the dashboard.

A log is opened for reading only: another process may be writing it, and nothing on the page can change it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from time import perf_counter_ns
from typing import Literal, TypeAlias

from walkit._internal.text import bounds
from walkit.errors import WalkitError
from walkit.measure import load
from walkit.objects.entrance import reader_at
from walkit.storage.address import FILES, is_object_url
from walkit.views.live import LiveView, view_of_run
from walkit.views.overview import Point
from walkit.views.parts import View, pn, sentence_html
from walkit.views.sources import Reading, warnings_of
from walkit.views.workspace import Workspace, refuse_wrong_kind

LOOK_S = 1.0
"""Least time between two looks at a log."""
RESTS = 50
"""The time between two reads is at least this multiple of a read's time."""


@dataclass(frozen=True)
class Given:
    """One path of the command line, absolute and without symbolic links, or the URL of a log on object storage."""

    path: str
    kind: Literal["log", "run"]

    @property
    def title(self) -> str:
        """The title of its part of the page."""
        return os.path.basename(self.path) or self.path


def given(paths: Iterable[str]) -> tuple[Given, ...]:
    """Return the kind of each path, once, in order: a folder is a log, a file a saved Run.

    Each is opened once. FileNotFoundError (of a folder LogNotFoundError), NotALogError, FormatVersionError or
    CorruptionError if a path is neither; the errors of object storage; MissingExtraError without hdrhistogram.
    """
    found: dict[Given, None] = {}
    for path in paths:
        real = place_of(path)
        if is_object_url(real) or os.path.isdir(real):
            if os.path.isdir(real.removeprefix(FILES)):
                refuse_wrong_kind(Path(real.removeprefix(FILES)), path)
            with reader_at(real):
                found[Given(real, "log")] = None
        else:
            if not os.path.exists(real) and os.path.isfile(real + ".parquet"):
                real += ".parquet"
            try:
                load(real)
            except FileNotFoundError as error:
                raise FileNotFoundError(ENOENT, "no log and no saved run", path) from error
            found[Given(real, "run")] = None
    return tuple(found)


def place_of(path: str) -> str:
    """Return the absolute path that `path` means, without symbolic links; a URL of object storage with such a one."""
    if is_object_url(path):
        return FILES + os.path.realpath(path.removeprefix(FILES)) if path.startswith(FILES) else path
    return os.path.realpath(path)


class ReaderSource:
    """A log that another process may be writing, through a reader."""

    def __init__(self, path: str) -> None:
        self._reader = reader_at(path)
        self._start_ns = self._looked_ns = perf_counter_ns()
        self._next_ns = 0
        self._problem: str | None = None
        self._warnings = warnings_of(path, "sync")
        self.first_lsn, self.last_lsn = self._reader.first_lsn, self._reader.last_lsn

    def read(self) -> Reading:
        """Return a point for the time since the last look: records that became readable a second.

        Looking costs little while a writer lives, and else a scan of its last segment: so it is not done at each call.
        """
        now_ns = perf_counter_ns()
        points = []
        if now_ns >= self._next_ns:
            points = self._look(now_ns)
            self._next_ns = now_ns + max(int(LOOK_S * 1e9), (perf_counter_ns() - now_ns) * RESTS)
        records = bounds(self.first_lsn, self.last_lsn)
        return Reading(
            status=f"The log {self._reader.location}, read only: LSN {records}.",
            points=points,
            warnings=self._warnings,
            problem=self._problem,
        )

    def _look(self, now_ns: int) -> list[Point]:
        try:
            first_lsn, last_lsn = self._reader.first_lsn, self._reader.last_lsn
        except (WalkitError, OSError) as error:
            self._problem = f"{error}."
            return []
        seconds = max((now_ns - self._looked_ns) / 1e9, 1e-9)
        rate = max(last_lsn - self.last_lsn, 0) / seconds
        self._looked_ns, self._problem = now_ns, None
        self.first_lsn, self.last_lsn = first_lsn, last_lsn
        return [Point((now_ns - self._start_ns) / 1e9, records_per_s=rate)]

    def html(self) -> str:
        """Return the segments and marks as they are now; empty if they cannot be read."""
        try:
            return self._reader._repr_html_()
        except (WalkitError, OSError):
            return ""

    def close(self) -> None:
        """Close the reader; closing twice does nothing."""
        self._reader.close()


class LogView(View):
    """A log given by path: its readable part over time, and its segments. Used by one thread."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.source = ReaderSource(path)
        self.live = LiveView(self.source)
        self.segments = pn.pane.HTML(self.source.html(), sizing_mode="stretch_width")
        self._shown = (self.source.first_lsn, self.source.last_lsn)
        self._layout = pn.Column(self.segments, self.live, sizing_mode="stretch_width")

    def refresh(self) -> bool:
        """Show new data."""
        self.live.refresh()
        now = (self.source.first_lsn, self.source.last_lsn)
        if now != self._shown:
            self._shown, self.segments.object = now, self.source.html()
        return True

    def close(self) -> None:
        """Close the reader; closing twice does nothing."""
        self.source.close()


class Absent(View):
    """Says why something given could not be opened again. Used by one thread."""

    def __init__(self, what: Given, error: Exception) -> None:
        super().__init__()
        self.text = pn.pane.HTML(sentence_html(what.path, problem=f"{error}."), sizing_mode="stretch_width")
        self._layout = self.text

    def refresh(self) -> bool:
        """Do nothing: it stays as it is."""
        return False

    def close(self) -> None:
        """Do nothing."""


Part: TypeAlias = LogView | LiveView | Absent


def view_of(what: Given) -> Part:
    """Return the part of the page for one log or Run, opened again; the page shows if it has gone since."""
    try:
        return LogView(what.path) if what.kind == "log" else view_of_run(load(what.path))
    except (WalkitError, OSError) as error:
        return Absent(what, error)


class GivenPage(View):
    """A page for one log or Run that was named by the person who started the server. Used by one thread."""

    def __init__(
        self, what: Given, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]
    ) -> None:
        super().__init__()
        self.part = view_of(what)
        self._layout = self.part.__panel__()
        workspace.on_close(self.part.close)

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        if shown:
            self.part.refresh()

    def state(self) -> dict[str, str]:
        """Return nothing: the page's name says it all."""
        return {}

    def restore(self, state: Mapping[str, str]) -> None:
        """Do nothing: this page has no state in the URL."""
