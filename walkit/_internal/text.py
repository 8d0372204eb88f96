"""Words for people: tables as lines of text, counts with their noun, ranges. `html` has those for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return one line for the headers and one for each row, as wide as what is in them.

    Columns whose numbers are in `right` are aligned to the right. ValueError if a row has another number of cells.
    """
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return [line(headers), *map(line, rows)]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural except for 1: "1 segment", "2,000 segments"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def bounds(first_lsn: int, last_lsn: int) -> str:
    """Return an inclusive range of LSNs as text, for use after the word LSN: "1 to 7", "7", or "no records"."""
    if last_lsn < first_lsn:
        return "no records"
    return f"{first_lsn:,}" if first_lsn == last_lsn else f"{first_lsn:,} to {last_lsn:,}"


def lsn_range(first_lsn: int, last_lsn: int) -> str:
    """Return an inclusive range of LSNs as text by itself: "LSN 1 to 7", "LSN 7", or "no records"."""
    return bounds(first_lsn, last_lsn) if last_lsn < first_lsn else f"LSN {bounds(first_lsn, last_lsn)}"


def unread(parts: str) -> str:
    """Return the end of a verdict that leaves parts of a log unread; empty if it read all."""
    return f"; not read: {parts}; walkit verify reads them" if parts else ""
