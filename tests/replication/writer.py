"""A child process of the kill tests: appends to a log until SIGTERM, and serves it where an address is given."""

from __future__ import annotations

import random
import signal
import sys
import time
from contextlib import ExitStack

import walkit
from walkit.replication import Primary


def main(path: str, address: str | None) -> None:
    """Append records of many sizes, transactions and deletes among them; say so once the first is acknowledged."""
    # No Event: its lock is no recursive one, and a handler that sets it while this thread is in `wait` waits for ever.
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    options = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=5)
    with ExitStack() as stack:
        log = stack.enter_context(walkit.open(path, options=options))
        if address is not None:
            stack.enter_context(Primary(log, address))
        chance = random.Random(log.acked_lsn)
        log.append(b"begun", key=b"begun")
        print("ready", flush=True)
        while not over:
            time.sleep(chance.choice((0.0, 0.001, 0.01)))
            value = chance.randbytes(chance.randrange(1500))
            if chance.randrange(4):
                log.append(value, key=b"%d" % chance.randrange(50))
            else:
                with log.transaction() as tx:
                    tx.put(b"a", value)
                    tx.delete(b"%d" % chance.randrange(50))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
