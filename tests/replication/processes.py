"""Commands, and the nodes of the chaos, as processes: forked from one that has imported everything, so quickly."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from tempfile import NamedTemporaryFile
from typing import Any

from tests.replication.blocking_callers import until
from tests.support.leftovers import KEPT
from tests.support.logs import Child

TYPED = 3
"""The exit code of a process that has ended with one of walkit's errors."""
FORKER = """
    import fnmatch, json, os, resource, signal, sys, traceback
    from tests.support.crash_recorder import CHANGES
    from tests.replication.chaos_rounds import follow_chaos, read_chaos, serve_chaos
    from tests.support.stores import SMALL
    from walkit.cli import main
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

    def command(output, *arguments):
        os.dup2(os.open(output, os.O_WRONLY), 1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        code = main(arguments)
        sys.stdout.flush()
        os._exit(code)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
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
            if what == "command":
                command(*how)
            elif what == "serve chaos":
                serve_chaos(*how)
            elif what == "read chaos":
                read_chaos(*how)
            else:
                path, nth, source, *how = how
                storage = Killing(FileStorage(path))
                storage.left = nth
                if what == "follow chaos":
                    follow_chaos(storage, path, source, *how)
                else:
                    lsn, *storage.counted, storage.pattern = how
                    with Replica(storage, source, options=SMALL) as replica:
                        replica.wait_for(lsn, 60)
            os._exit(0)
        except WalkitError as error:
            print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr)
            os._exit(TYPED)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    """.replace("TYPED", str(TYPED))


class Processes:
    """Starts and ends processes: a role and its arguments."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.living: set[int] = set()

    def start(self, *what: object) -> int:
        """Start one; return its number."""
        self._child.send(what)
        pid: int = self._child.read()
        self.living.add(pid)
        return pid

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

    def kill_all(self) -> None:
        """SIGKILL all that live."""
        for pid in self.living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

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
            started.kill_all()


@cache
def shared_processes() -> Processes:
    """Where a test starts processes that end by themselves; it lasts as long as this process."""
    child = Child(FORKER)
    started = Processes(child)
    KEPT.add(child.process.pid)
    atexit.register(child.__exit__)
    atexit.register(started.kill_all)
    return started


class Command:
    """The command `walkit` with these arguments, as a process that has printed a line."""

    def __init__(self, *arguments: str) -> None:
        self._started, self._output = shared_processes(), NamedTemporaryFile()  # noqa: SIM115 - until the end
        self._left: list[str] | None = None
        """All that it has printed, once it has ended."""
        self._pid = self._started.start("command", self._output.name, *arguments)
        until(lambda: bool(self._printed()), f"a line of {arguments}")
        self.first = self._printed()[0]

    def _printed(self) -> list[str]:
        if self._left is not None:
            return self._left
        self._output.seek(0)
        return [line for line in self._output.read().decode().splitlines(keepends=True) if line[-1] == "\n"]

    @property
    def lines(self) -> list[str]:
        """The lines that it has printed after its first one."""
        return self._printed()[1:]

    def end(self, number: int = signal.SIGTERM) -> int:
        """SIGTERM, or another signal that ends it in order."""
        os.kill(self._pid, number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        code = os.waitstatus_to_exitcode(self._started.wait(self._pid))
        self._left = self._printed()
        self._output.close()
        return code
