"""The locks of the commit path: guarded work is done while its lock is taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any

import pytest

import walkit
from tests.support.logs import SEGMENTS, FaultyMemory, tiny
from tests.support.threads import wait_until
from walkit.commit import delivery, election, frame_writer, latches, ticket, ways_in
from walkit.commit.background import DeviceWorker
from walkit.commit.core import OrderingCore
from walkit.commit.delivery import Delivery
from walkit.commit.election import LeaderElection
from walkit.commit.frame import SealedFrame
from walkit.commit.frame_writer import CommitFailure, FrameWriter
from walkit.commit.latches import CommitSignal, SealSequencer

CORE = ["submit", "submit_and_take", "take", "withdraw", "flush", "tick", "written"]
CORE += ["seal_marker", "sync_begin", "synced", "begin_failure", "refuse"]
"""The calls of the ordering core that the driver makes only under its lock."""

FIELDS: list[tuple[type, str, str]] = [
    (CommitFailure, "lock", "refusal poisoned"),
    (LeaderElection, "lock", "is_notified"),
    (CommitSignal, "lock", "wanted"),
    (FrameWriter, "lock", "write_observers"),
    (Delivery, "_lock", "observers wakers durable_listeners _thread"),
    (DeviceWorker, "_guard", "_doing _closing _thread"),
    (SealSequencer, "_lock", "_current _abandoned"),
]
"""Fields that change while a lock of their object is taken."""


class Watched:
    """The calls and settings, those without their lock, and the driver's lock once it exists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lock: Any = None
        self.seen: set[str] = set()
        self.without: set[str] = set()
        self._patch = monkeypatch.setattr
        for name in CORE:
            self._calls(OrderingCore, name)
        for module in (delivery, election, frame_writer, latches, ticket, ways_in):
            for owner in vars(module).values():
                if isinstance(owner, type) and owner.__module__ == module.__name__:
                    for name in [n for n in vars(owner) if n.endswith("_locked") or n == "add_waiter"]:
                        self._calls(owner, name)
        for owner, lock, names in FIELDS:
            self._changes(owner, lock, names.split())

    def _note(self, what: str, lock: Any) -> None:
        self.seen.add(what)
        if lock is not None and not (lock._is_owned() if hasattr(lock, "_is_owned") else lock.locked()):
            self.without.add(what)

    def _calls(self, owner: type, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def noted(thing: Any, *args: Any, **named: Any) -> Any:
            self._note(f"{owner.__name__}.{name}", getattr(thing, "lock", self.lock))
            return function(thing, *args, **named)

        self._patch(owner, name, noted)

    def _changes(self, owner: type, lock: str, names: list[str]) -> None:
        def noted(thing: Any, name: str, value: object) -> None:
            if name in names and hasattr(thing, name):
                self._note(f"{owner.__name__}.{name}", getattr(thing, lock))
            object.__setattr__(thing, name, value)

        self._patch(owner, "__setattr__", noted, raising=False)


class Observer:
    """Sees frames, and does nothing."""

    def writing(self, frame: SealedFrame) -> None:
        """See FrameObserver."""

    def wrote(self, frame: SealedFrame, began_ns: int, ended_ns: int) -> None:
        """See FrameObserver."""

    def synced(self, began_ns: int, ended_ns: int) -> None:
        """See FrameObserver."""


async def await_records(log: walkit.WriteAheadLog) -> None:
    """Append five records at once, each awaited, then one whose ticket is."""
    await asyncio.gather(*(log.append_async(b"%d" % n) for n in range(5)))
    await log.submit(b"v")


def use(log: walkit.WriteAheadLog, number: int) -> None:
    """Take every way into a log, observe it, and wait for it."""
    seen: list[int] = []
    observer = Observer()
    log.observe_writes(observer)
    observations = [
        log.observe(lambda frames: seen.append(frames.last_lsn), "acked"),
        log.observe(lambda frames: seen.append(frames.last_lsn), "durable"),
    ]
    waiting = log.submit(b"%d" % number)
    waiting.add_done_callback(lambda _: seen.append(0))
    log.append(b"v", key=b"k")
    log.append(b"x" * 3000)
    log.append_many([b"%d" % n for n in range(20)])
    log.submit_many([b"%d" % n for n in range(20)]).result()
    asyncio.run(await_records(log))
    waiting.result()
    log.sync()
    log.wait_idle()
    log.unobserve_writes(observer)
    for observation in observations:
        observation.close()
    assert list(log.follow(1, timeout=0.01))
    wait_until(lambda: seen, "the ticket's callback, at the least")


OPTIONS: list[dict[str, Any]] = [
    {},
    {"durability": "interval", "interval_ms": 2, "idle_marker_ms": 1},
    {"in_flight": 4},
    {"in_flight": 4, "ack_order": "completion"},
    {"in_flight": 4, "durability": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_needs_a_lock_has_it(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Take every way into a log from four threads, then fail a write: at no call or change is its lock free."""
    watched, storage = Watched(monkeypatch), FaultyMemory()
    with walkit.open(storage=storage, options=tiny(**options)) as log:
        watched.lock = log.parts.driver.lock
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: use(log, number), range(4)))
    storage = FaultyMemory()
    with walkit.open(storage=storage, options=tiny(**options)) as log:
        watched.lock = log.parts.driver.lock
        log.append(b"first")
        storage.fail("synced_write", SEGMENTS)
        storage.fail("write", SEGMENTS)
        with pytest.raises((walkit.CommitFailedError, walkit.LogPoisonedError)):
            log.append(b"gone")
    assert watched.without == set()
    changed = {f"{owner.__name__}.{name}" for owner, _, names in FIELDS for name in names.split()}
    wanted = {
        f"OrderingCore.{name}" for name in ("written", "flush", "begin_failure", "sync_begin")
    } | changed
    spare = set() if "in_flight" in options else {"SealSequencer._current", "SealSequencer._abandoned"}
    spare |= {"DeviceWorker._doing", "DeviceWorker._thread"}  # busy if the level is not "sync"
    assert wanted - spare <= watched.seen
