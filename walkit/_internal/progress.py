"""Progress bars on standard error: live on a terminal, one line every few seconds elsewhere."""

from __future__ import annotations

import builtins
import sys
from typing import Any

from tqdm.auto import tqdm

QUIET_INTERVAL_S = 5.0
"""Time between two states of a bar that goes to a file or a pipe."""


def progress_bar(
    title: str, total: int, *, unit: str = "records", show: bool = True, delay_s: float = 0.0
) -> Any:
    """Return a tqdm bar, which is a context manager; `show=False` gives one that prints nothing.

    `delay_s` keeps a bar away from what takes less than that.
    """
    is_live = sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__")
    return tqdm(
        total=total,
        desc=title,
        unit=f" {unit}",
        unit_scale=total >= 1000,
        disable=not show,
        file=sys.stderr,
        mininterval=0.1 if is_live else QUIET_INTERVAL_S,
        delay=delay_s if is_live else QUIET_INTERVAL_S,
    )
