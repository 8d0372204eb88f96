"""The English of docstrings, comments, strings, pages and notebooks gets no worse, and titles of commits are short."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.plain_english import COUNTS, READ, counted, hits

if TYPE_CHECKING:
    from tests.conftest import Checkout

HELD_SINCE = "508cf8e"
"""The first commit whose title is held to the rule."""
TITLE = re.compile(r"(?!\w+(?:ed|ing)\b)[A-Z][a-z]+\b.{1,70}")
"""A verb first, as an order; at most 72 characters."""


def test_no_file_has_more_hits_than_it_had(checkout: Checkout) -> None:
    """Count the patterns in each file of the checkout: no file is above its count in english.json."""
    known = json.loads(COUNTS.read_text())
    worse = []
    for name, text in checkout.files(*READ).items():
        if counted(name):
            found = hits(name, text)
            if len(found) > known.get(name, 0):
                lines = "; ".join(f"{number}: {line[:80]!r} ({pattern})" for number, pattern, line in found)
                worse.append(f"{name} has {len(found)}, not {known.get(name, 0)}: {lines}")
    assert not worse, "\n".join(worse)
    assert known and set(known) <= set(checkout.names()), (
        "english.json names a file that is gone: run --lower"
    )


def test_titles_of_commits_are_short_orders(checkout: Checkout) -> None:
    """Check each title since the rule was made: at most 72 characters, and first a verb in the imperative."""
    command = ["git", "-c", "safe.directory=*", "log", "--no-merges", "--format=%s", f"{HELD_SINCE}..HEAD"]
    done = subprocess.run(command, cwd=checkout.root, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is not a clone with the project's history")
    assert [title for title in done.stdout.splitlines() if not TITLE.fullmatch(title)] == []
    assert TITLE.fullmatch("Write and read the durable slot by position, and map no file")
    assert not TITLE.fullmatch("Added a test of the durable slot")
    assert not TITLE.fullmatch("Test " + "x" * 70)
