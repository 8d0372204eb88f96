"""Ends and names what a test leaves behind, so that one failing test fails no other."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
"""Without SIGALRM, which is pytest-timeout's."""
END_S = 10.0
"""How long what was left gets to end by itself, and then to be ended."""
ENDING_S = 0.2
"""How long a thread that is ending gets before garbage is looked for."""
OF_EVERY_TEST = ("checkout", "once", "pytestconfig", "testrun_uid", "tmp_path_factory", "worker_id")
"""Fixtures of a whole run that start nothing."""
LIBRARIES_OWN = ("resource_tracker", "forkserver", "pyspark", "org.apache.spark")
"""Children that a library starts once for the whole process, by a word of their command."""
OF_THE_RUNNER = (
    *("PYTEST_CURRENT_TEST", "GRPC_ENABLE_FORK_SUPPORT", "_PYVIZ_COMMS_INSTALLED"),
    *("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"),
)
"""Variables that pytest sets for each test, walkit and Panel once, when a room is imported, and Spark for its JVM."""


def children() -> set[int]:
    """Return the process ids of this process's children."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with (
            suppress(OSError),
            open(f"/proc/self/task/{thread}/children") as listed,
        ):  # a thread may have ended
            found.update(map(int, listed.read().split()))
    return found


def descriptors() -> set[int]:
    """Return the numbers of this process's open descriptors."""
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        return set(map(int, os.listdir(listing))) - {listing}
    finally:
        os.close(listing)


KEPT: set[int] = set()
"""Children that tests share until this process ends: the test that starts one adds its number."""


class Before:
    """The state of the process before a test, and the threads that did not end since then."""

    def __init__(self, *, is_shared: bool = False) -> None:
        """With `is_shared` logs, threads and children may belong to a fixture of several tests: they stay."""
        self.is_shared = is_shared
        self.threads = set(threading.enumerate())
        self.children = children()
        self.environment = dict(os.environ)
        self.folder = os.getcwd()
        self.handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.descriptors = descriptors()
        self.logs = {id(log) for log in open_logs()}

    def end_leftovers(self, folder: Path) -> list[str]:
        """End what was left since then and name each; `folder` holds the files of the tests of this process."""
        if self.is_shared:
            return self._restored()
        named = [f"the log {log.location} was open" for log in self._logs()]
        if not named and not self._threads() and not self._children() and not self._files(folder):
            return self._restored()
        self._join_threads(ENDING_S)
        # A full collection looks through all objects of the process, for a second late in a run.
        for generation in (1, 2):
            if self._logs() or self._threads() or self._files(folder):
                gc.collect(generation)
        for log in self._logs():
            in_time(log.close)
        named += self._end_threads()
        named += self._end_children()
        for number, path in self._files(folder).items():
            named.append(f"descriptor {number} of {path} was open")
            # The number stays taken: its owner may close it yet, and must not close somebody else's file.
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), number)
        return named + self._restored()

    def _logs(self) -> list[Any]:
        return [log for log in open_logs() if id(log) not in self.logs]

    def _threads(self) -> list[threading.Thread]:
        """Return the threads of walkit, and all others that keep the process from ending."""
        left = [thread for thread in threading.enumerate() if thread not in self.threads]
        return [thread for thread in left if not thread.daemon or thread.name.startswith("walkit-")]

    def _children(self) -> list[psutil.Process]:
        found = []
        for pid in children() - self.children - KEPT:
            with suppress(psutil.NoSuchProcess):
                child = psutil.Process(pid)
                if not any(word in " ".join(child.cmdline()) for word in LIBRARIES_OWN):
                    found.append(child)
        return found

    def _files(self, folder: Path) -> dict[int, str]:
        """Return the descriptors of files of tests."""
        found, inside = {}, f"{folder}{os.sep}"
        for number in descriptors() - self.descriptors:
            with suppress(OSError):  # another thread has closed it
                path = os.readlink(f"/proc/self/fd/{number}")
                if path.startswith(inside):
                    found[number] = path
        return found

    def _join_threads(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads():
            while time.monotonic() < deadline:
                try:
                    thread.join(max(0.0, deadline - time.monotonic()))
                    break
                except RuntimeError:  # another thread is about to start it
                    time.sleep(0.001)

    def _end_threads(self) -> list[str]:
        self._join_threads(END_S / 2)
        named = []
        for thread in self._threads():
            owner = getattr(getattr(thread, "_target", None), "__self__", None)
            end = getattr(owner, "stop", None) or getattr(owner, "close", None)
            if callable(end):
                in_time(end)
            thread.join(END_S / 2)
            named.append(f"thread {thread.name!r} {'would not end' if thread.is_alive() else 'ran'}")
            self.threads.add(thread)
            if not thread.daemon:
                STUCK.add(thread)
        return named

    def _end_children(self) -> list[str]:
        deadline = time.monotonic() + END_S / 5
        while self._children() and time.monotonic() < deadline:
            psutil.wait_procs(self._children(), timeout=0.05)
        named = []
        for child in self._children():
            with suppress(psutil.NoSuchProcess):
                named.append(f"child {child.pid} ran: {' '.join(child.cmdline())[:200]}")
                whole = [child, *child.children(recursive=True)]
                for process in whole:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                psutil.wait_procs(whole, timeout=END_S)
        return named

    def _restored(self) -> list[str]:
        """Put environment, folder and signal handlers back, and name each that had changed."""
        now = {name: value for name, value in os.environ.items() if name not in OF_THE_RUNNER}
        old = {name: value for name, value in self.environment.items() if name not in OF_THE_RUNNER}
        named = [
            f"{name} was changed"
            for name in sorted(now.keys() | old.keys())
            if now.get(name) != old.get(name)
        ]
        if named:
            for name in now.keys() - old.keys():
                del os.environ[name]
            os.environ.update(old)
        if os.getcwd() != self.folder:
            named.append("the working folder was changed")
            os.chdir(self.folder)
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler and signal.getsignal(number) != handler:
                named.append(f"the handler of {number.name} was changed")
                signal.signal(number, handler)
        return named


def open_logs() -> list[Any]:
    """Return the logs that are open for writing, without importing walkit for it."""
    module = sys.modules.get("walkit.log.wal")
    return module.open_logs() if module else []


def in_time(end: Any) -> None:
    """Call `end`, which may fail or hang, for at most `END_S` seconds."""

    def call() -> None:
        with suppress(BaseException):
            end()

    thread = threading.Thread(target=call, name="ends a leftover", daemon=True)
    thread.start()
    thread.join(END_S)


STUCK: set[threading.Thread] = set()
"""Threads that did not end: the interpreter would wait for them forever."""


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process although a thread of a failed test will not; pytest-xdist ends its own processes itself."""
    if not hasattr(config, "workerinput") and any(thread.is_alive() for thread in STUCK):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(pytest.ExitCode.TESTS_FAILED)


def shares_a_fixture(node: pytest.Item) -> bool:
    """Return whether a test uses something that lives longer than it: a server, a browser, a session of Spark."""
    found = getattr(node, "_fixtureinfo").name2fixturedefs  # noqa: B009 - pytest's own, without a public name
    return any(defs[-1].scope != "function" and name not in OF_EVERY_TEST for name, defs in found.items())


@pytest.fixture(autouse=True)
def no_leftovers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves a log, thread, child, descriptor, signal handler or variable; end what it left."""
    before = Before(is_shared=shares_a_fixture(request.node))
    yield
    named = before.end_leftovers(tmp_path_factory.getbasetemp())
    if named:
        pytest.fail("the test left behind: " + "; ".join(named), pytrace=False)
