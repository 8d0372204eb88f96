"""`python -m walkit` is the `walkit` command."""

from __future__ import annotations

import sys

from walkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
