"""How many examples Hypothesis draws: a share for each commit, all of them for a release (`make test-all`)."""

from __future__ import annotations

import os

RELEASE = os.environ.get("HYPOTHESIS_PROFILE") in {"release", "thorough"}
SHARE = 4
"""Examples of a release for each one of `make test`."""


def examples(count: int) -> int:
    """Return `count` for a release and a quarter of it, at least one, otherwise."""
    return count if RELEASE else max(1, -(-count // SHARE))
