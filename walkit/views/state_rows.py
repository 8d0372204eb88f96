"""What the States page shows, as rows of tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from walkit._internal.html import Markup, table
from walkit._internal.text import counted
from walkit.plots import StateLane
from walkit.record import Kind
from walkit.views.frame_search import KeySearch
from walkit.views.inspector_rows import bytes_words
from walkit.views.log_outline import Outline
from walkit.views.pick_table import Row
from walkit.views.state_lab import ROWS_MAX, Compared, DiffRow, RecordPlace

DIFF_HEAD = (
    "key",
    "change",
    *("left value", "left LSN", "left segment", "left frame at"),
    *("right value", "right LSN", "right segment", "right frame at"),
)
HISTORY_HEAD = ("LSN", "log", "what", "value", "held to LSN", "segment", "frame at position")
CHANGES = {"all changes": "", "inserted": "I", "deleted": "D", "changed": "C"}
WORDS = {"I": "inserted", "D": "deleted", "C": "changed"}
ENGINES = {"arrow": "Arrow, in this process", "spark": "Spark"}
Places = tuple[Mapping[int, RecordPlace], Mapping[int, RecordPlace]]


def counts_of(compared: Compared) -> list[tuple[str, str, str]]:
    """Return the counts of a comparison as (name, value, what it means)."""
    counts = compared.counts
    return [
        ("Inserted", f"{counts.inserted:,}", "keys that only the right state has"),
        ("Deleted", f"{counts.deleted:,}", "keys that only the left state has"),
        ("Changed", f"{counts.changed:,}", "keys with another value in the right state"),
        (f"by {ENGINES[compared.engine]}", f"{compared.seconds:,.2f} s", "reading, replay and comparison"),
    ]


def compared_words(compared: Compared) -> str:
    """Return what was compared, and how many rows of it are kept."""
    left, right = compared.left, compared.right
    where = "" if left.path == right.path else " of the second log"
    said = f"From the state at LSN {left.lsn:,} to the one at LSN {right.lsn:,}{where}: "
    said += "equal." if compared.counts.equal else f"{counted(compared.counts.total, 'key')} differ."
    if compared.counts.total > len(compared.rows):
        said += f" The first {ROWS_MAX:,} of each change are kept: `walkit diff` saves all."
    return said


def diff_rows(rows: Sequence[DiffRow], places: Places) -> list[Row]:
    """Return a row for each key; the places are those of the left log and of the right one."""
    return [_diff_row(row, places) for row in rows]


def _diff_row(row: DiffRow, places: Places) -> Row:
    left, right = places
    return Row(
        id=row.key.hex() or "empty",
        cells=(
            bytes_words(row.key),
            WORDS[row.change],
            *_side_cells(row.left_value, row.left_lsn, left, live=row.change != "I"),
            *_side_cells(row.right_value, row.right_lsn, right, live=row.change != "D"),
        ),
        label=f"history of the key {bytes_words(row.key)}",
    )


def _side_cells(
    value: bytes | None, lsn: int | None, places: Mapping[int, RecordPlace], *, live: bool
) -> tuple[str, ...]:
    shown = bytes_words(value) if live else "deleted" if lsn is not None else ""
    if lsn is None:
        return (shown, "", "", "")
    place = places.get(lsn)
    if place is None:
        return (shown, f"{lsn:,}", "none", "in no frame")
    return (shown, f"{lsn:,}", f"{place.segment}", f"{place.position:,}")


def history_rows(found: Sequence[tuple[str, KeySearch]]) -> list[Row]:
    """Return a row for each record of a key; `found` has the name of each log and what was found in it."""
    return [row for name, search in found for row in _history_of(name, search)]


def _history_of(name: str, search: KeySearch) -> list[Row]:
    rows = []
    for hit, following in pairwise((*search.hits, None)):
        assert hit is not None
        record = hit.record
        deleted = record.kind == Kind.DELETE
        held = f"{following.record.lsn - 1:,}" if following is not None else ""
        if following is None and not deleted:
            held = "its newest" if search.next_lsn is None else "not searched further"
        rows.append(
            Row(
                id=f"{name}/{record.lsn}",
                cells=(
                    f"{record.lsn:,}",
                    name,
                    "deleted" if deleted else "set",
                    "" if deleted else bytes_words(record.value),
                    held,
                    f"{hit.segment}",
                    f"{hit.position:,}",
                ),
                label=f"the frame of LSN {record.lsn:,} of {name}",
            )
        )
    return rows


def times_html(times: Sequence[Compared]) -> Markup:
    """Return a table of what the comparisons took, the newest first; nothing before there is one."""
    if not times:
        return Markup("")
    rows = [
        (
            ENGINES[each.engine],
            f"{each.left.lsn:,}",
            f"{each.right.lsn:,}",
            f"{each.seconds:,.2f} s",
            "" if each.session_s is None else f"{each.session_s:,.1f} s",
        )
        for each in reversed(times)
    ]
    head = ("engine", "left LSN", "right LSN", "time", "Spark's session")
    return table(rows, head, right=(1, 2, 3, 4))


def lanes_of(sides: Sequence[tuple[str, Outline, int]]) -> list[StateLane]:
    """Return the lines of a timeline for (name, log, LSN) of both sides; one line where they are of one log."""
    marks = [(side, lsn) for side, (_, _, lsn) in zip(("left", "right"), sides, strict=True)]
    if sides[0][1] is sides[1][1]:
        return [StateLane(sides[0][0], _segments(sides[0][1]), tuple(marks))]
    return [
        StateLane(name, _segments(outline), (mark,))
        for (name, outline, _), mark in zip(sides, marks, strict=True)
    ]


def _segments(outline: Outline) -> tuple[tuple[int, int, int], ...]:
    newest = outline.last_lsn or 0
    known = ((s.number, s.first_lsn, s.last_lsn or newest) for s in outline.segments if s.first_lsn)
    return tuple(
        (number, first, last) for number, first, last in known if first is not None and last >= first
    )
