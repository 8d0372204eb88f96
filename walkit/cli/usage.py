"""The error of arguments that argparse cannot judge."""

from __future__ import annotations


class UsageError(Exception):
    """Arguments that are right one by one and not together, or not for this log. Exit code 2."""
