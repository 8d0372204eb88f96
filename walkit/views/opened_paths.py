"""Logs and Runs that are given by path, checked before anything is served: the Inspector and Runs show them.

A log is opened for reading only: another process may be writing it, and nothing on the page can change it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import Literal

from walkit.measure import load
from walkit.objects.entrance import reader_at
from walkit.storage.address import FILES, is_object_url
from walkit.views.workspace import refuse_wrong_kind


@dataclass(frozen=True)
class Given:
    """One path of the command line, absolute and without symbolic links, or the URL of a log on object storage."""

    path: str
    kind: Literal["log", "run"]


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
