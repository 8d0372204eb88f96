"""`python -m walkit.demo.follower HOST:PORT DIR`: `walkit follow`, for a demo that may end before it.

It belongs to its parent: when standard input ends, it ends at once, as if it had been killed. A log is made for that.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from walkit.replication.commands import follow
from walkit.workload.parent_watch import end_with


def main(argv: Sequence[str] | None = None) -> int:
    """Follow until SIGTERM, Ctrl-C or the end of standard input."""
    address, folder = sys.argv[1:] if argv is None else argv
    end_with(sys.stdin.fileno())
    return follow(address, folder)


if __name__ == "__main__":
    sys.exit(main())
