"""`python -m walkit.demo.follower HOST:PORT DIR`: `walkit follow`, for a demo that may end before it.

It belongs to its parent: when standard input ends, it ends at once, as if it had been killed. A log is made for that.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

from walkit.replication.commands import follow

ORPHANED = 3
"""Exit status of a follower whose parent has gone."""


def main(argv: Sequence[str] | None = None) -> int:
    """Follow until SIGTERM, Ctrl-C or the end of standard input."""
    address, folder = sys.argv[1:] if argv is None else argv
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    return follow(address, folder)


def _end_with_parent() -> None:
    # Not sys.stdin: a thread that waits in its buffer is in the way of an interpreter that ends in order.
    while os.read(0, 4096):
        pass
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
