"""The processes of the kill tests: one that appends to a log until SIGTERM, and may serve it; one that follows."""

from __future__ import annotations

import random
import signal
import sys
import time
from contextlib import ExitStack

import walkit
from walkit.replication import Primary, Replica
from walkit.replication.core.backoff import Backoff
from walkit.segments.consumer_files import drop_claim
from walkit.storage import FileStorage
from walkit.storage.interface import Storage
from walkit.store import Store

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=5)


FILL = 600
"""Records that are appended at once at the beginning and after each trim: a bootstrap has something to gather."""


class Ending:
    """Counts SIGTERM and SIGUSR1 of this process. Signals that came while they were blocked count."""

    def __init__(self) -> None:
        # No Event: its lock is not recursive, and a handler that sets it while this thread is in `wait` would deadlock.
        self.over = self.drops = False
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "over", True))
        signal.signal(signal.SIGUSR1, lambda *_: setattr(self, "drops", True))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR1))


def write(path: str, address: str | None, is_store: bool = False) -> None:
    """Append records of many sizes, transactions and deletes among them; report the first acknowledgement.

    SIGUSR1: drop all claims, trim, or checkpoint the store, to the end of the log, then append `FILL` records.
    """
    ending = Ending()
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(path, options=OPTIONS)) if is_store else None
        log = store.log if store is not None else stack.enter_context(walkit.open(path, options=OPTIONS))
        if address is not None:
            stack.enter_context(Primary(store or log, address))
        chance = random.Random(log.acked_lsn)
        _append(store or log, b"begun", b"begun")
        print("ready", flush=True)
        while not ending.over:
            time.sleep(chance.choice((0.0, 0.001, 0.01)))
            value = chance.randbytes(chance.randrange(1500))
            if chance.randrange(4):
                _append(store or log, b"%d" % chance.randrange(50), value)
            else:
                with (store or log).transaction() as tx:
                    tx.put(b"a", value)
                    tx.delete(b"%d" % chance.randrange(50))
            if ending.drops:
                ending.drops = False
                _drop(path, log, store)
                for number in range(FILL):
                    log.submit(chance.randbytes(800), key=b"%d" % (number % 50))


def _append(to: walkit.WriteAheadLog | Store, key: bytes, value: bytes) -> None:
    if isinstance(to, Store):
        to.put(key, value)
    else:
        to.append(value, key=key)


def _drop(path: str, log: walkit.WriteAheadLog, store: Store | None) -> None:
    """Drop all records of the log, needed or not."""
    for fact in log.claims():
        drop_claim(FileStorage(path), fact.name)
    if store is not None:
        store.checkpoint()
    else:
        log.trim(log.acked_lsn)


def serve(path: str, address: str) -> None:
    """Serve a log until SIGTERM."""
    ending = Ending()
    with Primary(path, address):
        while not ending.over:
            time.sleep(0.02)


def follow(address: str, storage: Storage, rewind: bool = False) -> None:
    """Follow a primary into a storage until SIGTERM; RuntimeError if replication ends by itself."""
    ending = Ending()
    with Replica(storage, address, options=OPTIONS, backoff=Backoff(5.0, 50.0), rewind=rewind) as replica:
        while not ending.over:
            time.sleep(0.02)
            if replica.status().state == "failed":
                raise RuntimeError(str(replica.status().error))


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
