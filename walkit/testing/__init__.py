"""Conformance suites, shipped for authors of a storage, an object store or a state machine.

Nothing in walkit imports this room.
"""

from __future__ import annotations

from walkit.testing.object_store import ObjectStoreTests
from walkit.testing.state import CountingMachine, StateMachineHooks, StateMachineTests
from walkit.testing.storage import StorageHooks, StorageTests

__all__ = [
    "CountingMachine",
    "ObjectStoreTests",
    "StateMachineHooks",
    "StateMachineTests",
    "StorageHooks",
    "StorageTests",
]
