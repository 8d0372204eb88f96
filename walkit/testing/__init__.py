"""Conformance suites, shipped for authors of a storage or a state machine. Nothing in walkit imports this room."""

from __future__ import annotations

from walkit.testing.state import CountingMachine, StateMachineHooks, StateMachineTests
from walkit.testing.storage import StorageHooks, StorageTests

__all__ = ["CountingMachine", "StateMachineHooks", "StateMachineTests", "StorageHooks", "StorageTests"]
