"""Make each public call from a handler of `logging`, which holds its lock meanwhile: `python -m ... FOLDER THREAD`."""

from __future__ import annotations

import faulthandler
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import walkit
from tests.commit.starving_calls import CALLS, STORE_CALLS
from tests.support.logs import tiny
from tests.support.threads import GUARD_S, Task
from walkit.replication import DeltaReader, Primary, Replica

LIMIT_S = 15
PAGES = [b"page" * 200] * 60


class Opened:
    """A log, a store, and a primary with a replica, each with segments to seal and to drop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        retention = walkit.Retention(records_max=50)
        self.log = walkit.open(folder / "log", options=tiny(retention=retention))
        self.store = walkit.Store.open(folder / "store", options=tiny())
        self.store.put_many([b"%d" % (n % 7) for n in range(60)], PAGES)
        self.log.append_many(PAGES)


def followed(opened: Opened) -> None:
    """Serve a log, follow it by a replica and a delta reader, and stop all of them."""
    with Primary(opened.store) as primary:
        with Replica(opened.folder / "replica", primary.address) as replica:
            replica.wait_for(opened.store.put(b"for", b"the replica").last_lsn, timeout=GUARD_S)
        with DeltaReader(
            opened.folder / "store", primary.address, checkpoint=opened.folder / "reader"
        ) as reader:
            reader.wait_for(opened.store.put(b"for", b"the reader").last_lsn, timeout=GUARD_S)
            reader.checkpoint()
    walkit.replication.promote(opened.folder / "replica")


def opened_again(opened: Opened) -> None:
    """Open and close a log, and seal some segments."""
    with walkit.open(opened.folder / "other", options=tiny()) as log:
        log.append_many(PAGES)


OTHERS: dict[str, Callable[[Opened], object]] = {
    "open": opened_again,
    "open a store": lambda opened: walkit.Store.open(opened.folder / "new store", options=tiny()).close(),
    "append frames": lambda opened: opened.log.append_many(PAGES),
    "submit frames": lambda opened: opened.log.submit_many(PAGES).result(GUARD_S),
    "drain": lambda opened: list(opened.log.drain(opened.log.first_lsn + 5)),
    "retain by itself": lambda opened: opened.log.enforce_retention(),
    "wait idle": lambda opened: opened.log.wait_idle(GUARD_S),
    "snapshot": lambda opened: opened.store.checkpoint(trim=False),
    "copy": lambda opened: walkit.copy(opened.folder / "log", opened.folder / "copy"),
    "verify": lambda opened: walkit.verify(opened.folder / "log"),
    "replicate": followed,
}


class Caller(logging.Handler):
    """Makes a call for each record of the logger "caller", with the handler's lock held; passes over all others."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.others = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "caller":
            record.act()  # type: ignore[attr-defined]
        else:
            self.others += 1


def main(folder: str, on: str) -> None:
    """Make all calls on the main thread, on another or on both; one that hangs ends the process with all stacks."""
    handler = Caller()
    logging.getLogger().addHandler(handler)
    logging.getLogger("walkit").setLevel(logging.DEBUG)
    opened = Opened(Path(folder))

    def call(act: Callable[[], Any]) -> None:
        logging.getLogger("caller").warning("", extra={"act": act})

    def twice(act: Callable[[], Any]) -> None:
        """Make the call in another thread, too: its events wait for the handler's lock."""
        beside = Task(lambda: call_typed(act))
        call(lambda: call_typed(act))
        beside.result()

    acts: dict[str, Callable[[], Any]] = {n: partial(act, opened) for n, act in OTHERS.items()}
    acts |= {n: partial(act, opened.log) for n, act in CALLS.items() if n != "close"}
    acts |= {n: partial(act, opened.store) for n, act in STORE_CALLS.items()}
    acts["close"] = opened.log.close
    for name, act in acts.items():
        print(name, file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        if on == "main":
            call(act)
        elif on == "other":
            Task(call, act).result()
        else:
            twice(act)
    assert handler.others > len(acts)


def call_typed(act: Callable[[], Any]) -> None:
    """Make a call that another thread makes, too: one of them may be refused."""
    with suppress(walkit.WalkitError):
        act()


if __name__ == "__main__":
    main(*sys.argv[1:])
