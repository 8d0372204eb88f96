"""DataFrames that a notebook shows whole. Importing this imports pandas."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pandas as pd

from walkit._internal.html import join, table, tag

ROWS_MAX = 200
"""The first rows of a longer table are shown, with the number of the others."""
BREAK = "\u200b"
"""A place without width at which a browser may break a long name: else the last column is pushed out of the page."""


class WideTable(pd.DataFrame):
    """A DataFrame whose words are shown whole: pandas cuts them after 50 characters, and leaves columns out.

    It is for small tables with an explaining column. A selection from it is one, too.
    """

    @property
    def _constructor(self) -> Any:
        return WideTable

    def _repr_html_(self) -> str:
        first = "" if self.index.name is None else self.index.name
        head = [str(name).replace("_", f"_{BREAK}") for name in (first, *self.columns)]
        left = len(self) - ROWS_MAX
        shown = table(islice(self.itertuples(), ROWS_MAX), head)
        return join([shown, tag("div", f"and {left:,} more")]) if left > 0 else shown

    def __repr__(self) -> str:
        with pd.option_context(
            "display.max_colwidth", None, "display.max_columns", None, "display.width", None
        ):
            return super().__repr__()
