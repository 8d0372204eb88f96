"""Conformance suites, shipped for those who write their own storage. Nothing in walkit imports this room."""

from __future__ import annotations

from walkit.testing.storage import StorageHooks, StorageTests

__all__ = ["StorageHooks", "StorageTests"]
