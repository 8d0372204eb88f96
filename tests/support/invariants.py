"""Asserts the invariants of all that an open log or store is made of, and spoils what they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import walkit
from tests.support.logs import segment_set


def changed(name: str, value: object) -> Callable[[Any], object]:
    """Return what sets the field of this name in an object."""
    return lambda thing: setattr(thing, name, value)


def inside(name: str, change: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return what changes the collection of this name in an object."""
    return lambda thing: change(getattr(thing, name))


def check_log(log: walkit.WriteAheadLog) -> None:
    """Assert what the commit core, the segments and the claims promise; nothing may be under way."""
    log.wait_idle()
    parts = log.parts
    driver = parts.driver
    with driver.lock:
        for part in (parts.core, driver.election, driver.writer.sequencer, driver.signal):
            part._check()
    for other in (
        segment_set(log),
        parts.segments.maintenance,
        parts.claims,
        parts.lifetime,
    ):
        other._check()


def check_store(store: walkit.Store) -> None:
    """Assert that, and the invariants of table and journal."""
    check_log(store.log)
    len(store)  # applies what is acknowledged
    store._table._check()
    if store.journal is not None:
        store.journal._check(store.log.acked_lsn)
