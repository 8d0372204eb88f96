"""The threads, waits, clock, chance and gRPC that walkit's modules use while a world runs.

All of walkit runs unchanged: shells, logs and stores do not know of a world. Threads outside the world keep Python's
own, so other logs of the same process work meanwhile.
"""

from __future__ import annotations

import _thread
import queue
import random
import secrets
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

from walkit._internal.threads import EndingThread
from walkit.log import resources, wal
from walkit.replication.logs import importer
from walkit.replication.transport import grpc_common
from walkit.segments import writer_lock
from walkit.simulate.runner import Runner
from walkit.simulate.world_locks import Event, Lock, Pool, Queue, RLock

EPOCH_NS = 1_700_000_000 * 10**9
"""When each world begins, by its wall clocks."""
LEFT_ALONE = ("walkit.simulate", "walkit.models", "walkit.storage", "walkit._internal.locks")
"""Modules that stay as they are: of storages each call is one step, and the marks of `locks` are a thread's own."""
OPEN: tuple[Any, ...] = (writer_lock._held, resources._open, wal._open_logs, importer._importers)
"""Whatever is open in this process, to be closed when it ends."""
_one = threading.Lock()
"""Held while a world runs: two at once would take each other's clock."""


class _Module:
    """A module of Python of which some names are others for threads of the world."""

    def __init__(self, real: Any, runner: Runner, **own: Callable[..., Any]) -> None:
        self._real = real
        for name, mine in own.items():
            setattr(self, name, _chosen(runner, getattr(real, name), mine))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _chosen(runner: Runner, real: Callable[..., Any], mine: Callable[..., Any]) -> Callable[..., Any]:
    def chosen(*args: Any, **named: Any) -> Any:
        return mine(*args, **named) if runner.is_here else real(*args, **named)

    return chosen


class _NoFinalizer:
    """Replaces a finaliser: a world never closes dropped objects, as after a kill."""

    def __init__(self, *_: object) -> None:
        """Take note of nothing."""

    def detach(self) -> None:
        """Do nothing."""


def _substitutes(runner: Runner, seed: int, grpc: Any) -> dict[int, Any]:
    """Return the substitute of each object, by its id."""
    chance = Random(f"{seed}/ids")

    def wall_ns() -> int:
        life = runner.life
        skew_ms = 0.0 if life is None else life.process.skew_ms
        return EPOCH_NS + round((runner.now_ms + skew_ms) * 1e6)

    clock: dict[str, Callable[..., Any]] = {
        "monotonic": lambda: runner.now_ms / 1000,
        "perf_counter": lambda: runner.now_ms / 1000,
        "perf_counter_ns": lambda: round(runner.now_ms * 1e6),
        "monotonic_ns": lambda: round(runner.now_ms * 1e6),
        "time": lambda: wall_ns() / 1e9,
        "time_ns": wall_ns,
        "sleep": lambda seconds: runner.sleep(seconds * 1000),
    }
    locks: dict[str, Callable[..., Any]] = {
        "Lock": lambda: Lock(runner),
        "RLock": lambda: RLock(runner),
        "Event": lambda: Event(runner),
    }
    drawn: dict[str, Callable[..., Any]] = {
        "randbits": chance.getrandbits,
        "token_bytes": chance.randbytes,
        "token_hex": lambda size: chance.randbytes(size).hex(),
    }

    def start_new_thread(run: Callable[..., object], args: tuple[Any, ...]) -> None:
        assert runner.life is not None
        runner.spawn(runner.life, lambda: run(*args), "bare")

    found: dict[int, Any] = {
        id(time): _Module(time, runner, **clock),
        id(threading): _Module(threading, runner, **locks),
        id(queue): _Module(queue, runner, SimpleQueue=lambda: Queue(runner)),
        id(weakref): _Module(weakref, runner, finalize=_NoFinalizer),
        id(secrets): _Module(secrets, runner, **drawn),
        id(uuid): _Module(uuid, runner, uuid4=lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
        id(grpc_common.grpc): grpc,
    }
    functions: list[tuple[Any, Callable[..., Any]]] = [
        (getattr(module, name), mine)
        for module, own in ((time, clock), (secrets, drawn))
        for name, mine in own.items()
    ]
    functions += [
        (ThreadPoolExecutor, lambda *_: Pool(runner)),
        (_thread.allocate_lock, lambda: Lock(runner)),
        (queue.SimpleQueue, lambda: Queue(runner)),
        (_thread.start_new_thread, start_new_thread),
    ]
    return found | {id(real): _chosen(runner, real, mine) for real, mine in functions}


def _replaced(wanted: Mapping[int, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the globals of walkit's modules that are replaced, each with its name and its value."""
    return [
        (vars(module), name, value)
        for module_name, module in list(sys.modules.items())
        if module_name.startswith("walkit.") and not module_name.startswith(LEFT_ALONE)
        for name, value in list(vars(module).items())
        if id(value) in wanted
    ]


@contextmanager
def hosted(runner: Runner, seed: int, grpc: Any) -> Iterator[None]:
    """Have walkit's modules run on this runner in this block, for its threads and for the calling one."""
    found = _substitutes(runner, seed, grpc)
    with _one:
        start, run = EndingThread.start, EndingThread.run

        def start_here(self: EndingThread) -> None:
            life = runner.life
            if not runner.is_here or life is None:
                start(self)
                return
            mine = runner.enter(life, self.name)
            vars(self)["world"] = mine
            threading.Thread.start(self)
            self.began = True

        def run_here(self: EndingThread) -> None:
            mine = vars(self).get("world")
            if mine is None:
                run(self)
            else:
                runner.run(mine, lambda: run(self))

        chance, held = random.getstate(), [(known, set(known)) for known in OPEN]
        places = _replaced(found)
        EndingThread.start, EndingThread.run = start_here, run_here  # type: ignore[method-assign]
        try:
            for names, name, real in places:
                names[name] = found[id(real)]
            random.seed(f"{seed}/chance")
            yield
        finally:
            for names, name, real in places:
                names[name] = real
            EndingThread.start, EndingThread.run = start, run  # type: ignore[method-assign]
            random.setstate(chance)
            for known, before in held:  # killed processes hold none
                for opened in set(known) - before:
                    known.discard(opened)
