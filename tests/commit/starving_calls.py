"""The calls that are made without room on the stack, and without memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import walkit
from tests.support.logs import tiny
from tests.support.threads import GUARD_S
from walkit.replication.delta.messages import PollRequest
from walkit.replication.delta.server_feed import DeltaFeed

CALLS: dict[str, Callable[[walkit.WriteAheadLog], object]] = {
    "append": lambda log: log.append(b"own"),
    "append by key": lambda log: log.append(b"own", key=b"k", timeout=GUARD_S),
    "append many": lambda log: log.append_many([b"own"] * 3),
    "begin segments": lambda log: [log.append(bytes(3000)) for _ in range(3)],
    "submit": lambda log: log.submit(b"own").result(GUARD_S),
    "call back": lambda log: log.submit(b"own").add_done_callback(lambda _: None),
    "sync": lambda log: log.sync(),
    "trim": lambda log: log.trim(log.acked_lsn - 1),
    "hold": lambda log: log.hold("one", log.first_lsn).release(),
    "close": lambda log: log.close(),
}


def claim(store: walkit.Store) -> None:
    """Take a claim, move it and release it."""
    claimed = walkit.claim(store.log.parts.storage, "consumer", wait_s=1)
    claimed.advance(claimed.first_lsn)
    claimed.release()


def poll(store: walkit.Store) -> None:
    """Answer a delta reader's poll, and end its session."""
    feed = DeltaFeed(store.log)
    try:
        feed.poll(PollRequest(wait_ms=0))
    finally:
        feed.stop()


STORE_CALLS: dict[str, Callable[[walkit.Store], object]] = {
    "put": lambda store: store.put(b"own", b"own"),
    "read": lambda store: (store.get(b"own"), store.items()),
    "checkpoint": lambda store: store.checkpoint(),
    "compact": lambda store: store.compact(),
    "claim": claim,
    "trim a store": lambda store: store.log.trim(store.log.acked_lsn - 10),
    "retain": lambda store: store.log.enforce_retention(walkit.Retention(records_max=10)),
    "consume": lambda store: store.log.cursor("own").advance(store.log.acked_lsn),
    "poll": poll,
    "close a store": lambda store: store.close(),
}


def prepared(call: str, place: Path, in_flight: int) -> tuple[walkit.WriteAheadLog, Callable[[], object]]:
    """Open a log with a few records, of a Store if the call is one of a Store's; return it and the call."""
    if call in CALLS:
        log = walkit.open(place, options=tiny(in_flight=in_flight))
        log.append_many([b"before"] * 9)
        return log, lambda: CALLS[call](log)
    store = walkit.Store.open(place, options=tiny(in_flight=in_flight))
    store.put_many([b"%d" % (n % 7) for n in range(20)], [b"before" * 90] * 20)
    return store.log, lambda: STORE_CALLS[call](store)
