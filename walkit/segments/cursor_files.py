"""The files of a log's cursors (FORMAT.md F-17) and their contents."""

from __future__ import annotations

from dataclasses import dataclass

from walkit.errors import WalkitError
from walkit.format.cursor import CursorMark, decode_cursor
from walkit.format.layout import CURSOR_FILE
from walkit.format.names import cursor_file_name, cursor_of_name
from walkit.storage.interface import Storage
from walkit.storage.whole_file import read_if_there


@dataclass(frozen=True, slots=True)
class CursorFact:
    """The content of one cursor file: `lsn`, and when it was written; or why it cannot be read, in words."""

    name: str
    lsn: int | None
    moved_us: int | None
    fault: str | None = None


def cursor_facts(storage: Storage) -> list[CursorFact]:
    """Return the contents of the cursor files of a storage, by name. Reads only them."""
    facts = []
    for file_name in storage.names():
        name = cursor_of_name(file_name)
        if name is None:
            continue
        try:
            mark = stored_cursor(storage, name)
        except WalkitError as error:
            facts.append(CursorFact(name, None, None, str(error)))
            continue
        if mark is not None:
            facts.append(CursorFact(name, mark.lsn, mark.moved_us))
    return facts


def stored_cursor(storage: Storage, name: str) -> CursorMark | None:
    """Return what a cursor's file says; None where there is none."""
    file_name = cursor_file_name(name)
    data = read_if_there(storage, file_name, CURSOR_FILE.size + 1)
    return None if data is None else decode_cursor(data, file_name)
