"""Logs and Runs that are given by path: checked before anything is served, and each a part of the dashboard.

A log's page is the Inspector's: another process may be writing it, and nothing on the page can change it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import Literal

from walkit.errors import WalkitError
from walkit.measure import load
from walkit.objects.entrance import reader_at
from walkit.storage.address import FILES, is_object_url
from walkit.views.live import LiveView, view_of_run
from walkit.views.parts import View, pn, sentence_html
from walkit.views.workspace import Workspace, refuse_wrong_kind


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


def view_of(what: Given) -> LiveView | Absent:
    """Return the part of the page for one Run, opened again; the page shows if it has gone since."""
    try:
        return view_of_run(load(what.path))
    except (WalkitError, OSError) as error:
        return Absent(what, error)


class GivenPage(View):
    """A page for one Run that was named by the person who started the server. Used by one thread."""

    def __init__(
        self, what: Given, workspace: Workspace, go: Callable[[str, Mapping[str, str]], None]
    ) -> None:
        super().__init__()
        self._path = what.path
        self.part = view_of(what)
        self._layout = self.part.__panel__()
        workspace.on_close(self.part.close)

    def refresh(self, shown: bool = True) -> None:
        """Show new data."""
        if shown:
            self.part.refresh()

    def code(self) -> str:
        """Return Python that shows the Run."""
        return f"import walkit\n\nwalkit.views.recorded(walkit.measure.load({self._path!r}))"

    def state(self) -> dict[str, str]:
        """Return nothing: the page's name says it all."""
        return {}

    def restore(self, state: Mapping[str, str]) -> None:
        """Do nothing: this page has no state in the URL."""
