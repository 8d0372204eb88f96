"""Asserts the invariants of all that an open log or store is made of; nothing may be under way in it."""

from __future__ import annotations

import walkit


def check_log(log: walkit.WriteAheadLog) -> None:
    """Assert what the commit core, the segments and the holds promise between two steps."""
    log.wait_idle()
    parts = log.parts
    driver = parts.driver
    with driver.lock:
        for part in (parts.core, driver.election, driver.writer.sequencer):
            part._check()
    parts.segments._check()
    parts.holds._check()


def check_store(store: walkit.Store) -> None:
    """Assert that, and what the table and the journal promise."""
    check_log(store.log)
    len(store)  # applies what is acknowledged
    store._table._check()
    if store.journal is not None:
        store.journal._check(store.log.acked_lsn)
