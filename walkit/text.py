"""Tables as lines of text, for terminals and logs; `walkit.html` has those for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return one line for the headers and one for each row, as wide as what is in them.

    Columns whose numbers are in `right` are aligned to the right. ValueError where a row has another number of cells.
    """
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return [line(headers), *map(line, rows)]
