"""Fixtures for the tests of programs that use walkit: storage that crashes, and the states that a power cut can leave.

pytest loads this at each start where walkit is installed, so it imports nothing of walkit before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from walkit.models import CrashingStorage

__all__ = ["walkit_crash_states", "walkit_crashing_storage"]

RANDOM_STATES = 8
"""How many random outcomes of one power cut a test sees, unless it says otherwise."""


@pytest.fixture
def walkit_crashing_storage() -> CrashingStorage:
    """A new, empty storage in memory that separates synced bytes from those that a power cut would take.

    Give it to `walkit.open` or `walkit.Store.open` instead of a path. `storage.crash(...)` returns a state that a power
    cut at this moment leaves, `storage.process_kill()` that of a killed process; the storage itself continues.
    """
    from walkit.models import CrashingStorage

    return CrashingStorage()


@pytest.fixture
def walkit_crash_states() -> Callable[..., Iterator[CrashingStorage]]:
    """A function of a storage that yields what a power cut at this moment can leave.

    `walkit_crash_states(storage, random=8, seed=0)`: first all that was not synced is gone, then all of it is kept,
    then `random` outcomes between the two, in which each change is kept, lost or torn by the seed. The same storage and
    seed give the same states; `state.crash_report` has the fate of each file.
    """

    def states(
        storage: CrashingStorage, *, random: int = RANDOM_STATES, seed: int = 0
    ) -> Iterator[CrashingStorage]:
        yield storage.crash(keep="none")
        yield storage.crash(keep="all")
        for number in range(random):
            yield storage.crash(keep="random", seed=seed + number)

    return states
