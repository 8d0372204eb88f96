"""Shared by the pages of one dashboard session: scratch logs, writers, jobs, and the files that may be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from walkit._internal.arguments import refuse
from walkit.storage.address import FILES, is_object_url
from walkit.storage.object_files import COUNTER
from walkit.views.background_jobs import Jobs
from walkit.views.session import Session

PATH_CHARACTERS_MAX = 4096
LogPath: TypeAlias = Path | str
"""Where a log is: its folder, or the URL of a log on object storage."""


def refuse_wrong_kind(folder: Path, text: str) -> None:
    """OptionsError if a folder of objects is named as a folder, or the reverse; `text` names it."""
    if (folder / COUNTER).is_file() != is_object_url(text):
        other = text.removeprefix(FILES) if is_object_url(text) else f"{FILES}{text}"
        refuse("path", text, f"the log there is {other}")


class DataRoot:
    """The folder below which pages may read logs and runs that are given by path."""

    def __init__(self, path: str | os.PathLike[str], also: Sequence[str | os.PathLike[str]] = ()) -> None:
        """`also`: single logs or runs elsewhere, named by the person who started the server."""
        self.path = Path(os.path.realpath(path))
        self.also = tuple(Path(os.path.realpath(each)) for each in also)

    def resolve(self, text: str) -> Path:
        """Return the real path of `text`; a relative one starts at the root.

        Symbolic links are resolved first. OptionsError if that is outside the root, or does not exist.
        """
        if not text.strip():
            refuse("path", text, "name a log or run below the data root")
        if len(text) > PATH_CHARACTERS_MAX:
            refuse("path", text[:40] + "…", f"it is longer than {PATH_CHARACTERS_MAX:,} characters")
        if "\0" in text:
            refuse("path", text, "a NUL character is in it")
        try:
            real = Path(os.path.realpath(self.path / text.strip()))
            there = real.exists()
        except (OSError, ValueError) as error:  # a name that no file can have
            refuse("path", text, f"it cannot be a path: {error}", cause=error)
        if not self.holds(real):
            refuse("path", text, f"it is outside the data root {self.path}")
        if not there:
            refuse("path", text, "there is no such file or folder")
        return real

    def holds(self, real: Path) -> bool:
        """Whether a path without symbolic links is the root, below it, or one of those named beside it."""
        return any(real == each or each in real.parents for each in (self.path, *self.also))

    def log(self, text: str) -> LogPath:
        """Return the folder or URL of the log that `text` means.

        `objects:FOLDER` lies below the root like any folder; s3://, gs:// and az:// are read with the server's own
        credentials. OptionsError, also for a folder with a link that leads out of the root; OSError.
        """
        text = text.strip()
        if is_object_url(text) and not text.startswith(FILES):
            return text
        path = self.resolve(text.removeprefix(FILES))
        if not path.is_dir():
            refuse("path", text, "it is a file, and a log is a folder")
        refuse_wrong_kind(path, text)
        self.check_links(path)
        return f"{FILES}{path}" if text.startswith(FILES) else path

    def check_links(self, folder: Path) -> None:
        """OptionsError for a folder with a symbolic link out of the root; OSError if it cannot be read."""
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink() and not self.holds(Path(os.path.realpath(entry.path))):
                    refuse(
                        "path",
                        self.show(folder),
                        f"{entry.name} in it is a link that leads out of the data root",
                    )

    def show(self, path: LogPath) -> str:
        """Return the path as a person types it: relative to the root where it lies below it."""
        if isinstance(path, str):
            return FILES + self.show(Path(path.removeprefix(FILES))) if path.startswith(FILES) else path
        return str(path.relative_to(self.path)) if self.path in path.parents else str(path)


@dataclass
class Workspace:
    """One session's belongings, handed to each page. `close` ends the session."""

    root: DataRoot
    session: Session = field(default_factory=Session)
    logs: tuple[LogPath, ...] = ()
    """Logs that the server was started with; pages open them with mode "r" only."""
    runs: tuple[Path, ...] = ()
    """Files or folders of Runs that the server was started with."""
    looks: Jobs = field(default_factory=lambda: Jobs("walkit-looks"))
    """Short reads of pages, off their thread; the session's own jobs are the long ones."""

    _closers: list[Callable[[], object]] = field(default_factory=list)

    def on_close(self, closer: Callable[[], object]) -> None:
        """Call back when the session ends, to close a page's files."""
        self._closers.append(closer)

    def close(self) -> None:
        """Kill the session's writers, remove its scratch logs, close the pages' files. Any thread."""
        self.looks.close()
        self.session.close()
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()
