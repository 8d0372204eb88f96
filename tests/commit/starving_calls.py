"""The calls that are made without room on the stack, and without memory."""

from __future__ import annotations

from collections.abc import Callable

import walkit
from tests.commit.fake_segments import GUARD_S

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
