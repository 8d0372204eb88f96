"""Writers, servers and replicas as processes, forked from one that has imported everything, so quickly."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from tests.support.leftovers import KEPT
from tests.support.logs import Child

TYPED = 3
"""The exit code of a process that has ended with one of walkit's errors."""
FORKER = """
    import fnmatch, json, os, resource, signal, sys, traceback
    from tests.support.crash_recorder import CHANGES
    from tests.replication.chaos_rounds import follow_chaos, read_chaos, serve_chaos
    from tests.replication.writer import follow, serve, write
    from tests.support.stores import SMALL
    from walkit.errors import WalkitError
    from walkit.models import FaultyStorage
    from walkit.replication import Replica
    from walkit.storage import FileStorage

    class Killing(FaultyStorage):
        left = 0
        counted, pattern = CHANGES, "*"
        def perform(self, operation, *how, **else_):
            if operation.name in self.counted and fnmatch.fnmatchcase(operation.file, self.pattern):
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().perform(operation, *how, **else_)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1))
    for line in sys.stdin:
        what, *how = json.loads(line)
        if what == "wait":
            pid, block = how
            found, status = os.waitpid(pid, 0 if block else os.WNOHANG)
            print(json.dumps(status if found else None), flush=True)
            continue
        pid = os.fork()
        if pid:
            print(json.dumps(pid), flush=True)
            continue
        os.dup2(2, 1)
        try:
            if what == "write":
                write(*how)
            elif what == "serve":
                serve(*how)
            elif what.endswith(" chaos"):
                {"serve": serve_chaos, "follow": follow_chaos, "read": read_chaos}[what.split()[0]](*how)
            else:
                address, path, nth = how[:3]
                storage = Killing(FileStorage(path))
                storage.left = nth
                if what == "follow until":
                    lsn, *storage.counted, storage.pattern = how[3:]
                    with Replica(storage, address, options=SMALL) as replica:
                        replica.wait_for(lsn, 60)
                else:
                    follow(address, storage, *how[3:])
            os._exit(0)
        except WalkitError as error:
            print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr)
            os._exit(TYPED)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    """.replace("TYPED", str(TYPED))


class Processes:
    """Starts and ends processes; a role and its arguments: `write`, `serve`, `follow`, those of the chaos"""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.living: set[int] = set()

    def start(self, *what: object) -> int:
        """Start one; return its number."""
        self._child.send(what)
        pid: int = self._child.read()
        self.living.add(pid)
        return pid

    def has_ended(self, pid: int, number: int = signal.SIGKILL) -> bool:
        """Return whether it was ended by this signal. One that ended in another way is a failure."""
        status = self.status(pid)
        assert status is None or os.WTERMSIG(status) == number, f"a process ended with status {status}"
        return status is not None

    def status(self, pid: int) -> int | None:
        """How it has ended, as `os.waitpid` tells it; None while it lives."""
        found: int | None = self._wait(pid, block=False)
        return found

    def wait(self, pid: int) -> int:
        """Wait until it has ended; return how."""
        found: int = self._wait(pid, block=True)
        return found

    def kill(self, pid: int) -> None:
        """SIGKILL."""
        os.kill(pid, signal.SIGKILL)
        assert self.wait(pid) == signal.SIGKILL

    def end(self, pid: int) -> None:
        """SIGTERM: it ends in order."""
        os.kill(pid, signal.SIGTERM)
        assert self.wait(pid) == 0

    def _wait(self, pid: int, *, block: bool) -> Any:
        self._child.send(["wait", pid, block])
        status = self._child.read()
        if status is not None:
            self.living.discard(pid)
        return status


@contextmanager
def processes() -> Iterator[Processes]:
    """Where processes are started; all are gone at the end."""
    with Child(FORKER) as child:
        started = Processes(child)
        try:
            yield started
        finally:
            for pid in started.living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@cache
def shared_processes() -> Processes:
    """Where a test starts processes that end by themselves; it lasts as long as this process."""
    child = Child(FORKER)
    KEPT.add(child.process.pid)
    atexit.register(child.__exit__)
    return Processes(child)
